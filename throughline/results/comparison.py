"""The result of the report stage: a row for each configuration, and which one is best."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from throughline.results.base import ResultFile
from throughline.results.build import SequenceBatches
from throughline.results.train import HeldOut


@dataclass(frozen=True, kw_only=True)
class Row:
    """The figures of a configuration, from the race unless stated otherwise; None: not measured.

    Attributes:
      train_examples_per_s, fit_step_ms_p50: From the warm epochs of its own training.
      epochs_doubt: Why the training's epochs do not compare with the race; "" if they do.
      held_out: The split of the final metric.
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
    epochs_doubt: str
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
    unsent: str | None = None  # the tag of a run that was kept for later
    drawn_by_class: bool = False
    sequence_batches: SequenceBatches | None = None
    tokens_per_s: float | None = None
    mixed_examples: int | None = None  # number of examples that a shuffle mixes


@dataclass(frozen=True, kw_only=True)
class ChecklistItem:
    name: str
    passed: bool
    evidence: str


@dataclass(frozen=True, kw_only=True)
class Comparison(ResultFile, file="summary.json", stage="report"):
    """All configurations side by side.

    Attributes:
      tied: Configurations that may be the fastest.
      undecided: Configurations that may or may not be faster than the baseline.
      measure_again: Undecided configurations, those without a verdict, and those lost in the race.
      missing: Why a configuration is left out, by its name.
      disturbed_by: How other programs disturbed the race; "" if they did not.
    """

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
