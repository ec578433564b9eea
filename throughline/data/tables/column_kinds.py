"""Decides the kind of each column of a table: numbers, categories, or nothing to learn from.

Columns that can hardly be meant are refused, with the parameter that keeps them: dates, ids and
free text as categories, row numbers as a feature, and columns named as times: 1/22/20, 1/23/20.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Literal

import numpy as np
import pandas as pd
import pyarrow as pa

from throughline.data.encodings.base import Reason
from throughline.data.found import ColumnReading
from throughline.data.tables.number_text import (
    FEW_CATEGORIES,
    MOST,
    are_like_numbers,
    count_filled,
    explain_notation,
    explain_unread,
    is_number,
    matches,
    pc,
    share,
)
from throughline.data.tables.tabular import TextTable, check_all
from throughline.plan.schema import TableColumns
from throughline.shared.errors import UnreadableSource
from throughline.shared.wording import name_some, write_name

Kind = Literal["number", "category", "label", "split", "group", "time", "ignored", "empty"]
EXACT_INTEGER = 2**24  # from here on float32 does not hold every whole number
COMPARED = 1000  # values of a column that are compared after rounding to float32
COMPUTED_DIGITS = 12  # further digits are rounding errors of a sum or a mean
KEPT_APART = 0.75
_DATE = (
    r"^((\d{4}[-/]\d{1,2}[-/]\d{1,2}|\d{1,2}[./]\d{1,2}[./]\d{2,4})([T ].*)?"
    r"|\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?"
    r"|[[:alpha:]]{3,9}\.? \d{1,2},? \d{4}|\d{1,2}[. -]+[[:alpha:]]{3,9}[. -]+\d{2,4})$"
)
_ID = re.compile(r"(^|[_\W])(id|index|uuid|key|row)$|[a-z]Id$|^ID", re.IGNORECASE)
_LEADING_ZEROS = r"^0\d{2,}$"
_MISSING = {"na", "n/a", "n.a.", "#n/a", "<na>", "nan", "null", "?", "-", "--", "."}  # lower case
_MONTH = r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_TIME = re.compile(
    r"X?((19|20)\d\d( ?\[YR\d{4}\]|[-/. ]?(Q[1-4]|M?\d{1,2}))?"  # years, quarters, months
    r"|(19|20)\d\d([-/.]\d{1,2}){2}([T ].*)?"
    r"|\d{1,2}(?P<mark>[-/.])\d{1,2}(?P=mark)\d{2,4}([T ].*)?"
    r"|\d{1,2}:\d{2}(:\d{2})?"
    rf"|(\d{{1,2}}[-. ]*)?{_MONTH}[-. ,]*(\d{{1,2}},? )?(\d{{2}}|\d{{4}}))",
    re.IGNORECASE,
)
_FEW_TEXTS = 10  # up to this many different texts among numbers may be mistakes and marks
_COUNTED = re.compile(r"(\D*)(\d+)")
_LEAST_TIMES = 3  # columns that are named as times
LEAST_ROWS = 20  # fewer rows tell nothing
_UNNAMED = re.compile(r"^(Unnamed: \d+|__index_level_\d+__)$")  # as pandas names them


def describe_column(table: TextTable, name: str, kind: Kind) -> ColumnReading:
    cells = table.columns[name]
    filled = cells.filter(pc.not_equal(cells, ""))
    return ColumnReading(
        name=name,
        kind=kind,
        distinct=pc.count_distinct(filled).as_py(),
        missing=len(cells) - len(filled),
        example=filled[0].as_py() if len(filled) else "",
    )


def find_kinds(table: TextTable, apart: Sequence[str]) -> dict[str, Kind]:
    """Return the kind of every column, except the columns `apart`, which have other purposes."""
    settings = table.settings
    kinds: dict[str, Kind] = {
        **dict.fromkeys(settings.categorical, "category"),
        **dict.fromkeys(settings.numeric, "number"),
        **dict.fromkeys(settings.ignore, "ignored"),
    }
    for name in [name for name in table.columns if name not in kinds and name not in apart]:
        kind = guess_kind(table, name)
        # If columns are listed, the others are left out.
        listed = settings.numeric if kind == "number" else settings.categorical
        kinds[name] = "ignored" if listed else kind
    return {name: kinds[name] for name in table.columns if name not in apart}


def refuse_mistaken(table: TextTable, kinds: Mapping[str, Kind]) -> None:
    """Refuse columns whose kind can only be a mistake."""
    settings = table.settings
    chosen = {*settings.numeric, *settings.categorical, *settings.ignore}

    def refuse_text(name: str) -> None:
        if name in kinds and guess_kind(table, name) == "category":
            raise UnreadableSource(
                f"{table.path}: column {name}, of data.numeric, holds text",
                "name it in data.categorical instead, or in neither",
            )

    def refuse_one_hot() -> None:
        if {*find_one_hot(table)} & {name for name in kinds if kinds[name] != "ignored"} - chosen:
            raise UnreadableSource(f"{table.path}: {explain_one_hot(table)}")

    doubts = {
        name: doubt
        for name, kind in kinds.items()
        if name not in chosen and kind != "ignored" and (doubt := find_problem(table, name, kind))
    }
    check_all(
        table.path,
        *(partial(refuse_text, name) for name in settings.numeric),
        refuse_one_hot,
        partial(refuse_columns, table, doubts),
    )


def find_one_hot(table: TextTable) -> list[str]:
    """Return columns that form a one-hot label with the label column: one is 1 in each row."""
    label, *more = table.settings.label_columns
    own = table.numbers(label) if label in table.columns and not more else np.empty(0)
    rows = np.isfinite(own)
    own = own[rows]
    if len(own) < LEAST_ROWS or not own.any() or not np.isin(own, (0, 1)).all():
        return []
    flags: dict[str, np.ndarray] = {}
    for name in [name for name in table.columns if guess_kind(table, name) == "number"]:
        values = table.numbers(name)[rows]
        if values.any() and np.isin(values, (0, 1)).all() and not (values * own).any():
            flags[name] = values
    if len(flags) < 2:  # noqa: PLR2004 - a single one is the label itself, reversed
        return []
    # Other flags may never be 1 with the label by chance; least squares give them no weight.
    matrix, rest = np.column_stack([*flags.values()]), 1 - own
    weights = np.linalg.lstsq(matrix.T @ matrix, matrix.T @ rest, rcond=None)[0]
    found = [name for name, weight in zip(flags, weights, strict=True) if weight > MOST]
    return found if np.array_equal(sum(flags[name] for name in found), rest) else []


def explain_one_hot(table: TextTable) -> str:
    """Name the columns that `find_one_hot` finds, and a remedy; "" if all of them are ignored."""
    label, others = table.settings.label_columns[0], find_one_hot(table)
    if {*others} <= {*table.settings.ignore}:
        return ""
    names, ignore = [label, *others], ", ".join(map(write_name, others))
    return (
        f"one of the columns {name_some(names)} is 1 in each row: they look like a single label,"
        f" of which data.label_column names only {label}; write the classes into one column, in"
        f" pandas as table['class'] = table[{names!r}].idxmax(axis=1), or, to tell {label} from all"
        f" others, set data.ignore: [{ignore}] (data.numeric learns from them)"
    )


def refuse_columns(table: TextTable, problems: Mapping[str, str], *more: str) -> None:
    """Refuse all columns with problems at once, with the parameter that leaves them out."""
    if problems:
        named = [*table.settings.ignore, *problems]
        names = ", ".join(map(write_name, named))
        leave_out = f"to leave these columns out, set\ndata: {{ignore: [{names}]}}"
        reasons = [*problems.values(), *more, leave_out]
        raise UnreadableSource(f"{table.path}: " + "\n  ".join(reasons))


def guess_kind(table: TextTable, name: str) -> Kind:
    """Return the kind of most filled cells, number or category; empty if none is filled."""
    filled = count_filled(table.columns[name])
    if not filled:
        return "empty"
    if 2 * np.isfinite(table.parse(name)).sum() > filled:
        return "number"
    table.forget(name)
    return "category"


def find_problem(table: TextTable, name: str, kind: Kind) -> str | None:
    """Return why a column is hardly of this kind, with a remedy, or None."""
    reading = describe_column(table, name, kind)
    shown = f"column {name} ({reading.example[:40]}, …)"
    if kind == "empty":
        return None
    if _UNNAMED.match(name):
        return f"column {name} has no name in the header; a row index? Name it to keep it"
    if kind == "category":
        what = _find_category_problem(table, name, reading)
        keep = f"data.categorical: [{name}, …] makes categories of it"
        return f"{shown} {what}; {keep}" if what else None
    keep = f"data.numeric: [{name}, …] learns from it as a number"
    if texts := explain_texts(table, name):
        codes = f"data.categorical: [{name}, …] if they are codes"
        return f"{shown} {texts}; {codes}; {keep}, without these rows"
    problem = _find_number_problem(table, name, reading, keep)
    return f"{shown} {problem}" if problem else None


def _find_number_problem(
    table: TextTable, name: str, reading: ColumnReading, keep: str
) -> str | None:
    values = table.numbers(name)
    whole = values[np.isfinite(values)]
    if len(whole) < 2:  # noqa: PLR2004 - nothing to compare
        return None
    if (whole % 1 != 0).any():
        merging = find_merging(values)
        return f"{merging}; or {keep}, rounded" if merging else None
    if matches(table.columns[name], _LEADING_ZEROS).any():
        codes = f"data.categorical: [{name}, …] if they are codes"
        return f"holds numbers with leading zeros; {codes}; {keep}"
    if len(whole) > FEW_CATEGORIES and reading.distinct == len(whole):
        steps = np.unique(np.diff(whole))
        if _ID.search(name) or (len(steps) == 1 and abs(steps[0]) == 1):
            return f"numbers the rows; {keep}"
    if (whole.astype(np.float32).astype(np.float64) != whole).any():
        return (
            f"holds whole numbers from {EXACT_INTEGER:,} on, of which float32 keeps the"
            f" first seven digits; {keep}, rounded"
        )
    return None


def explain_texts(table: TextTable, name: str) -> str:
    """Describe the texts of a column of numbers; "" if they are few, marks, or odd numbers."""
    cells = table.columns[name]
    found = pc.unique(cells.filter(pa.array(np.isnan(table.parse(name)))))
    texts = found.filter(pa.array(~are_like_numbers(found))).to_pylist()
    marks = {"", *list_marks(texts)}
    texts = [one for one in texts if one not in marks]
    if len(texts) <= _FEW_TEXTS:
        return ""
    return f"holds numbers and {len(texts):,} different texts such as {texts[0][:40]!r}"


def _find_category_problem(table: TextTable, name: str, reading: ColumnReading) -> str | None:
    rows, cells = len(table) - reading.missing, table.columns[name]
    if share(cells, _DATE) > MOST:
        return "holds dates or times"
    if unread := explain_unread(cells, table.decimal_of(name)):
        return unread
    if reading.distinct > max(FEW_CATEGORIES, rows / 2):
        return f"has {reading.distinct:,} different texts in {rows:,} rows: ids or free text"
    return None


def find_merging(values: np.ndarray) -> str | None:
    """Describe the loss if float32 makes many numbers of a column equal; otherwise return None.

    `values` is (rows,) float64. In a long column a few always become equal, so some are compared.
    """
    some = values[:: max(1, len(values) // COMPARED)]
    some = some[np.abs(some) <= np.finfo(np.float32).max]
    some = np.unique([float(f"{value:.{COMPUTED_DIGITS}g}") for value in some.tolist()])
    kept = len(np.unique(some.astype(np.float32)))
    if kept >= KEPT_APART * len(some):
        return None
    return (
        f"holds numbers such as {some[0]:.15g} and {some[1]:.15g}, of which float32 keeps the first"
        f" seven digits: of {len(some):,} different numbers {kept:,} would be left; subtract their"
        " common part"
    )


def list_marks(words: Collection[str], *more: str) -> list[str]:
    """Return the words that usually mean a missing cell (- unless + is one), or are in `more`."""
    known = _MISSING.union(more) - ({"-"} if "+" in words else set())
    return [word for word in words if word.lower() in known]


def find_missing_marks(columns: TableColumns) -> list[str]:
    """Return warnings about categories that usually mean a missing cell."""
    named = zip(columns.names[columns.numeric :], columns.categories, strict=True)
    return [
        f"column {name} has {word} as a category; set data.missing_values: ['{word}'] if it"
        " means missing"
        for name, words in named
        for word in list_marks(words)
    ]


def explain_no_number(table: TextTable, name: str, row: int, *, shown: str = "") -> Reason:
    """Return why a cell of a numeric column cannot be used; `shown` replaces the column's name."""
    cell, shown = table.columns[name][row].as_py(), shown or name
    if not cell:
        return Reason(f"{shown} is missing")
    if is_number(table.columns[name].slice(row, 1), table.decimal_of(name))[0]:
        return Reason(f"{shown} exceeds the range of float32")
    notation = explain_notation(cell)
    return Reason(
        f"{shown} is not a number", f": {cell[:40]!r}{f'; {notation}' if notation else ''}"
    )


def refuse_wide(table: TextTable) -> None:
    """Refuse a table most of whose columns are named as times, so that each row is a series."""
    times = [name for name in table.columns if _TIME.fullmatch(name)]
    if counted := not times and table.settings.source == "time_series":
        times = _find_counted(table)
    if len(times) < _LEAST_TIMES or 2 * len(times) <= len(table.columns):
        return
    others = [name for name in table.columns if name not in times]
    texts = [name for name in others if guess_kind(table, name) == "category"] or others
    sep = "" if table.delimiter in (",", "") else f", sep={table.delimiter!r}"
    read = "read_parquet" if table.path.suffix.lower() == ".parquet" else "read_csv"
    command, turn = f"pandas.{read}({table.path.name!r}{sep})", ".T"
    if texts:
        place = max(texts, key=lambda name: pc.count_distinct(table.columns[name]).as_py())
        turn = (
            f".melt({others!r}, var_name='time').pivot_table('value', 'time', {place!r},"
            " aggfunc='sum', sort=False)"
        )
    how = "numbered" if counted else "named as times"
    then = "data.time_column: time"
    if counted:
        then = "data.ignore: [time]; if each row is a time step, name the columns in data.numeric"
    raise UnreadableSource(
        f"{table.path}: {len(times):,} columns are {how}, from {times[0]} to {times[-1]}:"
        " each row is a series, not a time step",
        "write a row for each time:"
        f"\n{command}{turn}.to_csv('by_time.csv', index_label='time')\nand set {then}",
    )


def _find_counted(table: TextTable) -> list[str]:
    """Return columns that one name counts (d_1, d_2, …) if a text that is no time names each row.

    With a column of times, rows are time steps, and such columns are sensors.
    """
    texts = {
        name: cells
        for name, cells in table.columns.items()
        if name not in table.settings.ignore and guess_kind(table, name) == "category"
    }
    distinct = [pc.count_distinct(cells).as_py() for cells in texts.values()]
    named = [
        (name, found[1], int(found[2]))
        for name in table.columns
        if name not in texts and (found := _COUNTED.fullmatch(name))
    ]
    if len(table) not in distinct or min(len(table), len(named)) < LEAST_ROWS:
        return []
    if any((one[1], one[2] + 1) != other[1:] for one, other in pairwise(named)):
        return []
    dates = [
        pd.to_datetime(cells[:COMPARED].to_pylist(), format="mixed", errors="coerce", utc=True)
        for cells in texts.values()
    ]
    return [] if any(each.notna().mean() > MOST for each in dates) else [one[0] for one in named]
