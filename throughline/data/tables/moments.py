"""Reads dates and times from text, and finds rows where they do not increase.

31.01.2026 has its day first. 01/02/2026 does not say which number is the month, nor 26-01-02 which
is the year. Other rows rule out readings; if several are left, they must agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

_NUMBERS = (
    r"^(?P<first>\d{1,2})(?P<mark>[./-])(?P<second>\d{1,2})(?P=mark)(?P<year>\d{4}|\d{2})"
    r"(?P<rest>\D.*)?$"
)
_DIGITS = {6: "%Y%m", 8: "%Y%m%d", 10: "%Y%m%d%H", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
GAP = 1.5  # times the median step; the longest month has 1.02 times the median
_CENTURY_TURN = 69  # two-digit years from here on are 19xx, as with strptime's %y


@dataclass(frozen=True, kw_only=True)
class TimeProblem:
    """The `row` (from 0) that is not in the order of time.

    Its cell is not a time (`unreadable`), or has another reading that is in order (`two_ways`).
    """

    row: int
    unreadable: bool = False
    two_ways: bool = False


def find_time_problem(readings: Sequence[pd.Series]) -> TimeProblem | None:
    """Return the first row that is not after the row before, or None if all readings are in order.

    The reading that is in order for longest decides.
    """
    problems = [problem for reading in readings if (problem := find_late(reading))]
    if not problems:
        return None
    last = max(problems, key=lambda problem: problem.row)
    two_ways = len(problems) < len(readings)
    return TimeProblem(row=last.row, unreadable=last.unreadable, two_ways=two_ways)


def find_late(moments: pd.Series) -> TimeProblem | None:
    """Return the first row that is missing or, if none is, the first that does not increase."""
    lacking = moments.isna().to_numpy()
    if lacking.any():
        return TimeProblem(row=int(np.argmax(lacking)), unreadable=True)
    values = as_numbers(moments)
    late = values[1:] <= values[:-1]
    return TimeProblem(row=int(np.argmax(late)) + 1) if late.any() else None


def read_digits(numbers: np.ndarray) -> pd.Series | None:
    """Read whole numbers (rows,), such as 20260131 and 202601, as dates; None if that fails."""
    texts = pd.Series(numbers).astype("int64").astype(str)
    pattern = _DIGITS.get(len(texts.iloc[0])) if len(texts) else None
    if not pattern or not texts.str.fullmatch(rf"(19|20)\d{{{len(texts.iloc[0]) - 2}}}").all():
        return None
    moments = pd.to_datetime(texts, format=pattern, errors="coerce", utc=True)
    return None if moments.isna().any() else moments


def find_gaps(moments: pd.Series) -> np.ndarray:
    """Return the rows (gaps,) before which others seem to be missing, because the step is long."""
    steps = np.diff(as_numbers(moments))
    return np.flatnonzero(steps > GAP * np.median(steps)) + 1 if len(steps) else np.empty(0, int)


def as_numbers(moments: pd.Series) -> np.ndarray:
    # For moments with a time zone, `to_numpy` alone would create objects.
    return (moments.astype("int64") if moments.dtype.kind == "M" else moments).to_numpy()


def read_moments(texts: Sequence[str]) -> list[pd.Series]:
    """Return the times of cells, once for each way to read all of them; NaT for other cells."""
    cells = pd.Series(texts, dtype="object")
    found = cells.str.extract(_NUMBERS)
    numbers = found["first"].notna()
    others = _parse(cells.loc[~numbers])
    found = found[numbers]
    points = found["mark"] == "."
    orders = [("first", "second", "year"), ("second", "first", "year")]
    if (found["year"].str.len() == 2).any():  # noqa: PLR2004 - digits
        orders.append(("year", "second", "first"))
    readings = []
    for order in orders:
        dotted, open_ones = _order(found[points], *orders[0]), _order(found[~points], *order)
        readings.append(pd.concat([others, _parse(pd.concat([dotted, open_ones]))]).sort_index())
    known = [each for each in readings if not each.isna().any()]
    # Equal readings count once.
    different = [
        each for place, each in enumerate(known) if not any(map(each.equals, known[:place]))
    ]
    return different or [min(readings, key=lambda each: each.isna().sum())]


def _order(found: pd.DataFrame, day: str, month: str, year: str) -> pd.Series:
    years = found[year]
    century = np.where(years.str.zfill(4) < f"{_CENTURY_TURN:04d}", "20", "19")
    years = years.where(years.str.len() > 2, century + years.str.zfill(2))  # noqa: PLR2004 - digits
    months = found[month].str.zfill(2)
    months = months.where(months <= "12")  # "mixed" would take the other number for the month
    return years + "-" + months + "-" + found[day].str.zfill(2) + found["rest"].fillna("")


def _parse(cells: pd.Series) -> pd.Series:
    moments = pd.to_datetime(cells, format="ISO8601", errors="coerce", utc=True)
    if moments.isna().any():
        return pd.to_datetime(cells, format="mixed", errors="coerce", utc=True)
    return moments
