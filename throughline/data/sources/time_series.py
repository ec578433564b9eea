"""One multivariate time series: CSV, Parquet, or .npy (time steps, columns), in the order of time.

A missing value is an error that names its row: windows would jump over rejected rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute

from throughline.data.encodings.arrays import array_feature
from throughline.data.found import ColumnReading, Series
from throughline.data.tables.column_kinds import (
    EXACT_INTEGER,
    Kind,
    describe_column,
    explain_no_number,
    find_merging,
    find_problem,
    guess_kind,
    refuse_columns,
    refuse_wide,
)
from throughline.data.tables.moments import (
    GAP,
    explain_late,
    find_gaps,
    find_late,
    find_time_problem,
    join_times,
    read_digits,
    read_moments,
)
from throughline.data.tables.number_text import explain_notation
from throughline.data.tables.odd_values import find_sentinels, find_units
from throughline.data.tables.table_columns import MARK_MISSING, check_marks
from throughline.data.tables.tabular import (
    TextTable,
    check_all,
    check_columns,
    read_table,
)
from throughline.plan.schema import Schema, TableColumns
from throughline.settings import DataSettings
from throughline.shared.errors import DataNotFound, UnreadableSource

pc: Any = pyarrow.compute  # its functions are made when it is imported
_LEAST_FALLING = 3  # fewest rows that show an order


def scan(settings: DataSettings, *, trained: TableColumns | None = None) -> Series:
    """Read the series at `data.path`; `trained` is as in `read_table`."""
    path = Path(settings.path)
    table, gaps = None, []
    if path.is_dir():
        raise UnreadableSource(f"{path} is a folder", "set data.path to the file of one series")
    if path.suffix.lower() == ".npy":
        values, columns = _from_array(path)
    else:
        table = read_table(path, settings, trained=trained)
        values, columns, gaps = _from_table(table)
    with np.errstate(over="ignore"):  # what float32 cannot hold is infinite, and refused below
        stored = values.astype(np.float32, copy=False)
    bad = np.argwhere(~np.isfinite(stored))
    if len(bad):
        row, column = bad[0].tolist()
        cell = table.columns[columns[column]][row].as_py() if table else ""
        what = (
            explain_no_number(table, columns[column], row)
            if table
            else f"{columns[column]} is {values[row, column]}"
        )
        more = f", and {len(bad) - 1:,} more values are no numbers, too" if len(bad) > 1 else ""
        remedy = (
            "set data.missing: interpolate or previous for empty cells between others, or cut the"
            " series"
        )
        if cell and np.isnan(values[row, column]):
            remedy = f"{MARK_MISSING}; then {remedy}"
        raise UnreadableSource(
            f"{path}: row {row + 1}, column {what}{more}; windows need every time step",
            "" if explain_notation(cell) else remedy,
        )
    names = TableColumns(names=tuple(columns))
    if table:
        names = replace(names, decimal=table.decimal, thousands=table.thousands)
    schema = Schema(features=(array_feature("series", (len(columns),), "float32", names),))
    readings = []
    if table:
        roles: dict[str, Kind] = dict.fromkeys(settings.time_columns, "time")
        roles |= dict.fromkeys(columns, "number")
        readings = [
            describe_column(table, name, roles.get(name, "ignored")) for name in table.columns
        ]
    return Series(
        values=stored,
        schema=schema,
        readings=readings,
        dialect=table.describe_dialect() if table else (),
        warnings=[
            *table.describe_unread(),
            *table.describe_points(columns),
            *_name_left_out(readings, settings),
            *gaps,
            *find_sentinels(table, ((name, table.numbers(name)) for name in columns)),
        ]
        if table
        else (),
    )


def _name_left_out(readings: Sequence[ColumnReading], settings: DataSettings) -> list[str]:
    names = [
        each.name
        for each in readings
        if each.kind == "ignored"
        and each.distinct
        and each.name not in settings.ignore
        and not settings.numeric
    ]
    return (
        [f"not numeric and left out: {', '.join(names)} (data.ignore says that it is meant)"]
        if names
        else []
    )


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
    if (
        values.dtype.kind in "iu"
        and (values.astype(np.float32).astype(values.dtype) != values).any()
    ):
        raise UnreadableSource(
            f"{path} holds whole numbers from {EXACT_INTEGER:,} on, of which float32 keeps the"
            " first seven digits; leave such columns out, or save floats if rounded ones will do"
        )
    columns = [f"column_{number}" for number in range(values.shape[1])]
    for name, column in zip(columns, values.T, strict=True):
        if values.dtype == np.float64 and (merging := find_merging(column)):
            raise UnreadableSource(
                f"{path}: {name} {merging}, or save float32 if rounded ones will do"
            )
    return values, columns


def _from_table(table: TextTable) -> tuple[np.ndarray, list[str], list[str]]:
    settings = table.settings
    if not (settings.time_columns or settings.numeric):
        refuse_wide(table)
    named_ones = {*settings.time_columns, *settings.numeric}
    if table.columns.keys() >= named_ones and (units := find_units(table, _list_numeric(table))):
        raise UnreadableSource(
            f"{table.path}: row {units[0] + 1} holds units or a second header"
            f" ({', '.join(cells[0].as_py() for cells in table.columns.values())})",
            "remove it" if len(units) == 1 else f"remove the first {len(units)} rows",
        )
    named = {
        "data.time_column": settings.time_columns,
        "data.numeric": settings.numeric,
        "data.ignore": settings.ignore,
    }
    _, _, late, columns, _ = check_all(
        table.path,
        partial(check_columns, table, named),
        partial(check_marks, table.path, settings, table.columns),
        partial(_check_times, table),
        partial(_choose_columns, table),
        partial(_refuse_unnamed_times, table),
    )
    filled = [_fill_gaps(table, name) for name in columns]
    warnings = [*late, *(warning for _, warning in filled if warning)]
    return np.column_stack([values for values, _ in filled]), columns, warnings


def _check_times(table: TextTable) -> list[str]:
    names = table.settings.time_columns
    return _check_time(*_join_times(table)) if names and table.columns.keys() >= {*names} else []


def _refuse_unnamed_times(table: TextTable) -> None:
    """Refuse a series whose times fall, if they are in a column that nobody named."""
    settings = table.settings
    if not settings.time_columns:
        for name in table.columns.keys() - {*_list_numeric(table), *settings.ignore}:
            _refuse_reversed(table, name, read_moments(table.cells(name)))


def _join_times(table: TextTable) -> tuple[TextTable, str]:
    """Return the table with one column of times, joined from several if needed, and its name."""
    first, *more = table.settings.time_columns
    if not more:
        return table, first
    name, cells = f"{first} {' '.join(more)}", join_times(table, [first, *more])
    return replace(table, columns={**table.columns, name: cells}), name


def _fill_gaps(table: TextTable, name: str) -> tuple[np.ndarray, str]:
    """Return a column (rows,) with empty cells filled as `data.missing` says, and a warning.

    Cells before the first number or after the last one stay NaN.
    """
    values, way = table.numbers(name), table.settings.missing_in(name)
    empty = np.asarray(pc.equal(table.columns[name], ""), bool)
    known = np.flatnonzero(np.isfinite(values))
    if not empty.any() or way not in ("interpolate", "previous") or not len(known):
        return values, ""
    rows = np.flatnonzero(empty)
    rows = rows[(rows > known[0]) & (rows < known[-1])]
    filled, after = values.copy(), np.searchsorted(known, rows)
    previous = values[known[after - 1]]
    filled[rows] = previous if way == "previous" else np.interp(rows, known, values[known])
    longest = int(np.max(known[after] - known[after - 1], initial=1)) - 1
    return filled, (
        f"{len(rows):,} empty cells of {name} are filled ({way}), at most {longest:,} in a row"
    )


def _list_numeric(table: TextTable) -> list[str]:
    settings = table.settings
    return settings.numeric or [
        name
        for name in table.columns
        if name not in [*settings.time_columns, *settings.ignore]
        and guess_kind(table, name) == "number"
    ]


def _choose_columns(table: TextTable) -> list[str]:
    columns = _list_numeric(table)
    if table.settings.numeric:
        return columns
    if not columns:
        raise UnreadableSource(f"{table.path}: no numeric column", "set data.numeric")
    doubts = {name: doubt for name in columns if (doubt := find_problem(table, name, "number"))}
    times = [] if table.settings.time_columns else ["data.time_column names the column of times"]
    refuse_columns(table, doubts, *times)
    return columns


def _check_time(table: TextTable, name: str) -> list[str]:
    """Refuse times that do not increase; return warnings if rows seem to be missing."""
    cells = table.cells(name)
    if guess_kind(table, name) == "number":
        try:  # float64 cannot tell nanoseconds of these years apart
            moments = np.asarray(table.columns[name].cast(pa.int64()))
        except pa.ArrowInvalid:
            moments = table.numbers(name)
        whole = np.isfinite(moments).all() and not (moments % 1).any()
        written = read_digits(moments) if whole else None
        readings = [pd.Series(moments) if written is None else written]
        problem = find_late(readings[0])
    else:
        readings = read_moments(cells)
        problem = find_time_problem(readings)
    _refuse_reversed(table, name, readings)
    if problem is None:
        gaps = min(map(find_gaps, readings), key=len)
        return [_describe_gaps(name, cells, gaps)] if len(gaps) else []
    row = problem.row + 1
    if problem.unreadable:
        cell = cells[problem.row]
        midnight = "midnight as 00:00 of the next day" if re.search(r"\b24[:.]00", cell) else ""
        raise UnreadableSource(
            f"{table.path}: {name} in row {row} is {cell!r}, neither a number nor a date",
            f"write {midnight or 'times as 2026-01-31 13:00'}",
        )
    if problem.two_ways:
        raise UnreadableSource(
            f"{table.path}: {name} holds dates that read several ways (day, month or year first),"
            f" and by one of these does not increase in row {row} ({cells[problem.row]})",
            "write dates as 2026-01-31",
        )
    advice = explain_late(table, name, readings)
    raise UnreadableSource(f"{table.path}: {name} does not increase in row {row}; {advice}")


def _refuse_reversed(table: TextTable, name: str, readings: Sequence[pd.Series]) -> None:
    """Refuse a series whose times fall from row to row: it would be learned backwards."""
    if table.rows >= _LEAST_FALLING and all(
        find_late(each.iloc[::-1]) is None for each in readings
    ):
        cells = table.cells(name)
        raise UnreadableSource(
            f"{table.path}: {name} falls from row to row, from {cells[0]} to {cells[-1]}: the"
            " newest row comes first",
            f"turn the rows round, and set data.time_column: {name}",
        )


def _describe_gaps(name: str, cells: Sequence[str], gaps: np.ndarray) -> str:
    first = int(gaps[0])
    count = f"{len(gaps):,} times more" if len(gaps) > 1 else "once more"
    return (
        f"{name} grows {count} than {GAP} times as much as it does from most rows to the next,"
        f" first before row {first + 1} ({cells[first - 1]}, {cells[first]}): rows are missing"
        " there, or times are not regular, and windows take rows for regular steps"
    )
