"""One multivariate time series: CSV, Parquet, or .npy (time steps, columns), in the order of time.

Gaps cannot be rejected row by row, since windows would jump over them: a missing value is an error
that names its row.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from tasks.data.records import RecordSchema
from tasks.data.sources.base import Series
from tasks.data.sources.tabular import check_columns, numbers, numeric_columns, read_frame
from tasks.errors import DataNotFound, UnreadableSource
from tasks.settings import DataSettings


def scan(settings: DataSettings) -> Series:
    """Read the series at `data.path`.

    Raises:
      UnreadableSource: a value is missing, infinite or no number, or time does not increase; names
        row and column.
    """
    path = Path(settings.path)
    values, columns = _from_array(path) if path.suffix == ".npy" else _from_table(path, settings)
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        row, column = bad[0].tolist()
        raise UnreadableSource(
            f"{path}: row {row + 1}, column {columns[column]} is {values[row, column]}, and so are"
            f" {len(bad) - 1} more values; windows need every time step: fill the gaps or cut the"
            " series"
        )
    schema = RecordSchema(
        payload="series",
        shape=(len(columns),),
        dtype="float32",
        label="none",
        columns=tuple(columns),
    )
    return Series(values=values.astype(np.float32, copy=False), schema=schema)


def _from_array(path: Path) -> tuple[np.ndarray, list[str]]:
    try:
        values = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise DataNotFound(
            f"{path} does not exist; `data.path` must be a CSV, Parquet or .npy file"
        ) from error
    except (ValueError, OSError, EOFError) as error:
        raise UnreadableSource(
            f"{path} cannot be read ({error}); pickled arrays are refused, save plain ones with"
            " numpy.save"
        ) from error
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or values.dtype.kind not in "iuf":  # noqa: PLR2004 - time steps and columns
        raise UnreadableSource(
            f"{path} has dtype {values.dtype} and shape {values.shape}; needed are numbers (time"
            " steps, columns)"
        )
    return values, [f"column_{number}" for number in range(values.shape[1])]


def _from_table(path: Path, settings: DataSettings) -> tuple[np.ndarray, list[str]]:
    frame = read_frame(path)
    time = [settings.time_column] if settings.time_column else []
    check_columns(
        frame, [*time, *settings.numeric], path=path, keys="data.time_column and data.numeric"
    )
    if time:
        moments = frame[settings.time_column]
        moments = (
            moments
            if pd.api.types.is_numeric_dtype(moments)
            else pd.to_datetime(moments, errors="coerce", utc=True)
        )
        late = np.flatnonzero(~(moments.diff().iloc[1:] > moments.diff().iloc[1:] * 0).to_numpy())
        if len(late):
            raise UnreadableSource(
                f"{path}: {settings.time_column} does not increase in row {int(late[0]) + 2}; sort"
                " the table and drop doubled rows"
            )
    columns = numeric_columns(frame, settings.numeric, without=time)
    if not columns:
        raise UnreadableSource(f"{path}: no numeric column; set data.numeric")
    return numbers(frame, columns), columns
