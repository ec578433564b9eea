"""The row of an epoch in history.csv: its metrics by their columns, and how they are called in a
log and in MLflow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from throughline.shared.errors import UnknownModel

LONGEST_SHOWN = 40


def make_row(
    epoch: int, logs: Mapping[str, float], *, examples_per_s: float, learning_rate: float
) -> dict[str, float]:
    """The row of an epoch, from 0, whose `logs` are those of Keras; `learning_rate` is the one that
    its last step has used.
    """
    return {
        "epoch": epoch,
        **_name_columns(logs),
        "examples_per_s": examples_per_s,
        "learning_rate": learning_rate,
    }


def read_row(row: Mapping[str, Any]) -> dict[str, float]:
    """A row as a checkpoint holds it, in which numbers that are not finite are strings."""
    return {name: float(value) if isinstance(value, str) else value for name, value in row.items()}


def read_logs(row: Mapping[str, float]) -> dict[str, float]:
    """The logs of Keras that a row was made of."""
    return {
        column.removeprefix("train_"): value
        for column, value in row.items()
        if column.startswith(("train_", "val_"))
    }


def describe_row(row: Mapping[str, float]) -> str:
    """The loss and the other metrics of an epoch, and those of validation but its loss."""
    shown = {
        column.replace("train_", "").replace("val_", "validation "): value
        for column, value in row.items()
        if column.startswith(("train_", "val_")) and column != "val_loss"
    }
    return ", ".join(f"{name} {value:.4f}" for name, value in shown.items())


def name_metrics(row: Mapping[str, float]) -> dict[str, float]:
    """The metrics of an epoch under their MLflow names."""
    return {
        f"{split}/{name}": value
        for column, value in row.items()
        for split, _, name in [column.partition("_")]
        if split in ("train", "val")
    }


def read_rate(optimizer: Any, *, ahead: int) -> float:
    """The learning rate of the step of an optimizer that is so many steps `ahead` of the next one,
    as far as a schedule computes it; else that of now. NaN where there is none.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    schedule = getattr(inner, "_learning_rate", None)  # whose value of now is the public one
    if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
        steps = getattr(inner, "_iterations", inner.iterations)  # as it computes its own rate
        return float(np.asarray(schedule(steps + ahead)))
    return float(np.asarray(getattr(inner, "learning_rate", float("nan"))))


def _name_columns(values: Mapping[str, float]) -> dict[str, float]:
    """The metrics of an epoch by their columns: of training, then of validation, the loss first.

    Raises:
      UnknownModel: one is no number.
    """
    names = sorted(
        (name for name in values if name != "learning_rate"),
        key=lambda name: (name.startswith("val_"), not name.endswith("loss"), name),
    )
    return {
        name if name.startswith("val_") else f"train_{name}": _read_number(name, values[name])
        for name in names
    }


def _read_number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UnknownModel(
            f"train.callbacks: one of them puts {str(value)[:LONGEST_SHOWN]!r} into the logs of an"
            f" epoch as {name!r}, which is not one number; keep it in an attribute of the callback"
        ) from None
