"""The results of profile about a configuration: a trace of real steps summed up, and the changes
that the rules propose.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar

from throughline.results.base import Estimate, ResultFile

# In the step name that TensorFlow gives iterators that the plan did not name.
AUTOMATIC = "Dataset:"
# The usual target: of a step that is the model's own, and of the time that a GPU is busy.
GOOD_UTILIZATION_PCT = 80.0


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

    @property
    def autotuned(self) -> dict[str, int]:
        """What AUTOTUNE has set each iterator to."""
        return {
            f"{item.kind} ({item.step})": item.tuned
            for item in self.iterators
            if item.tuned is not None
        }

    def worst(self) -> IteratorTime | None:
        """The step of the plan that held training up most; where nothing was waited for, the one
        that worked most.
        """
        named = [item for item in self.iterators if item.named]
        return max(named, key=lambda item: (round(item.critical_pct), item.self_ms), default=None)


class Effort(IntEnum):
    """The price of a change: a setting, the snapshot on disk (which the DAG makes once), memory in
    every run, or other results.
    """

    SETTING = 0
    DISK = 1
    MEMORY = 2
    RESULTS = 3


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that may be wrong: evidence, cause, and the exact change.

    `step` is the step of the plan that held training up most, by its name in traces, `params_key`
    the key of params.yaml that is to blame, with its section. `change` maps dotted keys of
    params.yaml to their new values, and `config` is the whole changed configuration, with its
    `plan`; None where the race does not try it, since `untried`. `gain` is how many times as fast
    the race has trained with it.
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
class Findings(ResultFile):
    """What the rules found in a configuration, the likeliest first; `wait_pct` is the part of a
    traced step that waits for input, None where the trace shows no iterators.
    """

    FILE: ClassVar[str] = "findings.json"
    STAGE: ClassVar[str] = "profile@{name}"
    FOLDER: ClassVar[str] = "profile"

    wait_pct: float | None
    findings: tuple[Finding, ...]


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
