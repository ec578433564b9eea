"""The result of a race: every turn, and each configuration's rates, verdict, cause and fix."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from throughline.results.base import Estimate, ResultFile
from throughline.results.build import SequenceBatches
from throughline.results.profiling import Breakdown, Finding
from throughline.results.train import TrainResult, train_metrics
from whowaits.timing.verdict import COMPUTE_BOUND

DISTURBED_PCT = 10.0  # share of all cores that other programs take in a disturbed round
METRICS_FILE = "metrics.json"
# The phases: configurations against their models alone, changes of them, the input of each alone.
OWN, CHANGES, INPUTS = "configurations", "changes", "input alone"
# Figures that `dvc metrics show` compares, by names in MLflow, besides verdict and quality.
COMPARED = (
    "throughput/steady_examples_per_s",
    "throughput/train_examples_per_s",
    "throughput/input_examples_per_s",
    "throughput/model_examples_per_s",
    "input/stall_pct",
    "input/wait_ms_mean",
    "input/first_batch_s",
    "step/ms_p50",
    "cpu/utilization_pct",
    "gpu/utilization_pct_mean",
    "memory/rss_mb_max",
    "gpu/memory_mb_max",
)


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A turn of a contestant: its examples, and the seconds from waking to freezing its process."""

    examples: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Round:
    """A turn of each contestant, by name, in a `phase` of the race.

    Meanwhile other programs took a share of the cores, at least half of it `busiest`, if any.
    """

    phase: str
    turns: Mapping[str, Turn]
    others_pct: float
    busiest: str

    @property
    def disturbed(self) -> bool:
        """Whether other programs took so much that the rates are unreliable."""
        return self.others_pct > DISTURBED_PCT


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of a training besides steady epochs; `fill_s` is the least of the first epoch."""

    prepare_s: float = 0.0
    fill_s: float = 0.0

    def total_s(self, rate: float, *, examples: int, epochs: int) -> float:
        epoch_s = examples / rate
        return self.prepare_s + max(epoch_s, self.fill_s) + (epochs - 1) * epoch_s


@dataclass(frozen=True, kw_only=True)
class Raced:
    """A configuration in the race. Rates are in examples per second.

    Attributes:
      stall_pct: The loss of training against its model alone in the same rounds.
      input: The rate of its input alone.
      model: The name of the contestant that is its model alone.
      contradiction: The figure that contradicts the race; the verdict is then undecided.
      note: The kind of measurement and its reason, if not in turns; else "".
      gain: The gain of the finding to act on; None if no raced change is worthwhile.
    """

    verdict: str
    cause: str
    fix: str
    stall_pct: float
    stall_pct_low: float
    stall_pct_high: float
    training: Estimate
    input: Estimate | None
    model_alone: Estimate
    model: str
    cost: Cost
    first_batch_s: float | None
    contradiction: str = ""
    note: str = ""
    gain: float | None = None
    exchange_ms: float | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def figures(self) -> dict[str, float | str | None]:
        """All single values by name, which `--fail-if` can ask for."""
        return {name: read(self) for name, read in METRICS.items()}

    @property
    def possible_gain(self) -> float | None:
        """The gain of the finding to act on; 1 if nothing can be gained, None if none raced."""
        tried = not self.findings or any(each.gain for each in self.findings)
        nothing = 1.0 if tried or self.verdict == COMPUTE_BOUND else None
        return nothing if self.gain is None else self.gain


METRICS: Mapping[str, Callable[[Raced], float | str | None]] = {
    "verdict": attrgetter("verdict"),
    "stall_pct": attrgetter("stall_pct"),
    "stall_pct_low": attrgetter("stall_pct_low"),
    "stall_pct_high": attrgetter("stall_pct_high"),
    "gain": attrgetter("possible_gain"),
    "first_batch_s": attrgetter("first_batch_s"),
    "exchange_ms": attrgetter("exchange_ms"),
    "train_examples_per_s": attrgetter("training.value"),
    "train_examples_per_s_low": attrgetter("training.low"),
    "train_examples_per_s_high": attrgetter("training.high"),
    "input_examples_per_s": lambda raced: raced.input and raced.input.value,
    "model_examples_per_s": attrgetter("model_alone.value"),
    "utilization_pct": lambda raced: 100 - raced.stall_pct,
}


@dataclass(frozen=True, kw_only=True)
class RaceResult(ResultFile, file="race.json", stage="race"):
    """A race of all configurations, each trained by this number of `processes`.

    `disturbed_by` says how other programs disturbed most rounds; `lost` has the reasons by name.
    """

    machine: Mapping[str, Any]
    processes: int
    seconds: float
    disturbed_by: str
    rounds: tuple[Round, ...]
    configurations: Mapping[str, Raced]
    lost: Mapping[str, str]


def race_metrics(
    raced: Raced, breakdown: Breakdown, texts: SequenceBatches | None = None
) -> dict[str, float | None]:
    """Return measurements of race, profile and `texts` by MLflow's names; None: not measured."""
    rate = raced.input and raced.input.value
    return {
        "input/tokens_per_s": texts and rate and rate * texts.tokens_per_example,
        "input/padding_pct": texts and texts.padding_pct,
        "input/distinct_shapes": texts and float(texts.distinct_shapes),
        "throughput/steady_examples_per_s": raced.training.value,
        "throughput/input_examples_per_s": rate,
        "throughput/model_examples_per_s": raced.model_alone.value,
        "input/stall_pct": raced.stall_pct,
        "input/stall_pct_low": raced.stall_pct_low,
        "input/stall_pct_high": raced.stall_pct_high,
        "input/first_batch_s": raced.first_batch_s,
        "input/wait_ms_mean": breakdown.wait_ms_mean,
        "input/wait_ms_p50": breakdown.wait_ms_p50,
        "input/wait_ms_p95": breakdown.wait_ms_p95,
        "gpu/busy_ms_per_step": breakdown.gpu_busy_ms,
        "gpu/copy_ms_per_step": breakdown.gpu_copy_ms,
        "step/exchange_ms": raced.exchange_ms,
    }


def compared_metrics(
    trained: TrainResult, raced: Raced, breakdown: Breakdown
) -> dict[str, float | str]:
    """Return the measured values that compare configurations, under their names in MLflow."""
    known, metric = train_metrics(trained) | race_metrics(raced, breakdown), trained.metric
    measured = {name: value for name in COMPARED if (value := known[name]) is not None}
    test = {f"test/{metric}": trained.test[metric]} if trained.test else {}
    validation = {f"val/{metric}": trained.last_epoch[f"val_{metric}"]}
    return {"verdict": raced.verdict, **measured, **validation, **test}
