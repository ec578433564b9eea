"""The search for the configuration with the shortest training, within budgets.

The phases are: the user's own configurations, rules of thumb and the model alone, after which the
search ends if the input hardly matters; the presumably fastest form of each family; the leanest
forms of families whose first was dropped; other forms of the best families; forms that differ from
the fastest in one respect; a final. After each phase, candidates leave that the fastest certainly
beats, and all but the best few of those that the search proposed. Measurements are journaled, so an
interrupted search continues. Imports no TensorFlow.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from throughline.measurement.rounds import Race
from throughline.race.contestant import MODEL_ALONE, TRAINING, usual_turn_s
from throughline.race.jobs import Entry
from throughline.reporting.tuning_table import NOT_RACED
from throughline.results.base import MIN_ROUNDS
from throughline.results.tuning import TunedCandidate, TuningResult
from throughline.settings import PipelineConfig
from throughline.shared.errors import Untunable
from throughline.shared.progress import echo
from throughline.tuning.budgets import Need, describe_excess, find_excess, parse_time
from throughline.tuning.choice import (
    Choice,
    choose,
    compose_sentence,
    find_baseline,
    is_compute_bound,
    pick_survivors,
)
from throughline.tuning.journal import Journal
from throughline.tuning.pool import SearchPool
from throughline.tuning.question import Question, prove, survey_data
from throughline.tuning.space import (
    CEILING,
    OWN,
    RULES,
    Candidate,
    find_leanest,
    find_neighbors,
    group_families,
    pick_forms,
    read_stored,
)

ROUNDS, FINAL_ROUNDS, OWN_PHASE, FINAL = 5, 15, "own", "final"
MOST_FAMILIES, FORMS_EACH, MOST_FINALISTS = 3, 4, 6
MOST_OWN = 2  # most configurations of the user's own that stay in the race
RACING_SHARE = 0.8  # share of the time for racing; the rest is for proving


class Search:
    """A search: `run` it to get the choice, then read its `survey` and `race`."""

    def __init__(self, question: Question, journal: Journal) -> None:
        self.question, self.journal = question, journal
        self.survey = survey_data(question, journal.folder)
        self._racing_until = time.monotonic() + RACING_SHARE * parse_time(question.budgets.time)
        everyone = {each.name: each for each in self.survey.space.candidates}
        needs = {name: self.survey.needs[name] for name in everyone}
        self.excess = find_excess(needs, question.limits)
        self.candidates = {name: everyone[name] for name in everyone if name not in self.excess}
        self._own_names = [name for name, each in self.candidates.items() if each.family == OWN]
        for name in journal.content.admissions:  # their memory is known from before
            journal.drop_large(name, question.limits.ram_bytes)

    def run(self) -> Choice:
        """Race, choose and prove.

        Raises Untunable if the model alone cannot be trained or no candidate is left, and
        InvalidBudget if each takes more memory than allowed.
        """
        with self.open_pool() as pool:
            self._race_phases(pool)
        while self.rivals:
            choice = self._choose(self.rivals)
            if choice.outcome != "found" or prove(self._entry(choice.name), self.journal):
                return choice
        opened = self.candidates.keys() & self.journal.content.admissions.keys()
        if opened:  # raises InvalidBudget if each takes too much memory
            find_excess({name: self.measured_needs[name] for name in opened}, self.question.limits)
        reasons = "; ".join(f"{name}: {why}" for name, why in self.journal.content.dropped.items())
        raise Untunable(f"no configuration is left; remedy one of these causes: {reasons}")

    @property
    def race(self) -> Race:
        content = self.journal.content
        return Race(
            rounds=content.rounds,
            costs={name: admission.cost for name, admission in content.admissions.items()},
            examples=self.survey.examples,
            epochs=self.question.epochs,
        )

    @property
    def rivals(self) -> list[str]:
        """The contestants that have raced and can be chosen."""
        raced = [name for name in self.race.names if name in self.candidates]
        return [name for name in raced if not self._is_dropped(name)]

    def open_pool(self) -> SearchPool:
        allowed = self.question.limits.ram_bytes
        return SearchPool(
            self.job, self.survey, self.journal, ram_bytes=allowed, own=self._own_names
        )

    def _race_phases(self, pool: SearchPool) -> None:
        given = [name for name, each in self.candidates.items() if each.family in (OWN, RULES)]
        standing = [CEILING, *given[:1]]
        groups = list(pool.groups(given[1:], together_with=standing)) or [[]]
        for group in groups:  # several if they do not all fit into memory
            self._race_phase(pool, OWN_PHASE, [*standing, *group])
            if CEILING not in self.race.names:
                why = self.journal.content.dropped.get(CEILING, "it did not race")
                raise Untunable(f"the model alone could not be trained: {why}")
            if self._is_compute_bound():
                echo("input is a negligible part of a step: nothing else is raced")
                return
            standing = self._keep(pool, [*standing, *group], most=MOST_FAMILIES)
        families = self._searched_families
        first = {family: forms[0].name for family, forms in families.items()}
        standing = self._race_groups(pool, "families", [*first.values()], standing, MOST_FAMILIES)
        dropped = [family for family, name in first.items() if self._is_dropped(name)]
        leanest = [find_leanest(families[family]) for family in dropped]  # these may fit
        lean = [form.name for form in chain(*leanest)]
        standing = self._race_groups(pool, "lean", lean, standing, MOST_FAMILIES)
        best = {self.candidates[name].family for name in standing if name in self.candidates}
        picked = [pick_forms(families[family], FORMS_EACH) for family in families if family in best]
        forms = [form for form in chain(*picked) if form not in first.values()]
        standing = self._race_groups(pool, "forms", forms, standing, MOST_FINALISTS)
        neighbors = self._find_neighbors(standing)
        standing = self._race_groups(pool, "neighbors", neighbors, standing, MOST_FINALISTS)
        self._race_phase(pool, FINAL, standing, rounds=FINAL_ROUNDS)

    def _race_groups(
        self, pool: SearchPool, phase: str, names: Sequence[str], standing: list[str], most: int
    ) -> list[str]:
        """Race names with those `standing`, as many at once as memory allows; return who stays."""
        left = [name for name in names if name not in standing]
        if done := [name for name in left if self.journal.rounds_of(phase, [name]) >= ROUNDS]:
            # They raced before an interruption, and open again only if they stay.
            standing = self._keep(pool, [*standing, *done], most=most)
            left = [name for name in left if name not in done]
        while left:
            group = next(pool.groups(left, together_with=standing))
            left = left[len(group) :]
            self._race_phase(pool, phase, [*standing, *group])
            standing = self._keep(pool, [*standing, *group], most=most)
        return standing

    def _find_neighbors(self, standing: Sequence[str]) -> list[str]:
        searched = [name for name in standing if name in self.rivals and self._is_searched(name)]
        if not searched:
            return []
        leader = self.candidates[self.race.fastest(searched)]
        forms = find_neighbors(leader, self._searched_families[leader.family])
        return [form.name for form in forms if form.name not in self.race.names]

    def _is_compute_bound(self) -> bool:
        own, race = self._own, self.race
        decidable = own and not race.disturbed_by()
        return bool(decidable) and is_compute_bound(race, race.fastest(own))

    @property
    def _searched_families(self) -> dict[str, list[Candidate]]:
        return group_families(
            each for name, each in self.candidates.items() if self._is_searched(name)
        )

    @property
    def _own(self) -> list[str]:
        return [name for name in self._own_names if name in self.rivals]

    def _is_searched(self, name: str) -> bool:
        return self.candidates[name].family not in (OWN, RULES)

    def _is_dropped(self, name: str) -> bool:
        return name in self.journal.content.dropped

    def _keep(self, pool: SearchPool, names: Sequence[str], *, most: int) -> list[str]:
        """Keep candidates that may be the fastest, and those to compare with; end the others."""
        left = [name for name in names if name in self.rivals]
        searched = [name for name in left if self._is_searched(name)]
        kept = {CEILING, *pick_survivors(self.race, left, searched, most=most)}
        if own := self._own:
            kept |= {find_baseline(own), *self.race.survivors(own, most=MOST_OWN)}
        for name in pool.names:
            if name not in kept:
                pool.end(name)
        return [name for name in names if name in kept]

    def _race_phase(
        self, pool: SearchPool, phase: str, names: Sequence[str], *, rounds: int = ROUNDS
    ) -> None:
        """Race names for `rounds` rounds in all; fewer if the time is up, or all is decided."""
        names = [name for name in names if not self._is_dropped(name)]
        done = self.journal.rounds_of(phase, names)
        if done >= rounds or (time.monotonic() > self._racing_until and phase != OWN_PHASE):
            return
        for number in range(done, rounds):
            enough = number >= (ROUNDS if phase == FINAL else MIN_ROUNDS)
            if enough and (time.monotonic() > self._racing_until or self._is_decided(phase, names)):
                return
            if number == done:
                echo(f"racing {phase}: {', '.join(names)}")
                # First the contestants to compare with, then those that have not raced yet, in
                # case the time does not suffice for all.
                compared = {CEILING, *(self._own[:1] if phase == OWN_PHASE else self._own)}
                raced = {*self.race.names} - compared
                order = sorted(names, key=lambda name: (name not in compared, name in raced))
                pool.open(order, until=self._racing_until)
            turn_s = usual_turn_s(self.question.params)
            self.journal.add(pool.race(names, phase, turn_s=turn_s))

    def _is_decided(self, phase: str, names: Sequence[str]) -> bool:
        """Return whether a final has a winner, or the first phase shows nothing to gain."""
        if phase == OWN_PHASE:
            return self._is_compute_bound()
        if phase != FINAL:
            return False
        rivals = [name for name in names if name in self.rivals]
        left = self.race.survivors(rivals, most=len(rivals), compared=len(self.rivals))
        return len(left) == 1

    def _choose(self, rivals: Sequence[str]) -> Choice:
        """Choose among rivals, compared with the user's own of the last round, or else all of them.

        If one of the user's was lost, the outcome is undecided: it may have been the fastest.
        """
        last = self.race.rounds[-1].turns
        own = [name for name in self._own if name in last] or self._own
        choice = choose(
            self.race,
            rivals,
            own,
            needs=self.measured_needs,
            configs={name: each.config for name, each in self.candidates.items()},
            unraced=self._list_unraced(),
        )
        lost = [name for name in self.journal.content.lost if name in self._own_names]
        if not lost:
            return choice
        why = f"`{lost[0]}`, one of your own, dropped out: {self.journal.content.dropped[lost[0]]}"
        return replace(choice, outcome="undecided", reason=why, lost=True)

    def _list_unraced(self) -> list[str]:
        """List given candidates, and families, that had no time to race."""
        tried = {*self.race.names, *self.journal.content.dropped}
        given = [name for name in self.candidates if not self._is_searched(name)]
        forms = {
            family: [form.name for form in forms]
            for family, forms in self._searched_families.items()
        }
        families = [family for family in forms if tried.isdisjoint(forms[family])]
        return [*(name for name in given if name not in tried), *families]

    @property
    def measured_needs(self) -> dict[str, Need]:
        admissions = self.journal.content.admissions
        return {
            name: replace(need, ram_bytes=admissions[name].ram_bytes)
            if name in admissions
            else need
            for name, need in self.survey.needs.items()
        }

    def _entry(self, name: str) -> Entry:
        params = self.question.params
        if name == CEILING:
            config = read_stored(params.pipelines, params.snapshot.stored_fraction)
        else:
            config = self.candidates[name].config
        return Entry(params=params, root=self.question.root, name=name, config=config)

    def job(self, name: str) -> tuple[str, list[tuple[Entry]]]:
        return (MODEL_ALONE if name == CEILING else TRAINING), [(self._entry(name),)]


def summarize(search: Search, choice: Choice, *, searched_s: float) -> TuningResult:
    """Make the result of a search: the choice, then raced candidates by time, then the rest."""
    race, needs, limits = search.race, search.measured_needs, search.question.limits
    rows = [_describe(search, choice, each) for each in search.survey.space.candidates]
    rows += [
        TunedCandidate(name=name, family="refused", config={}, dropped=reason)
        for name, reason in search.survey.space.refusals
    ]
    rows.sort(key=lambda row: (bool(row.dropped), row.seconds or math.inf))
    return TuningResult(
        outcome=choice.outcome,
        sentence=compose_sentence(choice, race, search.survey.needs[choice.name]),
        chosen=choice.name,
        config=describe_config(search.candidates[choice.name].config),
        baseline=choice.baseline,
        incumbent=choice.incumbent,
        epochs=race.epochs,
        examples=race.examples,
        ceiling_examples_per_s=race.speed(CEILING).value,
        rounds=len(race.rounds),
        searched_s=searched_s,
        stored=search.question.params.snapshot.stored_fraction,
        time_s=parse_time(search.question.budgets.time),
        candidates=rows,
        lost=list(search.journal.content.lost),
        needed=needs[choice.name],
        refused=[need for need in needs.values() if describe_excess(need, limits)],
    )


def describe_config(config: PipelineConfig) -> dict[str, object]:
    """Return the fields of a configuration that differ from their defaults, as in params.yaml."""
    return {"read": config.read, **config.model_dump(exclude_defaults=True)}


def _describe(search: Search, choice: Choice, candidate: Candidate) -> TunedCandidate:
    name, race, need = candidate.name, search.race, search.measured_needs[candidate.name]
    raced = name in race.names
    seconds = race.seconds(name) if raced else None
    return TunedCandidate(
        name=name,
        family=candidate.family,
        config=describe_config(candidate.config),
        examples_per_s=race.speed(name).value if raced else None,
        seconds=seconds and seconds.value,
        seconds_low=seconds and seconds.low,
        seconds_high=seconds and seconds.high,
        ram_mib=need.ram_bytes / 2**20,
        disk_mib=need.disk_bytes / 2**20,
        prepare_s=need.prepare_s,
        dropped=_explain(search, choice, name),
    )


def _explain(search: Search, choice: Choice, name: str) -> str:
    race, why = search.race, search.excess.get(name) or search.journal.content.dropped.get(name, "")
    if name == choice.name or why:
        return why
    if name not in race.names:
        return NOT_RACED
    ratio = race.ratio(name, choice.name, compared=len(search.rivals))
    if not ratio.rounds:  # the candidate left before the choice raced
        times = race.seconds(name).value / race.seconds(choice.name).value
        return f"{times:.1f}× as long"
    span = f"{ratio.value:.2f}× as long, {ratio.low:.2f} to {ratio.high:.2f}"
    return span if ratio.above_one or ratio.below_one else f"{span}: noise"
