"""Rows of a table, or windows of a series, to predict, coded as in training."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from throughline.data.found import Rejected
from throughline.data.sources import time_series
from throughline.data.tables.table_columns import code_rows
from throughline.data.tables.tabular import TextTable, check_columns, read_table
from throughline.models.inference import TrainedModel
from throughline.prediction.examples import Example, Examples, Wanted
from throughline.settings import DataSettings
from throughline.shared.errors import UnreadableSource
from throughline.shared.progress import note


def read_rows(path: Path, trained: TrainedModel, wanted: Wanted) -> Examples:
    """Read the rows of a CSV or Parquet file, which may have further columns."""
    table = read_for(trained, path)
    values, reasons = code_rows(table, trained.spec.schema.columns)

    def items() -> Iterator[Example | Rejected]:
        for number, (value, reason) in enumerate(zip(values, reasons, strict=True), start=1):
            name = f"{path}:{number}"
            yield Rejected(id=name, reason=reason) if reason else Example(id=name, value=value)

    return Examples(items=items(), total=len(table))


def read_for(trained: TrainedModel, path: Path) -> TextTable:
    """Read a table with the columns that a model takes, as in training, or UnreadableSource."""
    columns = trained.spec.schema.columns
    table = read_table(path, read_as_trained(trained), trained=columns)
    check_columns(table, {"data.numeric": columns.names})
    note_all(path, table.describe_points(columns.names[: columns.numeric]))
    return table


def read_series(path: Path, trained: TrainedModel, wanted: Wanted) -> Examples:
    """Read the last window of a series (CSV, Parquet or .npy), or every window without a gap."""
    spec, feature = trained.spec, trained.spec.schema.input
    named = {} if path.suffix.lower() == ".npy" else {"numeric": list(feature.columns.names)}
    # Columns that the training left out may be missing.
    changed = {"path": str(path), "ignore": [], **named}
    settings = read_as_trained(trained).model_copy(update=changed)
    series = time_series.scan(settings, trained=feature.columns)
    note_all(path, series.warnings)
    steps, length = len(series.values), spec.window.length
    if series.values.shape[1:] != feature.shape:
        raise UnreadableSource(
            f"{path} has {series.values.shape[1]} columns; give {feature.shape[-1]}, as in training"
        )
    if steps < length:
        raise UnreadableSource(f"{path} has {steps} time steps, but the model needs {length}")
    stride = spec.window.stride if wanted.every_window else steps
    starts = np.arange(0 if wanted.every_window else steps - length, steps - length + 1, stride)
    first, last = (
        np.searchsorted(series.cuts, each, "right") for each in (starts, starts + length - 1)
    )
    starts = starts[first == last].tolist()
    if not starts:
        raise UnreadableSource(
            f"{path}: the model needs {length} successive time steps"
            f" {'' if wanted.every_window else 'at the end '}without a missing one"
        )
    ends = ((at + length, np.asarray(series.values[at : at + length])) for at in starts)
    items = (Example(id=str(path), value=value, row=end) for end, value in ends)
    return Examples(items=items, total=len(starts))


def note_all(path: Path, warnings: Iterable[str]) -> None:
    for warning in warnings:
        note(f"predict: {path}: {warning}")


def read_as_trained(trained: TrainedModel) -> DataSettings:
    """Return the settings of the training's data, without `leave_out`; no comma is presumed."""
    commas = trained.spec.schema.columns.decimal == ","
    changed = {"decimal": "auto"} if commas else {}
    return trained.spec.data.model_copy(update={"leave_out": [], **changed})
