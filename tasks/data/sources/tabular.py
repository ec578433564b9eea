"""Reading a table, CSV or Parquet, with errors that say what to do. Not a source itself: three of
them use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from tasks.data.manifest import SPLITS
from tasks.errors import DataNotFound, UnreadableSource, did_you_mean

TABLES = {".csv", ".tsv", ".parquet"}


def read_frame(path: Path, *, as_text: bool = False) -> pd.DataFrame:
    """Read the table at `path`; with `as_text` nothing is taken for a number."""
    if not path.is_file():
        raise DataNotFound(f"{path} does not exist; `data.path` must be a CSV or Parquet file")
    try:
        return (
            pq.read_table(path).to_pandas()
            if path.suffix == ".parquet"
            else pd.read_csv(
                path,
                sep="\t" if path.suffix == ".tsv" else ",",
                dtype=str if as_text else None,
                keep_default_na=True,
            )
        )
    except Exception as error:  # parsers of other people's files raise anything
        raise UnreadableSource(
            f"{path} is not a readable {'Parquet' if path.suffix == '.parquet' else 'CSV'} table:"
            f" {error}"
        ) from error


def check_columns(frame: pd.DataFrame, columns: Sequence[str], *, path: Path, keys: str) -> None:
    """Refuse a table that lacks a column; `keys` are the keys of params.yaml that name it."""
    for column in columns:
        if column not in frame.columns:
            known = [str(name) for name in frame.columns]
            named = (
                did_you_mean(column, known)
                if set(path.suffixes) & TABLES
                else f"it has {len(known)}, which are named for {', '.join(sorted(TABLES))} only."
            )
            raise UnreadableSource(f"{path}: no column {column}; {named} Set {keys}.")


def read_split(value: object) -> tuple[str | None, str | None]:
    """The split that a table names for a row, None where it leaves that open, and why it cannot be
    used, if so.
    """
    split = "" if bool(pd.isna(value)) else str(value).strip()
    if not split:
        return None, None
    return (
        (split, None)
        if split in SPLITS
        else (None, f"split {split} is not one of {', '.join(SPLITS)}")
    )


def numbers(frame: pd.DataFrame, columns: Sequence[str]) -> np.ndarray:
    """The columns as (rows, columns) float64; what is no number becomes NaN, what float32 cannot
    hold becomes infinite.
    """
    values = np.empty((len(frame), len(columns)), np.float64)
    for number, column in enumerate(columns):
        values[:, number] = np.asarray(pd.to_numeric(frame[column], errors="coerce"), np.float64)
    values[np.abs(values) > np.finfo(np.float32).max] = np.inf
    return values


def numeric_columns(
    frame: pd.DataFrame, named: Sequence[str], *, without: Sequence[str]
) -> list[str]:
    """The columns named, or all that hold numbers."""
    return list(named) or [
        str(name)
        for name in frame.columns
        if pd.api.types.is_numeric_dtype(frame[name]) and name not in without
    ]
