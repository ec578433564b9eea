"""Rows of a table to predict, and windows of a series. Columns are found by their names, categories
get the numbers of the training's vocabularies, empty cells the medians of its training split.
"""

from __future__ import annotations

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
    """The rows of a CSV or Parquet file, which may have other columns, too."""
    table = read_for(trained, path)
    values, reasons = code_rows(table, trained.spec.schema.columns)

    def items() -> Iterator[Example | Rejected]:
        for number, reason in enumerate(reasons):
            name = f"{path}:{number + 1}"
            if reason:
                yield Rejected(id=name, reason=reason)
            else:
                yield Example(id=name, value=values[number])

    return Examples(items=items(), total=len(table))


def read_for(trained: TrainedModel, path: Path) -> TextTable:
    """A table with the columns that a model sees, in the notation of the training's.

    Raises:
      UnreadableSource: it is none, or lacks a column.
    """
    columns = trained.spec.schema.columns
    table = read_table(path, read_as_trained(trained), trained=columns)
    check_columns(table, {"data.numeric": columns.names})
    note_all(path, table.describe_points(columns.names[: columns.numeric]))
    return table


def read_series(path: Path, trained: TrainedModel, wanted: Wanted) -> Examples:
    """The last window of a series in a CSV, Parquet or .npy file, or every one."""
    spec, feature = trained.spec, trained.spec.schema.input
    named = {} if path.suffix.lower() == ".npy" else {"numeric": list(feature.columns.names)}
    # Columns that the training left out need not be there.
    changed = {"path": str(path), "ignore": [], **named}
    settings = read_as_trained(trained).model_copy(update=changed)
    series = time_series.scan(settings, trained=feature.columns)
    note_all(path, series.warnings)
    steps, length = len(series.values), spec.window.length
    if series.values.shape[1:] != feature.shape:
        raise UnreadableSource(
            f"{path} has {series.values.shape[1]} columns; the model takes {feature.shape[-1]}"
        )
    if steps < length:
        raise UnreadableSource(f"{path} has {steps} time steps, and the model needs {length}")
    stride = spec.window.stride if wanted.every_window else steps
    starts = range(0 if wanted.every_window else steps - length, steps - length + 1, stride)
    return Examples(
        items=(
            Example(
                id=str(path), value=np.asarray(series.values[at : at + length]), row=at + length
            )
            for at in starts
        ),
        total=len(starts),
    )


def note_all(path: Path, warnings: Iterable[str]) -> None:
    """Say what of a file may not be meant."""
    for warning in warnings:
        note(f"predict: {path}: {warning}")


def read_as_trained(trained: TrainedModel) -> DataSettings:
    """How the training read its file, of which all is read now; where its numbers had commas, those
    of another file show by themselves what they have.
    """
    commas = trained.spec.schema.columns.decimal == ","
    changed = {"decimal": "auto"} if commas else {}
    return trained.spec.data.model_copy(update={"leave_out": [], **changed})
