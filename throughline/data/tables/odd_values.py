"""Finds odd values of a table: marks of missing cells, totals, units, label leaks, and groups."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import product, takewhile

import numpy as np
import pyarrow as pa

from throughline.data.tables.column_kinds import LEAST_ROWS, explain_one_hot, find_one_hot
from throughline.data.tables.number_text import explain_notation, is_number, pc
from throughline.data.tables.tabular import TextTable
from throughline.shared.wording import name_some, write_name

_LEAST_VALUES = 5  # fewest different values among which one can be an outlier
_LEAST_REPEATED, _LEAST_SHARE = 3, 0.001
# Distances as multiples of the range of all other values; beyond the last distance, two rows are
# enough. Of the 2,293 tables in R's packages, 23 get a warning, two in three of them rightly.
_CODE_FAR, _FAR, _VERY_FAR = 1, 3, 10
_NINES = re.compile(r"-?(9{3,}|9+\.9+)")
# Codes in surveys for an answer that was refused, is not known, or was not asked for.
_CODE = re.compile(rf"-[1789]|-?(77+|88+|99+|9+[678])|{_NINES.pattern}")
_MOST_VALUES = 100  # most values of a column that may determine the label
_SAME = 1 - 1e-9  # correlation of a column that is the label in another unit
_MOST_SUMMED, _EXACT = 10_000, 1e-6  # rows that show a sum of columns, and its largest error
_SHOWN = 3
_SUM = r"((grand |sub)?totals?|insgesamt|summe|gesamt):?"
TOTAL = re.compile(rf"{_SUM}|sum|average|mean", re.IGNORECASE)
_PART_TOTAL = r"(?i)^.+ (totals?|sum|average|mean|summe|gesamt|ergebnis):?$"  # as Excel writes them
_MOST_UNITS = 3  # most rows of units, kinds and the like
_GROUP = re.compile(
    r"(patient|subject|person|user|customer|client|participant|speaker|author|video|session|group"
    r"|household|device|machine|lesion)(s?[_ ]?(id|nr|nbr|no|number|code))?",
    re.IGNORECASE,
)
_ID = re.compile(r".+([_ .-](id|ID|Id)|[a-z]I[dD])")  # ids of anything, perhaps of a category
_MOST_UNIQUE = 0.9  # largest share of different values in a column that names groups
# Ids with more rows per value on average, or fewer values, are those of categories.
_MOST_OF_ONE, _LEAST_GROUPS = 20, 20


def find_sentinels(table: TextTable, columns: Iterable[tuple[str, np.ndarray]]) -> list[str]:
    """Return warnings about repeated numbers that are far from all others of their column.

    `columns` are pairs of name and values (rows,).
    """
    named = defaultdict[tuple[str, ...], dict[str, str]](dict)
    for name, values in columns:
        if found := dict(_list_sentinels(values)):
            rows = " and ".join(f"{count:,}" for count in found.values())
            named[(*found,)][name] = f"{name} ({rows} rows)"
    return [
        f"{' and '.join(values)} {'repeat and are' if values[1:] else 'repeats and is'} unlike all"
        f" other numbers of {name_some([*found.values()], most=_SHOWN)}; if"
        f" {'they mean' if values[1:] else 'it means'} missing, set data.missing_values:"
        f" {_name_marks(table, values, [*found])}"
        for values, found in named.items()
    ]


def _name_marks(table: TextTable, values: Sequence[str], columns: Sequence[str]) -> str:
    """Write numbers for `data.missing_values`, by column if other columns have them, too."""
    marks, numbers = f"[{', '.join(values)}]", [*map(float, values)]
    named = isinstance(table.settings.missing_values, dict)
    for name in table.columns.keys() - {*columns}:
        named = named or bool(np.isin(table.parse(name), numbers).any())
        table.forget(name)
    by_column = ", ".join(f"{write_name(name)}: {marks}" for name in columns)
    return f"{{{by_column}}}" if named else marks


def _list_sentinels(values: np.ndarray) -> Iterator[tuple[str, int]]:
    """Yield the lowest and highest values (rows,) that repeat and stand out, with their counts."""
    distinct, counts = np.unique(values[np.isfinite(values)], return_counts=True)
    while counts.sum() >= LEAST_ROWS and (ends := _find_ends(distinct, counts)):
        start, stop = ends[0], len(distinct) - ends[1]
        for place in (*range(start), *range(stop, len(distinct))):
            yield _write(distinct[place]), int(counts[place])
        distinct, counts = distinct[start:stop], counts[start:stop]


def _find_ends(distinct: np.ndarray, counts: np.ndarray) -> tuple[int, int] | None:
    low, high = (
        max(1, sum(1 for _ in takewhile(_is_code, side))) for side in (distinct, distinct[::-1])
    )
    for start, more in sorted(product(range(low + 1), range(high + 1)), key=sum)[1:]:
        stop = len(distinct) - more
        others, rows = distinct[start:stop], counts.sum()
        if len(others) > 1 and all(
            _stand_out(distinct[side], counts[side], others, rows)
            for side in (slice(start), slice(stop, None))
        ):
            return start, more
    return None


def _stand_out(values: np.ndarray, counts: np.ndarray, others: np.ndarray, rows: int) -> bool:
    if not len(values):
        return True
    texts, spread = [*map(_write, values)], others[-1] - others[0]
    distance = max(others[0] - values[-1], values[0] - others[-1])
    codes = all(map(_is_code, values))
    many = len(others) >= _LEAST_VALUES
    far = many and distance > (_CODE_FAR if codes else _FAR) * spread
    below = values[-1] < 0 <= others[0] and (many or (codes and texts != ["-1"]))
    nines = np.array([bool(_NINES.fullmatch(text)) for text in texts])
    twice = nines | (distance > _VERY_FAR * spread)
    enough = counts >= np.where(twice, 2, max(_LEAST_REPEATED, _LEAST_SHARE * rows))
    return bool((far or below) and ((values % 1 == 0) | nines).all() and enough.all())


def _is_code(value: float) -> bool:
    return _CODE.fullmatch(_write(value)) is not None


def _write(value: float) -> str:
    return np.format_float_positional(value, trim="-")


def find_total(table: TextTable, columns: Iterable[np.ndarray]) -> bool:
    """Return whether the last row of `columns` (each (rows,)) has sums or means of other rows."""
    if len(table) <= _SHOWN:
        return False
    last = [str(cells[len(table) - 1].as_py()) for cells in table.columns.values()]
    named, totals = any(map(TOTAL.fullmatch, last)), []
    for column in columns:
        value, above = column[-1], column[:-1].astype(np.float64)
        above = above[np.isfinite(above)]
        if np.isfinite(value) and len(above) and above.any() and np.ptp(above):
            totals.append(bool(np.isclose([above.sum(), above.mean()], value, rtol=1e-6).any()))
        if not named and totals and not totals[-1]:
            return False
    return any(totals) if named else all(totals) and len(totals) > 1


def find_totals(table: TextTable, names: Iterable[str], rejected: Collection[int]) -> list[str]:
    """Warn about rows, not in `rejected`, that a column of `names` labels as sum or mean."""
    rows: dict[int, str] = {}
    for name in names:
        cells = table.columns[name]
        words = pc.unique(cells)
        parts = words.filter(pc.match_substring_regex(words, _PART_TOTAL)).to_pylist()
        known = {*words.to_pylist()} if parts else set()
        named = {word for word in parts if word.rpartition(" ")[0] in known}
        named |= {*words.filter(pc.match_substring_regex(words, f"(?i)^{_SUM}$")).to_pylist()}
        found = np.flatnonzero(pc.is_in(cells, pa.array([*named], pa.large_string()))).tolist()
        for row in {0, len(cells) - 1} - {*found} if len(cells) else ():
            word = cells[row].as_py()
            if TOTAL.fullmatch(word) and pc.sum(pc.equal(cells, word)).as_py() == 1:
                found.append(row)
        rows |= {row: f"row {row + 1} ({name}: {cells[row].as_py()})" for row in found}
    shown = name_some([rows[row] for row in sorted(rows) if row not in rejected], most=_SHOWN)
    said = f"{shown}: named as the sum or mean of other rows; if so, remove such rows"
    return [said] if shown else []


def find_units(table: TextTable, numeric: Sequence[str]) -> list[int]:
    """Return the first rows (from 0) that hold units or a second header, [] if none does.

    Such rows have texts, not all alike, in the columns that are `numeric` in later rows.
    """
    rows: list[int] = []
    while len(rows) < min(_MOST_UNITS, len(table) - 1):
        row = {name: cells.slice(len(rows), 1) for name, cells in table.columns.items()}
        numbers = any(is_number(row[name], table.decimal_of(name))[0] for name in numeric)
        cells = [row[name][0].as_py() for name in numeric]
        times = [row[name][0].as_py() for name in table.settings.time_columns]
        dated = any(map(str.isdecimal, "".join(times)))
        alike = len({*cells, *times} - {""}) < 2  # noqa: PLR2004 - a mark of missing cells
        if dated or alike or numbers or any(map(explain_notation, cells)):
            break
        rows.append(len(rows))
    return rows


def find_same(columns: Iterable[tuple[str, np.ndarray]], label: np.ndarray) -> list[str]:
    """Return warnings about columns, by name and values (rows,), that alone or together give the
    numbers `label` (rows,): in another unit, or as a sum.
    """
    rows, same = np.flatnonzero(np.isfinite(label))[:_MOST_SUMMED], list[str]()
    target, parts = label[rows].astype(np.float64), dict[str, np.ndarray]()
    for name, values in columns:
        if is_rescaled(values, label):
            same.append(name)
        elif np.isfinite(part := values[rows].astype(np.float64)).all() and part.std():
            parts[name] = (part - part.mean()) / part.std()
    if not same and parts and len(rows) >= max(LEAST_ROWS, 2 * len(parts)) and target.std():
        target = (target - target.mean()) / target.std()
        given = np.stack([*parts.values()], axis=1)
        factors = np.linalg.lstsq(given, target)[0]
        if np.abs(given @ factors - target).max() < _EXACT:
            used = [name for name, one in zip(parts, np.abs(factors), strict=True) if one > _EXACT]
            return [
                f"the label can be computed from columns {' and '.join(used)}; if they are known"
                f" only with it, leave them out: data.ignore: [{', '.join(used)}]"
            ]
    return _advise(same, "is the label in another unit")


def find_leaks(table: TextTable, names: Sequence[str]) -> list[str]:
    """Return warnings about columns whose value determines the class of each row."""
    label = table.settings.label_columns[0]
    if len(table) < LEAST_ROWS or pc.count_distinct(table.columns[label]).as_py() < 2:  # noqa: PLR2004
        return []
    found = [name for name in names if _is_told(table, name, label)]
    spread = [explain_one_hot(table)] if {*find_one_hot(table)} & {*names} else []
    return _advise(found, "has one label for each of its values") + spread


def _advise(names: Iterable[str], what: str) -> list[str]:
    return [
        f"column {name} {what}; if it is known only with the label, leave it out: data.ignore:"
        f" [{name}]"
        for name in names
    ]


def is_rescaled(column: np.ndarray, label: np.ndarray) -> bool:
    """Return whether a column (rows,) is the other one in another unit."""
    both = np.isfinite(column) & np.isfinite(label)
    values, labels = column[both].astype(np.float64), label[both].astype(np.float64)
    if len(values) < LEAST_ROWS or not np.ptp(values) or not np.ptp(labels):
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
    """Return warnings about columns that name groups of rows, which splits may separate."""
    settings = table.settings
    if settings.group or "split" in table.columns:
        return []
    found = {name: _count_groups(table, name) for name in names}
    return [
        f"column {name} has {count:,} different values in {len(table):,} rows: rows of one {name}"
        f" are in training and in held-out splits; data.group: {name} keeps them together"
        for name, count in found.items()
        if count
    ]


def _count_groups(table: TextTable, name: str) -> int:
    """Return the number of groups of rows that a column names; 0 for none, or for categories."""
    named = _GROUP.fullmatch(name)
    if not (named or _ID.fullmatch(name)):
        return 0
    filled = table.columns[name].filter(pc.not_equal(table.columns[name], ""))
    count, rows = pc.count_distinct(filled).as_py(), len(filled)
    few = not named and (count <= _LEAST_GROUPS or rows > _MOST_OF_ONE * count)
    return count if 1 < count <= _MOST_UNIQUE * rows and not few else 0
