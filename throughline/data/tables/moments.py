"""Dates and times written as text, and whether they increase from row to row; not a source itself.

31.01.2026 has its day first. 01/02/2026 does not say which number is the month, nor 26-01-02 which
is the year: what other rows leave of the readings counts, and where several are left they have to
agree.
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
GAP = 1.5  # times the median step; of months the longest is 1.02 times the median
_CENTURY_TURN = 69  # of two digits, as strptime's %y reads them


@dataclass(frozen=True, kw_only=True)
class TimeProblem:
    """Why a column is not in the order of time: the row (counted from 0), and whether its cell is
    no moment at all (`unreadable`) or reads two ways, one of which would be in order (`two_ways`).
    """

    row: int
    unreadable: bool = False
    two_ways: bool = False


def find_time_problem(readings: Sequence[pd.Series]) -> TimeProblem | None:
    """The first row whose date or time is not after that of the row before, by what `read_moments`
    makes of the cells; None: all are.
    """
    problems = [problem for reading in readings if (problem := find_late(reading))]
    if not problems:
        return None
    last = max(problems, key=lambda problem: problem.row)
    two_ways = len(problems) < len(readings)
    return TimeProblem(row=last.row, unreadable=last.unreadable, two_ways=two_ways)


def find_late(moments: pd.Series) -> TimeProblem | None:
    """The first row of numbers or moments that is none, or not above that of the row before."""
    lacking = moments.isna().to_numpy()
    if lacking.any():
        return TimeProblem(row=int(np.argmax(lacking)), unreadable=True)
    values = as_numbers(moments)
    late = values[1:] <= values[:-1]
    return TimeProblem(row=int(np.argmax(late)) + 1) if late.any() else None


def read_digits(numbers: np.ndarray) -> pd.Series | None:
    """The moments that whole numbers (rows,) write as digits, as 20260131 and 202601 do; None where
    one is no date of 1900 to 2099.
    """
    texts = pd.Series(numbers).astype("int64").astype(str)
    pattern = _DIGITS.get(len(texts.iloc[0])) if len(texts) else None
    if not pattern or not texts.str.fullmatch(rf"(19|20)\d{{{len(texts.iloc[0]) - 2}}}").all():
        return None
    moments = pd.to_datetime(texts, format=pattern, errors="coerce", utc=True)
    return None if moments.isna().any() else moments


def find_gaps(moments: pd.Series) -> np.ndarray:
    """The rows (gaps,) of numbers or moments in order before which others seem to be missing: the
    step to them is much longer than most.
    """
    steps = np.diff(as_numbers(moments))
    return np.flatnonzero(steps > GAP * np.median(steps)) + 1 if len(steps) else np.empty(0, int)


def as_numbers(moments: pd.Series) -> np.ndarray:
    """Numbers, or moments as whole numbers, (rows,)."""
    # Of moments with a time zone: to_numpy would make an object of each.
    return (moments.astype("int64") if moments.dtype.kind == "M" else moments).to_numpy()


def read_moments(texts: Sequence[str]) -> list[pd.Series]:
    """The moments that cells can mean, in each way to read all of them; NaT where one is none."""
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
    # Several that say the same are one.
    different = [
        each for place, each in enumerate(known) if not any(map(each.equals, known[:place]))
    ]
    return different or [min(readings, key=lambda each: each.isna().sum())]


def _order(found: pd.DataFrame, day: str, month: str, year: str) -> pd.Series:
    """Dates with year, month and day, in this order."""
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
