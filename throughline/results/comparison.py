"""What report says about all configurations: a row for each, and which is best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from throughline.results.base import ResultFile
from throughline.results.build import SequenceBatches
from throughline.results.train import HeldOut

BOTH = " and on "  # between the machines of a row that was measured on two


@dataclass(frozen=True, kw_only=True)
class MeasuredRow:
    """The measurements of one configuration, and the conclusions from them alone. `fit_step_ms_…`
    are the steps of its own training, `model_layers` what its model does besides the network, and
    how its sequences are batched, `machine` the cores and GPUs that it was measured on, and
    `disturbed_by` what else was at work meanwhile; empty: nothing that matters.

    `validation_examples` counts the validation split, `held_out` describes the split of the final
    metric. None: not measured, or there is no such thing.
    """

    pipeline: str
    plan: str
    examples: int
    gathers: bool
    caches: bool
    drawn_by_class: bool
    model_layers: tuple[str, ...]
    machine: str
    disturbed_by: str
    train_examples_per_s: float | None
    relative_rates: tuple[float, ...]
    rate_doubt: float
    reference_examples_per_s: float
    input_examples_per_s: float
    cold_examples_per_s: float
    model_examples_per_s: float
    stall_pct: float
    stall_pct_low: float
    stall_pct_high: float
    wait_ms_mean: float | None
    predicted_gain: float | None
    first_batch_s: float
    epoch_gap_s: float | None
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
    verdict: str
    cause: str
    fix: str
    mlflow_run_id: str | None
    unsent: str | None = None  # the tag of its run, where that was kept for later
    sequence_batches: SequenceBatches | None = None
    mixed_examples: int | None = None  # that a shuffle mixes with each other
    warm_examples_per_s: float | None = None  # of its own epochs but the first
    warm_steps: int = 0
    contradiction: str = ""  # between its steady state, its ceilings and its epochs


@dataclass(frozen=True, kw_only=True)
class Row(MeasuredRow):
    """A configuration next to the others: training in the steady state and the model's ceiling at
    the machine's speed of one moment, and what it gains over the baseline, with intervals.
    Configurations whose model is the same share the ceiling.
    """

    steady_examples_per_s: float
    steady_examples_per_s_low: float
    steady_examples_per_s_high: float
    model_ceiling_examples_per_s: float
    speedup_vs_naive: float
    speedup_vs_naive_low: float
    speedup_vs_naive_high: float
    break_even_epoch: int | None = None


@dataclass(frozen=True, kw_only=True)
class ChecklistItem:
    """One point of the production checklist."""

    name: str
    passed: bool
    evidence: str


@dataclass(frozen=True, kw_only=True)
class Comparison(ResultFile):
    """All configurations side by side. `tied` are those that may be the fastest; none where they
    were measured on different machines. `missing` says which files of a configuration that is left
    out are not there, `measure_again` which ones are undecided or were disturbed.
    """

    FILE: ClassVar[str] = "summary.json"
    STAGE: ClassVar[str] = "report"

    headline: str
    best: str
    tied: tuple[str, ...]
    undecided: tuple[str, ...]
    measure_again: tuple[str, ...]
    drift_pct: float
    baseline: str
    metric: str
    warning: str | None
    missing: Mapping[str, list[str]]
    machine: Mapping[str, Any]
    examples_digest: str
    data_digest: str
    checklist: tuple[ChecklistItem, ...]
    configurations: tuple[Row, ...]


def list_machines(rows: Sequence[MeasuredRow]) -> dict[str, list[str]]:
    """The machines that configurations were measured on, with those configurations."""
    machines: dict[str, list[str]] = {}
    for row in rows:
        for machine in row.machine.split(BOTH):
            machines.setdefault(machine, []).append(row.pipeline)
    return machines
