"""Values of a table that may say something else than they seem to: numbers that stand for missing
ones, a row of totals, a column that tells the label, rows of one person. No source itself.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from throughline.data.sources.tabular import TextTable
from throughline.shared.wording import name_some

pc: Any = pyarrow.compute  # its functions are made when it is imported
_LEAST_ROWS = 20  # of which something can be said
_LEAST_VALUES = 5  # different ones, from which another one can be far
_LEAST_REPEATED, _LEAST_SHARE = 3, 0.001
_MOST_VALUES = 100  # of a column that may tell the label
_SAME = 1 - 1e-9  # correlation of a column that is the label in another unit
_SHOWN = 3
_TOTAL = re.compile(
    r"(grand |sub)?totals?:?|sum|average|mean|summe|gesamt|insgesamt", re.IGNORECASE
)
_GROUP = re.compile(
    r"(patient|subject|person|user|customer|client|participant|speaker|author|video|session|group"
    r"|household|device|machine|lesion)(s?[_ ]?(id|nr|nbr|no|number|code))?",
    re.IGNORECASE,
)
_ID = re.compile(r".+([_ .-](id|ID|Id)|[a-z]I[dD])")  # of whatever it is, perhaps of a category
_MOST_UNIQUE = 0.9  # share of different values in a column of which rows belong together
_MOST_OF_ONE, _LEAST_GROUPS = (
    20,
    20,
)  # rows, on average, and different values that are no categories


def find_sentinels(columns: Iterable[tuple[str, np.ndarray]]) -> list[str]:
    """What to warn of where a number repeats and is far from all others of its column, by name and
    values (rows,) of each.
    """
    named = defaultdict[float, list[str]](list)
    for name, values in columns:
        for value, rows in _list_sentinels(values):
            named[value].append(f"{name} ({rows:,} rows)")
    return [
        f"{value:g} repeats and is unlike all other numbers of {name_some(found, most=_SHOWN)};"
        f" if it means missing, set data.missing_values: ['{value:g}']"
        for value, found in named.items()
    ]


def _list_sentinels(values: np.ndarray) -> Iterator[tuple[float, int]]:
    """The lowest and highest values (rows,), while these repeat and are farther from the next one
    than all others are from each other; and -1, if it is the only number below 0.
    """
    distinct, counts = np.unique(values[np.isfinite(values)], return_counts=True)
    least = max(_LEAST_REPEATED, _LEAST_SHARE * counts.sum())
    while len(distinct) > _LEAST_VALUES and counts.sum() >= _LEAST_ROWS:
        low, high = distinct[1] - distinct[0], distinct[-1] - distinct[-2]
        if counts[0] >= least and (
            low > distinct[-1] - distinct[1] or (distinct[0] == -1 and distinct[1] >= 0)
        ):
            yield float(distinct[0]), int(counts[0])
            distinct, counts = distinct[1:], counts[1:]
        elif counts[-1] >= least and high > distinct[-2] - distinct[0]:
            yield float(distinct[-1]), int(counts[-1])
            distinct, counts = distinct[:-1], counts[:-1]
        else:
            return


def find_total(table: TextTable, columns: Iterable[np.ndarray]) -> bool:
    """Whether the last row holds the sums or means of its `columns` of numbers (rows,)."""
    if len(table) <= _SHOWN:
        return False
    last = [str(cells[len(table) - 1].as_py()) for cells in table.columns.values()]
    named, totals = any(map(_TOTAL.fullmatch, last)), []
    for column in columns:
        value, above = column[-1], column[:-1].astype(np.float64)
        above = above[np.isfinite(above)]
        if np.isfinite(value) and len(above) and above.any() and np.ptp(above):
            totals.append(bool(np.isclose([above.sum(), above.mean()], value, rtol=1e-6).any()))
        if not named and totals and not totals[-1]:
            return False
    return any(totals) if named else all(totals) and len(totals) > 1


def find_same(columns: Iterable[tuple[str, np.ndarray]], label: np.ndarray) -> list[str]:
    """What to warn of where a column, by name and values (rows,) of each, is the number to predict
    (rows,) in another unit.
    """
    return [
        _advise(name, "is the label in another unit")
        for name, values in columns
        if _is_same(values, label)
    ]


def find_leaks(table: TextTable, names: Sequence[str]) -> list[str]:
    """What to warn of where a column tells the class of each row."""
    label = table.settings.label_columns[0]
    if len(table) < _LEAST_ROWS or pc.count_distinct(table.columns[label]).as_py() < 2:  # noqa: PLR2004
        return []
    found = [name for name in names if _is_told(table, name, label)]
    return [_advise(name, "has one label for each of its values") for name in found]


def _advise(name: str, what: str) -> str:
    return (
        f"column {name} {what}; if it is known only with the label, leave it out: data.ignore:"
        f" [{name}]"
    )


def _is_same(column: np.ndarray, label: np.ndarray) -> bool:
    both = np.isfinite(column) & np.isfinite(label)
    values, labels = column[both].astype(np.float64), label[both].astype(np.float64)
    if len(values) < _LEAST_ROWS or not np.ptp(values) or not np.ptp(labels):
        return False
    return abs(float(np.corrcoef(values, labels)[0, 1])) > _SAME


def _is_told(table: TextTable, name: str, label: str) -> bool:
    cells, labels = table.columns[name], table.columns[label]
    distinct = pc.count_distinct(cells).as_py()
    if not 1 < distinct <= min(_MOST_VALUES, len(cells) / _LEAST_VALUES):
        return False
    pairs = pa.table({"cell": cells, "label": labels}).group_by(["cell", "label"]).aggregate([])
    return len(pairs) == distinct


def find_groups(table: TextTable, names: Sequence[str]) -> list[str]:
    """What to warn of where several rows are of one person or thing, by the names of columns, and
    rows are assigned to splits one by one.
    """
    settings = table.settings
    if settings.group or "split" in table.columns:
        return []
    found = {name: _count_groups(table, name) for name in names}
    return [
        f"column {name} has the same values in several rows, {count:,} in {len(table):,}: rows of"
        f" one {name} are in training and in held-out splits; data.group: {name} keeps them"
        " together"
        for name, count in found.items()
        if count
    ]


def _count_groups(table: TextTable, name: str) -> int:
    """How many groups of rows a column names; 0 where it seems to name none. An id may be that of
    a category, of which there are few, or many rows of each.
    """
    named = _GROUP.fullmatch(name)
    if not (named or _ID.fullmatch(name)):
        return 0
    filled = table.columns[name].filter(pc.not_equal(table.columns[name], ""))
    count, rows = pc.count_distinct(filled).as_py(), len(filled)
    few = not named and (count <= _LEAST_GROUPS or rows > _MOST_OF_ONE * count)
    return count if 1 < count <= _MOST_UNIQUE * rows and not few else 0
