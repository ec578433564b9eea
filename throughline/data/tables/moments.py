"""Reads dates and times from text, and explains why they do not increase from row to row.

31.01.2026 has its day first. In 01/02/2026 either number may be the month, and in 26-01-02 several
may be the year. Other rows rule out readings; if several are left, they must agree.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NoReturn

import numpy as np
import pandas as pd
import pyarrow as pa

from throughline.data.tables.column_kinds import guess_kind
from throughline.data.tables.number_text import matches, pc
from throughline.data.tables.odd_values import TOTAL
from throughline.data.tables.tabular import TextTable
from throughline.shared.errors import UnreadableSource

_NUMBERS = (
    r"^(?P<first>\d{1,2})(?P<mark>[./-])(?P<second>\d{1,2})(?P=mark)(?P<year>\d{4}|\d{2})"
    r"(?P<rest>\D.*)?$"
)
_DIGITS = {6: "%Y%m", 8: "%Y%m%d", 10: "%Y%m%d%H", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
GAP = 1.5  # times the median step; the longest month has 1.02 times the median
_LEAST_FALLING = 3  # fewest rows that show an order
_CENTURY_TURN = 69  # two-digit years from here on are 19xx, as with strptime's %y
_OF_DAY = r"^\d{1,2}[:.]\d{2}([:.]\d{2})*( ?[AaPp][Mm])?$"
_STILL_LATE = 0.1
_ALIKE = 0.75  # of the longest length, as February has 28 of 31 days
_HOUR = re.compile(r"h|hr|he|hours?|stunde", re.IGNORECASE)
_REPEATED = 1.5  # rows per time that suggest several series
_CHANGES = {3, 4, 10, 11}  # months in which summer time ends
_NIGHT, _SUNDAY = 4, 6
_MOST_COLUMNS, _MOST_ROWS = 12, 100_000  # most columns and rows searched for names of series


@dataclass(frozen=True, kw_only=True)
class TimeProblem:
    """The first `row` (from 0) that is not a time (`unreadable`), or not after the row before.

    With `two_ways`, another way to read the times puts all rows in order.
    """

    row: int
    unreadable: bool = False
    two_ways: bool = False


def check_times(table: TextTable) -> tuple[np.ndarray, list[str]]:
    """Refuse unreadable, ambiguous or non-increasing times; return rows after gaps, and a warning.

    Several columns of times, such as date and time of day, are read as one.
    """
    names = table.settings.time_columns
    if not names or not table.columns.keys() >= {*names}:
        return np.empty(0, int), []
    name = " ".join(names)
    if len(names) > 1:
        table = replace(table, columns={**table.columns, name: _join_times(table, names)})
    cells = table.cells(name)
    if guess_kind(table, name) == "number":
        try:  # float64 cannot tell nanoseconds of these years apart
            moments = np.asarray(table.columns[name].cast(pa.int64()))
        except pa.ArrowInvalid:
            moments = table.numbers(name)
        written = _read_whole(moments)
        readings = [pd.Series(moments) if written is None else written]
    else:
        readings = read_moments(cells)
    _refuse_reversed(table, name, readings)
    if problem := find_time_problem(readings):
        _refuse_times(table, name, readings, problem, cells[problem.row])
    gaps = min(map(_find_gaps, readings), key=len)
    if not len(gaps):
        return gaps, []
    first = int(gaps[0])
    count = f"{len(gaps):,} steps" if len(gaps) > 1 else "1 step"
    return gaps, [
        f"{name} has {count} longer than {GAP} times the median, first before row {first + 1}"
        f" ({cells[first - 1]}, {cells[first]}): rows are missing there, or times are not regular,"
        " but windows treat rows as regular steps (data.missing: cut keeps windows from crossing"
        " such places)"
    ]


def _refuse_times(
    table: TextTable, name: str, readings: Sequence[pd.Series], problem: TimeProblem, cell: str
) -> NoReturn:
    row = problem.row + 1
    if problem.unreadable:
        remedy = "write times as 2026-01-31 13:00"
        if TOTAL.fullmatch(cell):
            remedy = "remove this row if it sums up others"
        elif re.search(r"\b24[:.]00", cell):
            remedy = "write midnight as 00:00 of the next day"
        what = f"in row {row} is {cell!r}, neither a number nor a date"
    elif problem.two_ways:
        what = (
            "holds dates that can be read in several ways (day, month or year first), and in one"
            f" of them does not increase in row {row} ({cell})"
        )
        remedy = "write dates as 2026-01-31"
    else:
        what = f"does not increase in row {row}"
        remedy = _explain_late(table, name, readings)
    raise UnreadableSource(f"{table.path}: {name} {what}", remedy)


def check_unnamed_times(table: TextTable, names: Sequence[str]) -> list[str]:
    """Refuse columns of times that no parameter names if they go back; warn of the others.

    Numbers are times if all are dates (202601), or if they count the steps of several series.
    """
    times = []
    for name in names:
        cells = table.cells(name)
        readings = read_moments(cells)
        if guess_kind(table, name) == "number":
            written = _read_whole(table.numbers(name))
            if written is None or written.nunique() == 1:
                continue
            readings = [written]
        _refuse_reversed(table, name, readings)
        if readings[0].isna().any():
            continue
        times.append(name)
        back = [np.flatnonzero(np.diff(_as_numbers(each)) < 0) for each in readings]
        if all(map(len, back)) and not matches(table.columns[name], _OF_DAY).all():
            row = int(max(each[0] for each in back)) + 1
            raise UnreadableSource(
                f"{table.path}: {name} goes back in row {row + 1}, from {cells[row - 1]} to"
                f" {cells[row]}; windows take rows in file order",
                f"set data.time_column: {name}; or data.ignore: [{name}] if the order is right",
            )
    if not times:
        for name in names:
            _refuse_counts(table, name)
        return []
    key = times[0] if len(times) == 1 else f"[{', '.join(times)}]"
    return [
        f"no parameter names the column of times, so rows that are missing or late are not"
        f" noticed: set data.time_column: {key}, or data.ignore: [{', '.join(times)}]"
    ]


def _refuse_counts(table: TextTable, name: str) -> None:
    """Refuse a column that counts the steps of several series, one below the other.

    Hours and days start again after almost equal lengths, so they do not count such steps.
    """
    values = table.numbers(name)
    steps = np.diff(values)
    starts = np.flatnonzero(steps < 0) + 1
    if len(starts) < _LEAST_FALLING or len({*values[starts], values[0]}) > 1:
        return
    rising = np.unique(np.delete(steps, starts - 1))
    lengths, counts = np.unique(np.diff(starts, prepend=0), return_counts=True)
    alike = 2 * counts.max() >= counts.sum() or lengths[0] > _ALIKE * lengths[-1]
    if len(rising) != 1 or not rising[0] > 0 or alike:
        return
    others = {one: cells for one, cells in table.columns.items() if one != name}
    if keys := _find_keys(others, pd.Series(values)):
        raise UnreadableSource(
            f"{table.path}: {name} starts again in row {starts[0] + 1}:"
            f" {_explain_series(name, keys)}",
            f"or set data.ignore: [{name}] if all rows are one series",
        )


def _refuse_reversed(table: TextTable, name: str, readings: Sequence[pd.Series]) -> None:
    """Refuse a series whose times fall from row to row: it would be learned backwards."""
    if table.rows >= _LEAST_FALLING and all(
        _find_late(each.iloc[::-1]) is None for each in readings
    ):
        cells = table.cells(name)
        raise UnreadableSource(
            f"{table.path}: {name} falls from row to row, from {cells[0]} to {cells[-1]}: the"
            " newest row comes first",
            f"reverse the rows, and set data.time_column: {name}",
        )


def find_time_problem(readings: Sequence[pd.Series]) -> TimeProblem | None:
    """Return the first row that is not a time or not after the row before, or None.

    The reading with the longest start in order decides; None only if all readings are in order.
    """
    problems = [problem for reading in readings if (problem := _find_late(reading))]
    if not problems:
        return None
    last = max(problems, key=lambda problem: problem.row)
    return replace(last, two_ways=len(problems) < len(readings))


def _find_late(moments: pd.Series) -> TimeProblem | None:
    """Return the first row that is not a time or, if all are, the first that does not increase."""
    lacking = moments.isna().to_numpy()
    if lacking.any():
        return TimeProblem(row=int(np.argmax(lacking)), unreadable=True)
    values = _as_numbers(moments)
    late = values[1:] <= values[:-1]
    return TimeProblem(row=int(np.argmax(late)) + 1) if late.any() else None


def _read_whole(numbers: np.ndarray) -> pd.Series | None:
    """Read whole numbers (rows,), such as 20260131 and 202601, as dates; None if that fails."""
    if not np.isfinite(numbers).all() or (numbers % 1).any():
        return None
    texts = pd.Series(numbers).astype("int64").astype(str)
    length = len(texts.iloc[0]) if len(texts) else 0
    if length not in _DIGITS or not texts.str.fullmatch(rf"(19|20)\d{{{length - 2}}}").all():
        return None
    moments = pd.to_datetime(texts, format=_DIGITS[length], errors="coerce", utc=True)
    return None if moments.isna().any() else moments


def _find_gaps(moments: pd.Series) -> np.ndarray:
    """Return the rows (gaps,) that follow a long step, so that rows seem to be missing."""
    steps = np.diff(_as_numbers(moments))
    return np.flatnonzero(steps > GAP * np.median(steps)) + 1 if len(steps) else np.empty(0, int)


def _as_numbers(moments: pd.Series) -> np.ndarray:
    # For moments with a time zone, `to_numpy` alone would create objects.
    return (moments.astype("int64") if moments.dtype.kind == "M" else moments).to_numpy()


def read_moments(texts: Sequence[str]) -> list[pd.Series]:
    """Return the times by each way that reads all cells; without one, by the best, with NaT."""
    cells = pd.Series(texts, dtype="object")
    found = cells.str.extract(_NUMBERS)
    numbers = found["first"].notna()
    others, found = _parse(cells.loc[~numbers]), found[numbers]
    points = found["mark"] == "."
    orders = [("first", "second", "year"), ("second", "first", "year")]
    if (found["year"].str.len() == 2).any():  # noqa: PLR2004 - digits
        orders.append(("year", "second", "first"))
    readings = []
    for order in orders:
        dotted, open_ones = _order(found[points], *orders[0]), _order(found[~points], *order)
        readings.append(pd.concat([others, _parse(pd.concat([dotted, open_ones]))]).sort_index())
    different: list[pd.Series] = []
    for each in readings:
        if not each.isna().any() and not any(map(each.equals, different)):
            different.append(each)
    return different or [min(readings, key=lambda each: each.isna().sum())]


def _order(found: pd.DataFrame, day: str, month: str, year: str) -> pd.Series:
    years, months = found[year], found[month].str.zfill(2)
    century = np.where(years.str.zfill(4) < f"{_CENTURY_TURN:04d}", "20", "19")
    years = years.where(years.str.len() > 2, century + years.str.zfill(2))  # noqa: PLR2004 - digits
    months = months.where(months <= "12")  # "mixed" would take the other number for the month
    return years + "-" + months + "-" + found[day].str.zfill(2) + found["rest"].fillna("")


def _parse(cells: pd.Series) -> pd.Series:
    moments = pd.to_datetime(cells, format="ISO8601", errors="coerce", utc=True)
    if moments.isna().any():
        return pd.to_datetime(cells, format="mixed", errors="coerce", utc=True)
    return moments


def _explain_late(table: TextTable, time: str, readings: Sequence[pd.Series]) -> str:
    """Return a remedy for rows that are not after the row before in any reading of `time`."""
    apart = {time, *table.settings.time_columns}
    others = {name: cells for name, cells in table.columns.items() if name not in apart}
    late, date = min(map(_count_late, readings)), " ".join(table.settings.time_columns)
    for name in others if len(table.settings.time_columns) == 1 else ():
        if _is_time_of_day(table, name, late):
            return f"{name} holds the time of day: set data.time_column: [{date}, {name}]"
    if any(map(_is_hour_twice, readings)):
        return (
            "an hour occurs twice, as where summer time ends; write times in UTC, or with their"
            " offset, as 2026-10-25 02:00+01:00"
        )
    if keys := _find_keys(others, readings[0]):
        shown = " and ".join(keys)
        if len(keys) == 1 and _HOUR.fullmatch(keys[0]):
            return f"{shown} tells the hour: join date and hour in one column, as 2026-01-31 13:00"
        return _explain_series(date, keys)
    return "sort the table and drop duplicate rows"


def _explain_series(time: str, keys: Sequence[str]) -> str:
    return (
        f"there are several series, one for each value of {' and '.join(keys)}; keep the rows of"
        f" one, or make columns of them: in pandas, table.pivot(index={time!r},"
        f" columns={[*keys]!r}, values=…)"
    )


def _join_times(table: TextTable, names: Sequence[str]) -> pa.LargeStringArray:
    """Join the cells of several columns row by row, such as date and time of day (also 18.30)."""
    cells = table.columns[names[0]]
    for each in names[1:]:
        time = pc.replace_substring_regex(table.columns[each], r"^(\d{1,2})\.(\d{2})\b", r"\1:\2")
        time = pc.replace_substring_regex(time, r"^(\d{1,2}:\d{2})\.(\d{2})\b", r"\1:\2")
        cells = pc.binary_join_element_wise(cells, time, pa.scalar(" ", pa.large_string()))
    return cells


def _count_late(moments: pd.Series) -> int:
    return int((np.diff(_as_numbers(moments)) <= 0).sum())


def _is_time_of_day(table: TextTable, name: str, late: int) -> bool:
    """Return whether a column holds times of day that put nearly all `late` rows in order."""
    if not matches(table.columns[name], _OF_DAY).all():
        return False
    joined = read_moments(_join_times(table, [*table.settings.time_columns, name]).to_pylist())
    return any(not each.isna().any() and _count_late(each) <= _STILL_LATE * late for each in joined)


def _is_hour_twice(moments: pd.Series) -> bool:
    """Return whether time goes back less than an hour, and only on Sunday nights of `_CHANGES`."""
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
    times = _as_numbers(moments)[:_MOST_ROWS]
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
