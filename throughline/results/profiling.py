"""What profile says about a configuration: the stall, what a trace shows, cause and fix, and the
few metrics by which people compare configurations.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar, Final

from throughline.results.base import ResultFile
from throughline.results.build import BuildResult
from throughline.results.train import TrainResult, train_metrics

# In the step name that TensorFlow gives iterators that the plan did not name.
AUTOMATIC = "Dataset:"
METRICS_FILE = "metrics.json"
# The usual target: of a step that is the model's own, and of the time that a GPU is busy.
GOOD_UTILIZATION_PCT = 80.0
DISTURBED_FROM_PCT = 10.0  # of the cores
# What `dvc metrics show` compares, by the names in MLflow; the verdict and the model's quality come
# with them.
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
class IteratorTime:
    """All calls of one iterator over the traced window. Times in ms, summed over calls and threads.

    `self_ms` counts only work; `call_ms_p50/p95` are those of the functions it calls (of the calls
    themselves where it calls none). `parallelism` is how many threads were busy on average,
    `critical_pct` its share of all waits.
    """

    path: str
    step: str
    calls: int
    self_ms: float
    call_ms_p50: float
    call_ms_p95: float
    parallelism: float
    critical_pct: float
    tuned: int | None = None

    @property
    def depth(self) -> int:
        """Distance from the root of the pipeline."""
        return self.path.count("::") - 1

    @property
    def named(self) -> bool:
        """Whether it is a step of the plan, not something that tf.data put in between."""
        return bool(self.step) and AUTOMATIC not in self.step

    @property
    def kind(self) -> str:
        """What it is, by tf.data's name."""
        return self.path.rpartition("::")[2]

    @property
    def title(self) -> str:
        """Its kind, with the step of the plan that it is."""
        return f"{self.kind} ({self.step})" if self.named else self.kind


@dataclass(frozen=True, kw_only=True)
class Breakdown(ResultFile):
    """What a trace says: steps, wait per step [ms], iterators from the consumer to the disk; per
    step on a GPU, busy and copying [ms].
    """

    FILE: ClassVar[str] = "breakdown.json"
    STAGE: ClassVar[str] = "profile@{name}"
    FOLDER: ClassVar[str] = "profile"

    steps: int
    traced_step_ms_mean: float | None
    wait_ms_p50: float | None
    wait_ms_p95: float | None
    wait_ms_mean: float | None
    iterators: tuple[IteratorTime, ...]
    gpu_busy_ms: float | None = None
    gpu_copy_ms: float | None = None

    def worst(self) -> IteratorTime | None:
        """The step of the plan that held training up most; where nothing was waited for, the one
        that worked most.
        """
        named = [item for item in self.iterators if item.named]
        return max(named, key=lambda item: (round(item.critical_pct), item.self_ms), default=None)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong: evidence, cause, the exact change, and what it is predicted to gain.

    `step` is the step of the plan that held training up most, by its name in traces, `params_key`
    the key of params.yaml that is to blame, with its section. `predicted_gain` is a factor on
    training throughput, None where the model cannot say. `change` maps dotted keys of params.yaml
    to their new values.
    """

    rule: str
    step: str
    params_key: str
    evidence: str
    cause: str
    fix: str
    change: Mapping[str, Any]
    effort: str
    predicted_gain: float | None
    confidence: str


@dataclass(frozen=True, kw_only=True)
class Diagnosis(ResultFile):
    """The verdict on one configuration. Utilization = model-only step time / real step time; stall
    is the rest; `wait_pct` is the part of a traced step that waits for input, None where the trace
    shows no iterators. `costs` are those of the plan's parts [µs], by which gains are predicted.
    """

    FILE: ClassVar[str] = "diagnosis.json"
    STAGE: ClassVar[str] = "profile@{name}"
    FOLDER: ClassVar[str] = "profile"

    verdict: str
    utilization_pct: float
    stall_pct: float
    wait_pct: float | None
    attainable_examples_per_s: float
    cause: str
    fix: str
    evidence: str
    predicted_gain: float | None
    findings: tuple[Finding, ...]
    costs: Mapping[str, Any] = field(default_factory=dict)


UNDECIDED_SIDE: Final = "undecided"  # of a measurement whose two sides only enclose the truth


@dataclass(frozen=True, kw_only=True)
class RoundTimes(ResultFile):
    """The rounds of the measurement. `round_…_ms` hold one value per round, the mean time of its
    steps, and `relative_rates` training's speed relative to the reference; `train_step_times_ms`
    holds every single step of training.
    """

    FILE: ClassVar[str] = "steps.json"
    STAGE: ClassVar[str] = "profile@{name}"
    FOLDER: ClassVar[str] = "profile"

    side: str
    round_reference_ms: tuple[float, ...]
    round_model_ms: tuple[float, ...]
    round_full_ms: tuple[float, ...]
    round_drained_ms: tuple[float, ...]
    train_step_times_ms: tuple[float, ...]
    relative_rates: tuple[float, ...]

    @property
    def rate_doubt(self) -> float:
        """Half of how far both sides of an undecided measurement are apart, as a logarithm; else
        0. Rounds do not lessen it.
        """
        if self.side != UNDECIDED_SIDE:
            return 0.0
        full, drained = map(statistics.median, (self.round_full_ms, self.round_drained_ms))
        return abs(math.log(full / drained)) / 2


@dataclass(frozen=True, kw_only=True)
class Timeline(ResultFile):
    """Lanes from the training down to the disk; each a list of (begin, end) [ms] within a window of
    `length_ms`.
    """

    FILE: ClassVar[str] = "timeline.json"
    STAGE: ClassVar[str] = "profile@{name}"
    FOLDER: ClassVar[str] = "profile"

    length_ms: float
    lanes: dict[str, list[tuple[float, float]]]


@dataclass(frozen=True, kw_only=True)
class ProcessProfile:
    """One of the processes that train together, on its slice of every batch, measured while the
    others measured theirs: rates of its slice alone, and its steps without what they exchange.
    """

    host: str
    input_examples_per_s: float
    model_examples_per_s: float
    train_step_ms: float
    stall_pct: float
    stall_pct_low: float
    stall_pct_high: float
    verdict: str


@dataclass(frozen=True, kw_only=True)
class ProfileResult(ResultFile):
    """What was measured and concluded about one configuration, as values; `--fail-if` can ask for
    each. Of several `processes` it is that of the `slowest`, by its number, and rates are those of
    as many that are as slow; `exchange_ms` is what a step of the training took beyond a step of
    that one alone. `train_step_ms` is a step in the steady state, `epochs_stall_pct_low` the lower
    end of the stall by the training's own epochs, `stall_measurement_s` how long the measurement
    took, and `machine` which cores and GPUs there were. Meanwhile other processes, most of all
    `busiest_other`, took `others_cpu_pct` of the cores, and `idle_cpu_pct` were idle.
    """

    FILE: ClassVar[str] = "profile.json"
    STAGE: ClassVar[str] = "profile@{name}"

    verdict: str
    stall_pct: float
    stall_pct_low: float
    stall_pct_high: float
    stall_side: str
    stall_measurement_s: float
    epochs_stall_pct_low: float | None
    prepared_batches: int
    relative_rate: float
    utilization_pct: float
    wait_pct: float | None
    wait_ms_mean: float | None
    wait_ms_p50: float | None
    wait_ms_p95: float | None
    model_step_ms: float
    train_step_ms: float
    train_step_ms_low: float
    train_step_ms_high: float
    model_examples_per_s: float
    reference_examples_per_s: float
    attainable_examples_per_s: float
    predicted_gain: float | None
    gpu_busy_ms: float | None
    gpu_copy_ms: float | None
    autotuned: Mapping[str, int]
    machine: str
    others_cpu_pct: float
    idle_cpu_pct: float
    busiest_other: str
    processes: tuple[ProcessProfile, ...] = ()
    slowest: int = 0
    exchange_ms: float | None = None

    @property
    def disturbed_by(self) -> str:
        """Who took cores that training might have used; empty: nobody. What others took while as
        much was idle was missed by nobody.
        """
        missed_pct = self.others_cpu_pct - self.idle_cpu_pct
        return self.busiest_other if missed_pct >= DISTURBED_FROM_PCT else ""


# What `--fail-if` can ask for.
METRICS = tuple(
    each.name
    for each in fields(ProfileResult)
    if not str(each.type).startswith(("Mapping", "tuple"))
)


def join_profiles(each: Sequence[ProfileResult], trained: TrainResult) -> ProfileResult:
    """The result of processes that were profiled at the same time, each on its slice; of a training
    by another number of them it says nothing.
    """
    count, slowest = len(each), max(range(len(each)), key=lambda one: each[one].train_step_ms)
    result, step = each[slowest], trained.step if trained.processes == len(each) > 1 else None
    return replace(
        result,
        model_examples_per_s=count * result.model_examples_per_s,
        reference_examples_per_s=count * result.reference_examples_per_s,
        attainable_examples_per_s=count * result.attainable_examples_per_s,
        processes=tuple(process for one in each for process in one.processes),
        slowest=slowest,
        exchange_ms=None if step is None else max(0.0, step.ms_p50 - result.train_step_ms),
    )


def profile_metrics(profiled: ProfileResult) -> dict[str, float | None]:
    """What profile measured, under its MLflow name; None: not measured."""
    return {
        "throughput/model_examples_per_s": profiled.model_examples_per_s,
        "throughput/attainable_examples_per_s": profiled.attainable_examples_per_s,
        "input/stall_pct": profiled.stall_pct,
        "input/stall_pct_low": profiled.stall_pct_low,
        "input/stall_pct_high": profiled.stall_pct_high,
        "input/wait_ms_mean": profiled.wait_ms_mean,
        "input/wait_ms_p50": profiled.wait_ms_p50,
        "input/wait_ms_p95": profiled.wait_ms_p95,
        "gpu/busy_ms_per_step": profiled.gpu_busy_ms,
        "gpu/copy_ms_per_step": profiled.gpu_copy_ms,
        "step/exchange_ms": profiled.exchange_ms,
        **{
            f"process_{index}/{name}": value
            for index, one in enumerate(profiled.processes if len(profiled.processes) > 1 else ())
            for name, value in asdict(one).items()
            if isinstance(value, float)
        },
    }


def compared_metrics(
    built: BuildResult, trained: TrainResult, profiled: ProfileResult
) -> dict[str, float | str]:
    """The few values by which configurations are compared, under their MLflow names; what was not
    measured is left out.
    """
    known = train_metrics(built, trained) | profile_metrics(profiled)
    measured = {name: value for name in COMPARED if (value := known[name]) is not None}
    quality = {f"val/{trained.metric}": trained.last_epoch[f"val_{trained.metric}"]} | (
        {f"test/{trained.metric}": trained.test[trained.metric]} if trained.test else {}
    )
    return {"verdict": profiled.verdict, **measured, **quality}
