"""Explains why the times of a series do not increase from row to row, with a remedy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute

from throughline.data.tables.moments import as_numbers, read_moments
from throughline.data.tables.tabular import TextTable

pc: Any = pyarrow.compute  # its functions are made when it is imported
_OF_DAY = r"^\d{1,2}[:.]\d{2}([:.]\d{2})*( ?[AaPp][Mm])?$"
_STILL_LATE = 0.1
_HOUR = re.compile(r"h|hr|he|hours?|stunde", re.IGNORECASE)
_REPEATED = 1.5  # rows for each time that suggest several series
_CHANGES = {3, 4, 10, 11}  # months in which summer time ends
_NIGHT, _SUNDAY = 4, 6
_MOST_COLUMNS, _MOST_ROWS = 12, 100_000  # most columns and rows searched for names of series


def explain_late(table: TextTable, time: str, readings: Sequence[pd.Series]) -> str:
    """Return a remedy for rows that are not after the row before in any reading of `time`."""
    apart = {time, *table.settings.time_columns}
    others = {name: cells for name, cells in table.columns.items() if name not in apart}
    late = min(map(_count_late, readings))
    for name in others if len(table.settings.time_columns) == 1 else ():
        if _is_time_of_day(table, name, late):
            (date,) = table.settings.time_columns
            return f"{name} holds the time of day: set data.time_column: [{date}, {name}]"
    if any(map(_is_hour_twice, readings)):
        return (
            "an hour occurs twice, as where summer time ends; write times in UTC, or with their"
            " offset, as 2026-10-25 02:00+01:00"
        )
    if keys := _find_keys(others, readings[0]):
        shown, date = " and ".join(keys), " ".join(table.settings.time_columns)
        if len(keys) == 1 and _HOUR.fullmatch(keys[0]):
            return f"{shown} tells the hour: write both into one column, as 2026-01-31 13:00"
        return (
            f"there are several series, one for each value of {shown}; keep the rows of one, or"
            f" make columns of them: in pandas, table.pivot(index={date!r}, columns={[*keys]!r},"
            " values=…)"
        )
    return "sort the table and drop doubled rows"


def join_times(table: TextTable, names: Sequence[str]) -> pa.LargeStringArray:
    """Join the cells of several columns row by row, such as date and time of day (also 18.30)."""
    first, *more = names
    cells = table.columns[first]
    for each in more:
        time = pc.replace_substring_regex(table.columns[each], r"^(\d{1,2})\.(\d{2})\b", r"\1:\2")
        time = pc.replace_substring_regex(time, r"^(\d{1,2}:\d{2})\.(\d{2})\b", r"\1:\2")
        cells = pc.binary_join_element_wise(cells, time, pa.scalar(" ", pa.large_string()))
    return cells


def _count_late(moments: pd.Series) -> int:
    return int((np.diff(as_numbers(moments)) <= 0).sum())


def _is_time_of_day(table: TextTable, name: str, late: int) -> bool:
    """Return whether a column holds times of day that put nearly all `late` rows in order."""
    if not pc.all(pc.match_substring_regex(table.columns[name], _OF_DAY)).as_py():
        return False
    joined = read_moments(join_times(table, [*table.settings.time_columns, name]).to_pylist())
    return any(not each.isna().any() and _count_late(each) <= _STILL_LATE * late for each in joined)


def _is_hour_twice(moments: pd.Series) -> bool:
    """Return whether time goes back only at night on Sundays, by less than an hour."""
    if moments.dtype.kind != "M" or moments.isna().any():
        return False
    steps = moments.diff().dt.total_seconds().to_numpy()
    late = pd.DatetimeIndex(moments[steps <= 0])
    return bool(
        (steps[steps <= 0] > -3600).all()  # noqa: PLR2004 - seconds
        and late.month.isin(_CHANGES).all()
        and (late.day_of_week == _SUNDAY).all()
        and (late.hour < _NIGHT).all()
        and (steps[steps > 0] <= 3600).any()  # noqa: PLR2004 - seconds
    )


def _find_keys(columns: Mapping[str, pa.LargeStringArray], moments: pd.Series) -> Sequence[str]:
    """Return the column, or two, whose values tell series apart; () if there is none."""
    times = as_numbers(moments)[:_MOST_ROWS]
    late = np.diff(times) <= 0
    repeated = len(times) >= _REPEATED * len(np.unique(times))
    codes: dict[tuple[str, ...], np.ndarray] = {}
    for name, cells in columns.items():
        encoded = cells.slice(0, len(times)).dictionary_encode()
        if 1 < len(encoded.dictionary) <= len(times) / 2 and len(codes) < _MOST_COLUMNS:
            codes[(name,)] = encoded.indices.to_numpy().astype(np.int64)
    pairs = {
        (*one, *other): codes[one] * (codes[other].max() + 1) + codes[other]
        for one, other in combinations(codes, 2)
    }
    for choices in (codes, pairs):
        fitting = {}
        for names, code in choices.items():
            changes, series = np.diff(code) != 0, len(np.unique(code))
            if series > len(times) / 2 or not (
                changes[late].all() and (repeated or late.sum() == changes.sum())
            ):
                continue
            order = np.argsort(code, kind="stable")
            same, steps = np.diff(code[order]) == 0, np.diff(times[order])
            if same.any() and (steps[same] > 0).all():
                fitting[names] = series
        if fitting:
            return min(fitting, key=lambda names: fitting[names])
    return ()
