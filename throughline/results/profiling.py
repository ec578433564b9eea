"""The result of profile: a summary of traced steps, and the changes that rules propose."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from throughline.results.base import Estimate, ResultFile

# Part of the name that TensorFlow gives iterators without a step of the plan.
AUTOMATIC = "Dataset:"
# The usual target, for the model's own share of a step, and for a GPU's utilization.
GOOD_UTILIZATION_PCT = 80.0


@dataclass(frozen=True, kw_only=True)
class IteratorTime:
    """All calls of an iterator in the traced window; times are summed over calls and threads [ms].

    Attributes:
      call_ms_p50, call_ms_p95: Times of the functions it calls, or else of its own calls.
      parallelism: Number of busy threads on average.
      critical_pct: Its share of all waits.
      tuned: The parallelism or buffer size that AUTOTUNE has set.
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
        return self.path.count("::") - 1

    @property
    def named(self) -> bool:
        """Whether the iterator is a step of the plan, rather than one that tf.data inserted."""
        return bool(self.step) and AUTOMATIC not in self.step

    @property
    def kind(self) -> str:
        return self.path.rpartition("::")[2]

    @property
    def title(self) -> str:
        return f"{self.kind} ({self.step})" if self.named else self.kind


@dataclass(frozen=True, kw_only=True)
class Breakdown(ResultFile, file="breakdown.json", folder="profile", stage="profile@{name}"):
    """The summary of a trace: waits, iterators from consumer to disk, GPU times per step."""

    steps: int
    traced_step_ms_mean: float | None
    wait_ms_p50: float | None
    wait_ms_p95: float | None
    wait_ms_mean: float | None
    iterators: tuple[IteratorTime, ...]
    gpu_busy_ms: float | None = None
    gpu_copy_ms: float | None = None

    @property
    def autotuned(self) -> dict[str, int]:
        return {
            f"{item.kind} ({item.step})": item.tuned
            for item in self.iterators
            if item.tuned is not None
        }

    def worst(self) -> IteratorTime | None:
        """Return the plan's step with the most waits, then the most work; None if there is none."""
        named = [item for item in self.iterators if item.named]
        return max(named, key=lambda item: (round(item.critical_pct), item.self_ms), default=None)


class Effort(IntEnum):
    """The price of a change: a setting, the snapshot on disk, memory in each run, other results."""

    SETTING = 0
    DISK = 1
    MEMORY = 2
    RESULTS = 3


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A possible problem, with evidence, cause, and the exact change.

    Attributes:
      step: The step of the plan that held training up most, by its name in traces; else the key.
      params_key: The key of params.yaml that is to blame, with its section.
      change: New values by dotted keys of params.yaml.
      config, plan: Of the changed configuration; None if it is not raced, because of `untried`.
      gain: The speed of training with the change ÷ that without, measured by the race.
    """

    rule: str
    step: str
    params_key: str
    evidence: str
    cause: str
    fix: str
    change: Mapping[str, Any]
    effort: str
    config: Mapping[str, Any] | None = None
    plan: str = ""
    untried: str = ""
    gain: Estimate | None = None


@dataclass(frozen=True, kw_only=True)
class Findings(ResultFile, file="findings.json", folder="profile", stage="profile@{name}"):
    """The rules' findings about a configuration, in the order of the rules.

    `wait_pct` is the share of a traced step that waits for input; None if the trace shows none.
    """

    wait_pct: float | None
    findings: tuple[Finding, ...]


@dataclass(frozen=True, kw_only=True)
class Timeline(ResultFile, file="timeline.json", folder="profile", stage="profile@{name}"):
    """Lanes from training down to the disk, each with (begin, end) spans [ms]."""

    length_ms: float
    lanes: dict[str, list[tuple[float, float]]]
