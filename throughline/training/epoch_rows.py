"""An epoch's row of history.csv, and the names of its values in the log and in MLflow."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from throughline.shared.errors import UnknownModel

LONGEST_SHOWN = 40


def make_row(
    epoch: int, logs: Mapping[str, float], *, examples_per_s: float, learning_rate: float
) -> dict[str, float]:
    """Make an epoch's row, from 0; columns of training come first, the loss first in each part."""
    names = sorted(
        (name for name in logs if name != "learning_rate"),
        key=lambda name: (name.startswith("val_"), not name.endswith("loss"), name),
    )
    columns = {
        name if name.startswith("val_") else f"train_{name}": _read_number(name, logs[name])
        for name in names
    }
    rates = {"examples_per_s": examples_per_s, "learning_rate": learning_rate}
    return {"epoch": epoch, **columns, **rates}


def read_row(row: Mapping[str, Any]) -> dict[str, float]:
    """Read a row from a checkpoint, in which numbers that are not finite are strings."""
    return {name: float(value) if isinstance(value, str) else value for name, value in row.items()}


def read_logs(row: Mapping[str, float]) -> dict[str, float]:
    return {column.removeprefix("train_"): value for column, value in _metrics(row)}


def describe_row(row: Mapping[str, float]) -> str:
    """Describe the metrics of an epoch, except the validation loss."""
    shown = {
        column.replace("train_", "").replace("val_", "validation "): value
        for column, value in _metrics(row)
        if column != "val_loss"
    }
    return ", ".join(f"{name} {value:.4f}" for name, value in shown.items())


def name_metrics(row: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of a row under their names in MLflow."""
    return {column.replace("_", "/", 1): value for column, value in _metrics(row)}


def _metrics(row: Mapping[str, float]) -> list[tuple[str, float]]:
    return [item for item in row.items() if item[0].startswith(("train_", "val_"))]


def read_rate(optimizer: Any, *, ahead: int) -> float:
    """Return the learning rate `ahead` steps after the next one; NaN if the optimizer has none."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    schedule = getattr(inner, "_learning_rate", None)  # `learning_rate` is its current value
    if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
        steps = getattr(inner, "_iterations", inner.iterations)  # the rate follows from these
        return float(np.asarray(schedule(steps + ahead)))
    return float(np.asarray(getattr(inner, "learning_rate", float("nan"))))


def _read_number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UnknownModel(
            f"train.callbacks: one of them puts {str(value)[:LONGEST_SHOWN]!r} into the logs of an"
            f" epoch as {name!r}, which is not one number; keep it in an attribute of the callback"
        ) from None
