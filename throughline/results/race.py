"""The result of a race: every turn, and each configuration's rates, verdict, cause and fix."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from throughline.results.base import Estimate, ResultFile
from throughline.results.build import SequenceBatches
from throughline.results.profiling import Breakdown, Finding
from throughline.results.train import TrainResult, train_metrics
from whowaits.timing.verdict import COMPUTE_BOUND

DISTURBED_PCT = 10.0  # of all cores, taken by other programs in a round
METRICS_FILE = "metrics.json"
# The phases: configurations against their models alone, changes of them, the input of each alone.
OWN, CHANGES, INPUTS = "configurations", "changes", "input alone"
# What `dvc metrics show` compares, by names in MLflow, next to verdict and quality.
COMPARED = (
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
    """A turn of each contestant, by name, and other programs' share of the cores meanwhile.

    `heat` is the race's phase; `busiest` names the program that took half of that share, if any.
    """

    heat: str
    turns: Mapping[str, Turn]
    others_pct: float
    busiest: str

    @property
    def disturbed(self) -> bool:
        """Whether other programs took so much that the rates are unreliable."""
        return self.others_pct > DISTURBED_PCT


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of a training besides its steady epochs.

    `prepare_s` comes before it; the first epoch takes at least `fill_s`, in which a cache is
    filled.
    """

    prepare_s: float = 0.0
    fill_s: float = 0.0

    def total_s(self, rate: float, *, examples: int, epochs: int) -> float:
        epoch_s = examples / rate
        return self.prepare_s + max(epoch_s, self.fill_s) + (epochs - 1) * epoch_s


@dataclass(frozen=True, kw_only=True)
class Raced:
    """A configuration in the race. Rates are in examples per second.

    Attributes:
      stall_pct: What training loses against its model alone in the same rounds.
      input: The rate of its input alone.
      model: The name of the contestant that is its model alone.
      cost: The time that its training takes besides its steady epochs.
      contradiction: Which other figure contradicts the race; the verdict is then undecided.
      note: How it was measured, and why so, if not in turns; else "".
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


def _find_gain(raced: Raced) -> float | None:
    """Return the gain of the finding to act on; 1 if nothing can be gained, None if none raced."""
    if raced.gain is not None:
        return raced.gain
    tried = not raced.findings or any(each.gain for each in raced.findings)
    return 1.0 if tried or raced.verdict == COMPUTE_BOUND else None


METRICS: Mapping[str, Callable[[Raced], float | str | None]] = {
    "verdict": lambda raced: raced.verdict,
    "stall_pct": lambda raced: raced.stall_pct,
    "stall_pct_low": lambda raced: raced.stall_pct_low,
    "stall_pct_high": lambda raced: raced.stall_pct_high,
    "gain": _find_gain,
    "first_batch_s": lambda raced: raced.first_batch_s,
    "exchange_ms": lambda raced: raced.exchange_ms,
    "train_examples_per_s": lambda raced: raced.training.value,
    "train_examples_per_s_low": lambda raced: raced.training.low,
    "train_examples_per_s_high": lambda raced: raced.training.high,
    "input_examples_per_s": lambda raced: raced.input and raced.input.value,
    "model_examples_per_s": lambda raced: raced.model_alone.value,
    "utilization_pct": lambda raced: 100 - raced.stall_pct,
}


@dataclass(frozen=True, kw_only=True)
class RaceResult(ResultFile):
    """A race of all configurations.

    Attributes:
      processes: How many processes train each configuration.
      disturbed_by: How other programs disturbed most rounds; "" if they did not.
      lost: Why configurations did not take part, or were lost.
    """

    FILE: ClassVar[str] = "race.json"
    STAGE: ClassVar[str] = "race"

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
    return {
        "input/tokens_per_s": texts
        and raced.input
        and raced.input.value * texts.tokens_per_example,
        "input/padding_pct": texts and texts.padding_pct,
        "input/distinct_shapes": texts and float(texts.distinct_shapes),
        "throughput/steady_examples_per_s": raced.training.value,
        "throughput/input_examples_per_s": raced.input and raced.input.value,
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
    known = train_metrics(trained) | race_metrics(raced, breakdown)
    measured = {name: value for name in COMPARED if (value := known[name]) is not None}
    quality = {f"val/{trained.metric}": trained.last_epoch[f"val_{trained.metric}"]} | (
        {f"test/{trained.metric}": trained.test[trained.metric]} if trained.test else {}
    )
    return {"verdict": raced.verdict, **measured, **quality}
