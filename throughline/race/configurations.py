"""The race of a project's configurations, in three phases for each group that fits into memory.

First, configurations race against their models without input; second, changes that rules propose
for input-bound configurations; third, inputs without a model. A contestant is a process that is
frozen between its turns (`contestant.py`). A phase ends when its time is up, the first two also
once their results are decided. Imports no TensorFlow.
"""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from throughline.config.params import Params
from throughline.measurement.gpus import visible_gpus
from throughline.measurement.rounds import Race
from throughline.measurement.verdict import Stall, judge
from throughline.plan.training_workers import (
    TF_CONFIG,
    TrainingWorker,
    find_training_worker,
    list_addresses,
    make_tf_config,
    name_gpus,
)
from throughline.race.contestant import MODEL_ALONE, TRAINING, usual_turn_s
from throughline.race.jobs import Entry, Opened
from throughline.race.pool import Pool
from throughline.results.base import MIN_ROUNDS, Estimate
from throughline.results.profiling import Finding
from throughline.results.race import CHANGES, INPUTS, OWN, Cost, Round
from throughline.settings import EMULATED_MODEL, PipelineConfig
from throughline.shared.limits import usable_cores
from throughline.shared.progress import echo
from whowaits.timing.verdict import COMPUTE_BOUND, UNDECIDED

SHARES = {OWN: 0.6, CHANGES: 0.25, INPUTS: 0.15}  # largest shares of `measure.seconds`
LEAST_ROUNDS, INPUT_ROUNDS = 5, 4
LOOKS = 5  # interim looks that intervals allow for: else equals would differ in 10 % of races
PRECISE_PCT = 2.0  # an interval this narrow needs no more rounds
# Fields of a configuration that the text of the plan shows in full.
IN_PLAN = {
    *("read", "snapshot", "snapshot_on", "interleave", "map", "vectorize", "cache", "shuffle"),
    *("batch", "prefetch", "postprocess_on", "service"),
}


@dataclass(frozen=True, kw_only=True)
class Starter:
    """A configuration to race; equal `model_layers` share one measurement without input."""

    config: PipelineConfig
    plan: str
    model_layers: tuple[str, ...] = ()
    findings: Sequence[Finding] = ()


@dataclass(kw_only=True)
class Measured:
    """The measurements of a race.

    Attributes:
      models: The contestant that trains without input, by configuration.
      changes: The contestant that tries a rule's change, by configuration and rule.
      costs, opened, lost: By contestant; `lost` has the reasons.
    """

    rounds: list[Round] = field(default_factory=list)
    models: dict[str, str] = field(default_factory=dict)
    changes: dict[tuple[str, str], str] = field(default_factory=dict)
    costs: dict[str, Cost] = field(default_factory=dict)
    opened: dict[str, Opened] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """The total time of all turns."""
        return sum(turn.seconds for each in self.rounds for turn in each.turns.values())

    def of_phase(self, *phases: str) -> Race:
        return Race(rounds=[each for each in self.rounds if each.phase in phases])

    @property
    def training(self) -> Race:
        return self.of_phase(OWN)

    def change_gain(self, name: str, rule: str) -> Estimate:
        """Return the speed of a configuration with a rule's change ÷ its speed without."""
        contestant = self.changes.get((name, rule), "")
        phase = OWN if contestant in self.models else CHANGES
        return self.of_phase(phase).gain(contestant, name)

    def is_raced(self, name: str) -> bool:
        return self.gain(name).rounds >= MIN_ROUNDS

    @property
    def pace(self) -> str:
        """The model-only contestant that shows the machine's speed; "" if none has raced."""
        return next((each for each in self.models.values() if each in self.training.names), "")

    def input_speed(self, name: str) -> Estimate | None:
        """Return an input's rate [examples/s] at the pace of training; None if it had no turn."""
        gain = self.of_phase(INPUTS).gain(name, self.pace)
        return gain.times(self.training.speed(self.pace).value) if gain.rounds else None

    def gain(self, name: str) -> Estimate:
        """Return the speed of a configuration's training ÷ that of its model alone."""
        return self.training.gain(name, self.models.get(name, ""))


class ConfigurationRace:
    """A race of the `starters`, by name, of the project in `root`; logs are in `folder`."""

    def __init__(
        self, params: Params, starters: Mapping[str, Starter], *, root: Path, folder: Path
    ) -> None:
        self._params, self._starters = params, starters
        self._root, self._folder = root, folder
        self._environments, self.worker = local_environments(params), find_worker(params)
        self.on_accelerator = bool(visible_gpus()[0]) or params.model.name == EMULATED_MODEL
        self._entries: dict[str, tuple[str, PipelineConfig]] = {}
        self.measured = Measured()

    @property
    def share(self) -> float:
        """The number of all training processes divided by the number of those on this host."""
        return self.worker.count / len(self._environments)

    def config(self, name: str) -> PipelineConfig:
        return self._starters[name].config

    def run(self) -> Measured:
        starters = self._starters.items()
        for name, starter in starters:
            self._entries[name] = TRAINING, starter.config
            layers = starter.model_layers
            first = next(one for one, other in starters if other.model_layers == layers)
            self.measured.models[name] = model = f"model alone of {first}"
            alone = starter.config.model_copy(update={"service": None})
            self._entries.setdefault(model, (MODEL_ALONE, alone))
        left = list(self._starters)
        with Pool(self._job, self._folder) as pool:
            standing: list[str] = []
            while left:
                group = self._open_group(pool, standing, left)
                left = [name for name in left if name not in group]
                share = len(group) / len(self._starters)
                present = [*dict.fromkeys([*standing, *group])]
                models = dict.fromkeys(self.measured.models[name] for name in present)
                self._race(pool, OWN, [*models, *present], share)
                self._try_changes(pool, group, share)
                if on_host := [name for name in group if self.config(name).snapshot_on != "device"]:
                    self._race(pool, INPUTS, [self.measured.pace, *on_host], share, on_host)
                standing = self._keep(pool, present) if left else []
        self.measured.opened, self.measured.costs = pool.opened, pool.costs
        self.measured.lost = pool.lost
        return self.measured

    def _open_group(self, pool: Pool, standing: Sequence[str], left: Sequence[str]) -> list[str]:
        group: list[str] = []
        cores = usable_cores()
        for batch in (left[start : start + cores] for start in range(0, len(left), cores)):
            # The workers of an external tf.data service run on between turns.
            frozen = [name for name in batch if not self.config(name).remote_address]
            needed = [*(self.measured.models[name] for name in batch), *frozen]
            missing = [each for each in dict.fromkeys(needed) if each not in pool.names]
            if group and not pool.has_room(len(missing)):
                break
            if not group:
                echo(f"racing {', '.join([*standing, *left])}")
            pool.open(missing)
            group += batch
        return group

    def _race(
        self, pool: Pool, phase: str, names: Sequence[str], share: float, inputs: Sequence[str] = ()
    ) -> None:
        """Race the contestants until the phase's results are decided, or its time is up.

        After `LEAST_ROUNDS`, only contestants with an undecided result race on, with the reference.
        Contestants in `inputs` race without a model, for `INPUT_ROUNDS`.
        """
        least, planned = (MIN_ROUNDS, INPUT_ROUNDS) if inputs else (LEAST_ROUNDS, LEAST_ROUNDS)
        allowed_s = SHARES[phase] * share * self._params.measure.seconds
        turn_s = min(usual_turn_s(self._params), allowed_s / planned / max(1, len(names)))
        started_at, number = time.monotonic(), 0
        while number < least or time.monotonic() - started_at < allowed_s:
            present = names
            if number >= planned:
                if inputs or not (still := self._find_open(phase, names)):
                    break
                still.add(self.measured.of_phase(phase).reference)
                present = [name for name in names if name in still]
            self.measured.rounds.append(pool.race(present, phase, pulling=inputs, turn_s=turn_s))
            number += 1

    def _try_changes(self, pool: Pool, names: Sequence[str], share: float) -> None:
        """Race the changes that rules propose for input-bound configurations.

        Equal changes race once. A change that equals another configuration gets its figures.
        """
        starters = self._starters.items()
        known = {identify(starter.plan, starter.config): name for name, starter in starters}
        bound = [name for name in names if self._is_bound(name)]
        tried: dict[str, None] = {}
        for name in bound:
            for finding in self._starters[name].findings:
                if finding.config is None:
                    continue
                config = PipelineConfig.model_validate(finding.config)
                same = identify(finding.plan, config)
                contestant = known.setdefault(same, f"{name} + {finding.rule}")
                self.measured.changes[name, finding.rule] = contestant
                if contestant not in self._starters:
                    tried[contestant] = None
                    self._entries.setdefault(contestant, (TRAINING, config))
        waiting = list(tried)
        while waiting:
            batch = [name for number, name in enumerate(waiting) if pool.has_room(number + 1)]
            batch, waiting = batch or waiting[:1], waiting[max(1, len(batch)) :]
            echo(f"trying {', '.join(batch)}")
            pool.open(batch)
            present = [name for name in bound if name in pool.names]
            changed = {name for (name, _), one in self.measured.changes.items() if one in batch}
            # The first one races with each batch, so that all rounds have a common reference.
            parents = [name for name in present if name in changed or name == present[0]]
            self._race(pool, CHANGES, [*parents, *batch], share * len(batch) / len(tried))
            for name in batch:
                pool.end(name)

    def _keep(self, pool: Pool, names: Sequence[str]) -> list[str]:
        """Keep the first configuration and the fastest for the next group; end the others."""
        race = self.measured.training
        raced = [name for name in names if name in race.names and name in pool.names]
        ahead = {*raced[:1], race.fastest(raced)} if raced else set[str]()
        kept = [name for name in raced if name in ahead]
        for name in {*pool.names} - {*kept, *(self.measured.models[name] for name in kept)}:
            pool.end(name)
        return kept

    def _is_bound(self, name: str) -> bool:
        verdict = self._judge(Stall.of(self.measured.gain(name)))
        return self.measured.is_raced(name) and verdict not in (COMPUTE_BOUND, UNDECIDED)

    def _judge(self, stall: Stall) -> str:
        return judge(stall, "", on_accelerator=self.on_accelerator).name

    def _find_open(self, phase: str, names: Sequence[str]) -> set[str]:
        """Find the contestants whose verdicts, places or gains are undecided."""
        race, still = self.measured.of_phase(phase), set[str]()
        if phase == CHANGES:
            tried = self.measured.changes.items()
            pairs = [(change, name) for (name, _), change in tried if change not in self._starters]
        else:
            present = [name for name in names if name in self._starters and name in race.names]
            for name in filter(self.measured.is_raced, present):
                stall = Stall.of(self.measured.gain(name))
                wide = stall.high_pct - stall.low_pct > 2 * PRECISE_PCT
                if wide and self._judge(stall) == UNDECIDED:
                    still |= {name, self.measured.models[name]}
            best = race.fastest(present) if present else ""
            pairs = [(name, other) for other in {best, *present[:1]} for name in present]
        return still.union(*find_unclear(race, pairs))

    def _job(self, name: str) -> tuple[str, list[tuple[Entry]]]:
        job, config = self._entries[name]
        entry = Entry(params=self._params, root=self._root, name=name, config=config)
        return job, [(replace(entry, environment=each),) for each in self._environments]


def identify(plan: str, config: PipelineConfig) -> str:
    """Return a text that is equal only for configurations of the same speed and examples."""
    return f"{plan} {config.model_dump_json(exclude=IN_PLAN)}"


def find_unclear(race: Race, pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Find the pairs whose ratio may be 1 and is not yet precise; allows for repeated looks."""
    unclear = []
    for one, other in pairs:
        ratio = race.gain(one, other, compared=LOOKS * len(pairs))
        may_be_one = ratio.low <= 1 <= ratio.high and 100 * ratio.width > PRECISE_PCT
        if one != other and ratio.rounds and may_be_one:
            unclear.append((one, other))
    return unclear


def find_worker(params: Params) -> TrainingWorker:
    train = params.train
    gpus = len(visible_gpus()[0]) if train.processes == "auto" else 0
    return find_training_worker(
        os.environ, processes=train.processes, batch_multiple=train.batch_multiple, gpus=gpus
    )


def local_environments(params: Params) -> list[dict[str, str]]:
    """Return the variables of each process on this host: TF_CONFIG and its GPU; none if alone."""
    worker = find_worker(params)
    if worker.count == 1:
        return [{}]
    addresses = list_addresses(os.environ) or [f"localhost:{each}" for each in range(worker.count)]
    hosts = [address.rpartition(":")[0] for address in addresses]
    local = [index for index, host in enumerate(hosts) if host == hosts[worker.index]]
    gpus = name_gpus(os.environ, len(visible_gpus()[0]))
    environments = [{TF_CONFIG: make_tf_config(addresses, index)} for index in local]
    if len(gpus) >= len(local):
        for own, gpu in zip(environments, gpus, strict=False):
            own["CUDA_VISIBLE_DEVICES"] = gpu
    return environments
