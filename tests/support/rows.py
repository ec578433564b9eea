"""Rows of a comparison as the report makes them, for tests that need only some of their values."""

from typing import Any

from throughline.results.comparison import Comparison, Row
from throughline.results.train import HeldOut


def row(name: str, rate: float = 100.0, stall: float = 0.0, **more: Any) -> Row:
    """A configuration that trained at a rate and stalled; `more` are its other fields."""
    usual: dict[str, Any] = {
        "plan": "read → batch", "examples": 1000, "verdict": "compute-bound", "cause": "none",
        "fix": "none", "note": "",
        "steady_examples_per_s": rate, "steady_examples_per_s_low": rate - 2,
        "steady_examples_per_s_high": rate + 2, "input_examples_per_s": 400.0,
        "model_examples_per_s": 100.0,
        "stall_pct": stall, "stall_pct_low": stall - 2, "stall_pct_high": stall + 2,
        "speedup_vs_naive": 1.0, "speedup_vs_naive_low": 0.9, "speedup_vs_naive_high": 1.1,
        "gain": None, "wait_ms_mean": 0.5, "first_batch_s": 0.1, "exchange_ms": None,
        "break_even_epoch": None, "train_examples_per_s": rate, "epochs_doubt": "",
        "fit_step_ms_p50": 1.0, "fit_step_ms_p95": 2.0, "fit_step_ms_p99": 3.0,
        "rss_mb_max": 800.0, "disk_read_mb": 1.0,
        "cpu_seconds_per_1k_examples": 0.1, "cpu_utilization_pct": 90.0,
        "gpu_utilization_pct_mean": None,
        "metric": "accuracy", "validation_examples": 5000, "val_metric": 0.9, "test_metric": None,
        "held_out": HeldOut(
            split="test", examples=1000, constant_metric=0.25, constant_stderr=0.0137
        ),
        "difference_mean": None, "difference_max": None, "mlflow_run_id": None,
    }  # fmt: skip
    return Row(pipeline=name, **{**usual, **more})


def comparison(*rows: Row, **more: Any) -> Comparison:
    """A comparison of rows, whose last is the best; `more` are its other fields."""
    usual: dict[str, Any] = {
        "headline": "`optimized` is faster.", "best": rows[-1].pipeline,
        "tied": (rows[-1].pipeline,), "undecided": (), "measure_again": (), "disturbed_by": "",
        "baseline": rows[0].pipeline, "metric": rows[0].metric,
        "warning": None, "missing": {}, "machine": {"gpus": []}, "examples_digest": "d",
        "data_digest": "d", "checklist": (),
    }  # fmt: skip
    return Comparison(configurations=rows, **{**usual, **more})
