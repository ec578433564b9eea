"""Examples as rows of a table: numeric columns as they are, categories as numbers after them, and
one label column.

Vocabularies are those of the whole table, in the order of spelling, so that a category seen only in
the test split keeps its place. A row with a missing or impossible value is rejected with its
reason.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from tasks.data.records import Label, RecordSchema
from tasks.data.sources.base import Arrays, Rejected
from tasks.data.sources.tabular import (
    check_columns,
    numbers,
    numeric_columns,
    read_frame,
    read_split,
)
from tasks.errors import UnreadableSource
from tasks.settings import DataSettings

MOST_FLOAT_CLASSES = 20  # different labels such as 3.0, which missing ones make of integers


def scan(settings: DataSettings) -> Arrays:
    """Read the table at `data.path`; an optional column `split` holds train, validation or test.

    What the label is, a class or a number to predict, is what `data.label_kind` says, or else
    follows from its column.
    """
    path = Path(settings.path)
    frame = read_frame(path)
    check_columns(
        frame,
        [settings.label_column, *settings.numeric, *settings.categorical],
        path=path,
        keys="data.label_column, numeric, categorical",
    )
    label = pd.Series(frame[settings.label_column])
    apart = [settings.label_column, "split", *settings.categorical]
    numeric = numeric_columns(frame, settings.numeric, without=apart)
    texts = [str(name) for name in frame.columns if not pd.api.types.is_numeric_dtype(frame[name])]
    categorical = settings.categorical or [name for name in texts if name not in [*apart, *numeric]]
    if not numeric and not categorical:
        raise UnreadableSource(
            f"{path}: no column is left to learn from besides the label {settings.label_column};"
            " set data.numeric or data.categorical"
        )
    kind = _label_kind(label, settings, path)
    vocabularies = [
        tuple(sorted(frame[name].dropna().astype(str).unique())) for name in categorical
    ]
    values = np.column_stack(
        [
            numbers(frame, numeric),
            *(
                _codes(pd.Series(frame[name]), words)
                for name, words in zip(categorical, vocabularies, strict=True)
            ),
        ]
    )
    columns = (*numeric, *categorical)
    named = (
        [read_split(value) for value in frame["split"]]
        if "split" in frame
        else [(None, None)] * len(frame)
    )
    reasons = [
        problem or reason
        for (_, problem), reason in zip(named, _reasons(values, columns, label), strict=True)
    ]
    usable = np.asarray([reason is None for reason in reasons], bool)
    ids = np.asarray([f"{number:08d}" for number in range(len(frame))])
    labels = (
        label[usable].astype(float).tolist()
        if kind == "number"
        else [_class(value) for value in label[usable]]
    )
    distinct = sorted(set(labels)) if kind == "class" else []
    return Arrays(
        values=values[usable].astype(np.float32),
        labels=labels,
        ids=ids[usable].tolist(),
        splits=[split for (split, _), used in zip(named, usable.tolist(), strict=True) if used],
        classes=sorted(distinct, key=_by_value),
        schema=RecordSchema(
            payload="raw",
            shape=(len(columns),),
            dtype="float32",
            label=kind,
            columns=tuple(columns),
            categories=tuple(vocabularies),
        ),
        rejected=[
            Rejected(id=f"row {number + 1}", reason=reason)
            for number, reason in enumerate(reasons)
            if reason is not None
        ],
    )


def _codes(column: pd.Series, vocabulary: tuple[str, ...]) -> np.ndarray:
    """Numbers of the categories in their vocabulary; NaN where there is none."""
    numbers = {word: number for number, word in enumerate(vocabulary)}
    return np.asarray(
        [numbers.get(str(value), np.nan) if not pd.isna(value) else np.nan for value in column],
        np.float64,
    )


def _reasons(values: np.ndarray, columns: tuple[str, ...], label: pd.Series) -> list[str | None]:
    """Why a row cannot be used, or None."""
    reasons: list[str | None] = [None] * len(values)
    for row, column in np.argwhere(~np.isfinite(values))[::-1].tolist():
        what = (
            "exceeds the range of float32"
            if np.isinf(values[row, column])
            else "is missing or no number"
        )
        reasons[row] = f"{columns[column]} {what}"
    for row in np.flatnonzero(label.isna().to_numpy()).tolist():
        reasons[row] = "label missing"
    if pd.api.types.is_float_dtype(label):
        for row in np.flatnonzero(
            np.abs(label.to_numpy(np.float64, na_value=np.nan)) > np.finfo(np.float32).max
        ).tolist():
            reasons[row] = "label exceeds the range of float32"
    return reasons


def _label_kind(label: pd.Series, settings: DataSettings, path: Path) -> Label:
    """A class is text, a boolean or a whole number. Fractions are numbers to predict, and so are
    whole numbers written with a decimal point where there are too many for classes.
    """
    if settings.label_kind == "number" and not pd.api.types.is_numeric_dtype(label):
        raise UnreadableSource(
            f"{path}: column {settings.label_column} holds text, and data.label_kind: number needs"
            " numbers; set data.label_kind: class, or name another data.label_column"
        )
    if settings.label_kind != "auto":
        return settings.label_kind
    if not pd.api.types.is_float_dtype(label):
        return "class"
    values = label.to_numpy(np.float64, na_value=np.nan)
    distinct = np.unique(values[np.isfinite(values)])
    whole = bool((distinct % 1 == 0).all())
    return "class" if whole and len(distinct) <= MOST_FLOAT_CLASSES else "number"


def _class(value: object) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _by_value(name: str) -> tuple[float, str]:
    """Numbers by value, words by spelling."""
    try:
        return float(name), name
    except ValueError:
        return float("inf"), name
