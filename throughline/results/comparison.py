"""What report says about all configurations: a row for each, and which is best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from throughline.results.base import ResultFile
from throughline.results.build import SequenceBatches
from throughline.results.train import HeldOut


@dataclass(frozen=True, kw_only=True)
class Row:
    """One configuration next to the others: what was measured of it, and what follows.

    `steady_examples_per_s`, the ceilings and speed-ups over the baseline are of the race;
    `train_examples_per_s` is that of the epochs of its own training, warm ones if it
    `has_warm_epoch`, and `fit_step_ms_…` are its steps. `validation_examples` counts the validation
    split, `held_out` describes the split of the final metric. None: not measured, or there is no
    such thing.
    """

    pipeline: str
    plan: str
    examples: int
    verdict: str
    cause: str
    fix: str
    note: str
    steady_examples_per_s: float
    steady_examples_per_s_low: float
    steady_examples_per_s_high: float
    input_examples_per_s: float | None
    model_examples_per_s: float
    stall_pct: float
    stall_pct_low: float
    stall_pct_high: float
    speedup_vs_naive: float
    speedup_vs_naive_low: float
    speedup_vs_naive_high: float
    gain: float | None
    wait_ms_mean: float | None
    first_batch_s: float | None
    exchange_ms: float | None
    break_even_epoch: int | None
    train_examples_per_s: float | None
    has_warm_epoch: bool
    fit_step_ms_p50: float | None
    fit_step_ms_p95: float | None
    fit_step_ms_p99: float | None
    rss_mb_max: float
    disk_read_mb: float
    cpu_seconds_per_1k_examples: float | None
    cpu_utilization_pct: float | None
    gpu_utilization_pct_mean: float | None
    metric: str
    validation_examples: int
    held_out: HeldOut
    val_metric: float
    test_metric: float | None
    difference_mean: float | None
    difference_max: float | None
    mlflow_run_id: str | None
    unsent: str | None = None  # the tag of its run, where that was kept for later
    drawn_by_class: bool = False
    sequence_batches: SequenceBatches | None = None
    tokens_per_s: float | None = None
    mixed_examples: int | None = None  # that a shuffle mixes with each other


@dataclass(frozen=True, kw_only=True)
class ChecklistItem:
    """One point of the production checklist."""

    name: str
    passed: bool
    evidence: str


@dataclass(frozen=True, kw_only=True)
class Comparison(ResultFile):
    """All configurations side by side. `tied` are those that may be the fastest, and `undecided`
    those of which it is open whether they are faster than the baseline; `measure_again` are these
    and those without a verdict. `missing` says why a configuration is left out; `disturbed_by` what
    other programs took during the race.
    """

    FILE: ClassVar[str] = "summary.json"
    STAGE: ClassVar[str] = "report"

    headline: str
    best: str
    tied: tuple[str, ...]
    undecided: tuple[str, ...]
    measure_again: tuple[str, ...]
    baseline: str
    metric: str
    warning: str | None
    disturbed_by: str
    missing: Mapping[str, str]
    machine: Mapping[str, Any]
    examples_digest: str
    data_digest: str
    checklist: tuple[ChecklistItem, ...]
    configurations: tuple[Row, ...]
