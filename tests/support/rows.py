"""Rows of a comparison as the report makes them, for tests that need only some of their values."""

from __future__ import annotations

import math
from typing import Any

from throughline.reporting.headline import find_measure_again, find_undecided, write_headline
from throughline.reporting.ranking import find_baseline, find_tied
from throughline.results.comparison import Comparison, Row
from throughline.results.train import HeldOut


def row(
    name: str,
    relative: float = 1.0,
    stall: float = 0.0,
    verdict: str = "compute-bound",
    *,
    spread: float = 0.02,
    **more: Any,
) -> Row:
    """A configuration whose nine rounds trained at `relative` of the reference model's rate, ±
    `spread`; `more` are its other fields.
    """
    usual: dict[str, Any] = {
        "plan": "read → batch", "examples": 1000, "gathers": False, "caches": False,
        "drawn_by_class": False, "model_layers": (), "machine": "4 cores", "disturbed_by": "",
        "train_examples_per_s": relative * 100, "reference_examples_per_s": 100.0,
        "input_examples_per_s": 400.0, "cold_examples_per_s": 300.0,
        "model_examples_per_s": 100.0,
        "wait_ms_mean": 0.5, "predicted_gain": None, "first_batch_s": 0.1, "epoch_gap_s": None,
        "fit_step_ms_p50": 1.0, "fit_step_ms_p95": 2.0, "fit_step_ms_p99": 3.0,
        "rss_mb_max": 800.0, "disk_read_mb": 1.0,
        "cpu_seconds_per_1k_examples": 0.1, "cpu_utilization_pct": 90.0,
        "gpu_utilization_pct_mean": None,
        "metric": "accuracy", "validation_examples": 5000, "val_metric": 0.9, "test_metric": None,
        "held_out": HeldOut(
            split="test", examples=1000, constant_metric=0.25, constant_stderr=0.0137
        ),
        "difference_mean": None, "difference_max": None,
        "cause": "none", "fix": "none", "mlflow_run_id": None,
        "steady_examples_per_s": relative * 100,
        "steady_examples_per_s_low": relative * 100 - 2,
        "steady_examples_per_s_high": relative * 100 + 2,
        "model_ceiling_examples_per_s": 100.0,
        "speedup_vs_naive": 1.0, "speedup_vs_naive_low": 0.9, "speedup_vs_naive_high": 1.1,
    }  # fmt: skip
    return Row(
        pipeline=name,
        verdict=verdict,
        relative_rates=more.pop(
            "relative_rates",
            tuple(relative * math.exp(spread / relative * place / 4) for place in range(-4, 5)),
        ),
        rate_doubt=more.pop("rate_doubt", 0.0),
        stall_pct=stall,
        stall_pct_low=stall - 2,
        stall_pct_high=stall + 2,
        **{**usual, **more},
    )


def comparison(*rows: Row, **more: Any) -> Comparison:
    """A comparison of rows; `more` are its other fields."""
    usual: dict[str, Any] = {
        "headline": write_headline(rows), "best": rows[0].pipeline, "tied": tuple(find_tied(rows)),
        "undecided": tuple(find_undecided(rows)),
        "measure_again": tuple(find_measure_again(rows)),
        "drift_pct": 1.0, "baseline": find_baseline(rows).pipeline, "metric": rows[0].metric,
        "warning": None, "missing": {}, "machine": {"gpus": []}, "examples_digest": "d",
        "data_digest": "d", "checklist": (),
    }  # fmt: skip
    return Comparison(configurations=rows, **{**usual, **more})
