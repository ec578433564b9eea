"""Rows of a table to predict, and windows of a series. Columns are found by their names, categories
get the numbers of the training's vocabularies.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from tasks.data.sources import time_series
from tasks.data.sources.base import Rejected
from tasks.data.sources.tabular import check_columns, read_frame
from tasks.errors import UnreadableSource
from tasks.prediction.examples import Example, Examples, Wanted
from tasks.training.inference import TrainedModel


def read_rows(path: Path, trained: TrainedModel, wanted: Wanted) -> Examples:
    """The rows of a CSV or Parquet file, which may have other columns, too."""
    schema = trained.spec.schema
    frame = read_frame(path, as_text=True)
    check_columns(frame, schema.columns, path=path, keys="the header of the table")
    values, reasons = code_rows(frame, schema.columns, schema.categories)

    def items() -> Iterator[Example | Rejected]:
        for number, reason in enumerate(reasons):
            name = f"{path}:{number + 1}"
            if reason:
                yield Rejected(id=name, reason=reason)
            else:
                yield Example(id=name, value=values[number])

    return Examples(items=items(), total=len(frame))


def code_rows(
    frame: pd.DataFrame, columns: tuple[str, ...], categories: tuple[tuple[str, ...], ...]
) -> tuple[np.ndarray, list[str]]:
    """Rows as (rows, columns) float32, the categories of the last columns as numbers; and why a row
    cannot be used, empty where it can.
    """
    reasons, values = [""] * len(frame), np.zeros((len(frame), len(columns)), np.float64)
    numeric = len(columns) - len(categories)
    for place, name in enumerate(columns):
        cells = [None if pd.isna(cell) else str(cell).strip() for cell in frame[name]]
        if place < numeric:
            coded = pd.to_numeric(pd.Series(cells), errors="coerce").to_numpy(np.float64, copy=True)
            coded[np.abs(coded) > np.finfo(np.float32).max] = np.nan
            expected = "no number"
        else:
            words = {word: number for number, word in enumerate(categories[place - numeric])}
            coded = np.asarray([words.get(cell or "", np.nan) for cell in cells], np.float64)
            expected = "a category that the training has not seen"
        for row in np.flatnonzero(~np.isfinite(coded)).tolist():
            cell = cells[row]
            reasons[row] = reasons[row] or (
                f"{name} is {cell!r}, {expected}" if cell else f"{name} is missing"
            )
        values[:, place] = coded
    return values.astype(np.float32), reasons


def read_series(path: Path, trained: TrainedModel, wanted: Wanted) -> Examples:
    """The last window of a series in a CSV, Parquet or .npy file, or every one."""
    spec = trained.spec
    named = {} if path.suffix == ".npy" else {"numeric": list(spec.schema.columns)}
    series = time_series.scan(spec.data.model_copy(update={"path": str(path), **named}))
    steps, length = len(series.values), spec.window.length
    if series.values.shape[1:] != spec.schema.shape:
        raise UnreadableSource(
            f"{path} has {series.values.shape[1]} columns; the model takes {spec.schema.shape}"
        )
    if steps < length:
        raise UnreadableSource(
            f"{path} has {steps} time steps; the model needs window.length = {length}"
        )
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
