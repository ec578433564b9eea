"""Reads columns that a model sees, and numbers to predict, from tables and lists of files.

Vocabularies hold the words of the whole table, so that a category seen only in the test split has a
number, too. Rows with an impossible value are rejected. So are rows with an empty cell, unless
`data.missing` gives it a meaning.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from throughline.data.encodings.base import Reason
from throughline.data.encodings.labels import LabelKind
from throughline.data.found import Found, ListedColumns
from throughline.data.tables import column_kinds
from throughline.data.tables.column_kinds import Kind
from throughline.data.tables.number_text import explain_notation, explain_unread, pc
from throughline.data.tables.odd_values import find_sentinels
from throughline.data.tables.tabular import TextTable, check_all
from throughline.plan.schema import TableColumns
from throughline.settings import DataSettings
from throughline.shared.errors import UnreadableSource, did_you_mean

MARK_MISSING = "set data.missing_values if it means missing"


@dataclass(frozen=True, kw_only=True)
class Listing(Found):
    """The data of a table about the examples that it lists.

    `columns` are inputs of the model, `numbers` (rows, targets) float64 are to predict, if any, and
    `problems` says why a row cannot be used (None if it can).
    """

    columns: ListedColumns | None
    numbers: np.ndarray | None
    problems: list[str | None]

    @property
    def label_kind(self) -> LabelKind:
        return "class" if self.numbers is None else "number"

    @property
    def targets(self) -> int:
        return 1 if self.numbers is None else self.numbers.shape[1]


def name_required(settings: DataSettings, key: str) -> dict[str, Sequence[str]]:
    """Return the columns that every example needs, by the keys of params.yaml that name them."""
    labels = settings.label_columns if settings.label_kind != "none" else ()
    return {f"data.{key}": [getattr(settings, key)], "data.label_column": labels}


def name_columns(settings: DataSettings, key: str) -> dict[str, Sequence[str]]:
    """Return the columns of `name_required`, and the columns that the model sees."""
    seen = {"data.numeric": settings.numeric, "data.categorical": settings.categorical}
    return {**name_required(settings, key), **seen}


def check_names(
    path: Path, settings: DataSettings, named: Mapping[str, Sequence[str]], *, input_name: str
) -> None:
    """Refuse columns that are named twice, or like a served model's input (`input_name`).

    `data.missing_values` of columns other than `named`, the split and the group are refused, too.
    """
    read = [name for names in named.values() for name in names]

    def refuse_input_name() -> None:
        if input_name in (*named["data.numeric"], *named["data.categorical"]):
            raise UnreadableSource(
                f"{path}: a column that the model sees is named {input_name}, like the {input_name}"
                " itself",
                "rename the column",
            )

    check_all(
        path,
        partial(refuse_two_uses, path, named),
        partial(check_marks, path, settings, [*read, "split", settings.group]),
        refuse_input_name,
    )


def read_listing(table: TextTable) -> Listing:
    """Read the columns that the model sees, and the numbers to predict, as the settings say."""
    settings, numbers, columns = table.settings, None, TableColumns()
    kinds: dict[str, Kind] = {
        **dict.fromkeys(settings.numeric, "number"),
        **dict.fromkeys(settings.categorical, "category"),
    }
    check_all(
        table.path,
        partial(column_kinds.refuse_mistaken, table, kinds),
        partial(check_missing, table, kinds),
        partial(refuse_text_labels, table),
    )
    if kinds:
        columns = choose_columns(table, settings.numeric, settings.categorical)
    values, problems = code_rows(table, columns, hint=True)
    if settings.label_kind == "number":
        numbers = read_targets(table, problems)
    seen = zip(settings.numeric, values.T, strict=False)
    predicted = zip(settings.label_columns, () if numbers is None else numbers.T, strict=False)
    labels: dict[str, Kind] = dict.fromkeys(settings.label_columns, "label")
    return Listing(
        columns=ListedColumns(columns=columns, values=values) if kinds else None,
        numbers=numbers,
        problems=problems,
        readings=[
            column_kinds.describe_column(table, name, kind)
            for name, kind in (labels | kinds).items()
            if name in table.columns
        ],
        dialect=table.describe_dialect() if kinds or numbers is not None else (),
        warnings=[
            *column_kinds.find_missing_marks(columns),
            *find_sentinels(table, [*seen, *predicted]),
            *filter(None, [column_kinds.explain_one_hot(table)]),
        ],
    )


def choose_columns(
    table: TextTable, numeric: Sequence[str], categorical: Sequence[str]
) -> TableColumns:
    """Return the columns that a model sees, numbers first; medians are NaN until they are known."""
    missing, categories = table.settings.missing_in, []
    for name in categorical:
        words = {*pc.unique(table.columns[name]).to_pylist()}
        categories.append(tuple(sorted(words - {""} if missing(name) == "reject" else words)))
    return TableColumns(
        names=(*numeric, *categorical),
        categories=tuple(categories),
        decimal=table.decimal,
        thousands=table.thousands,
        medians={name: np.nan for name in numeric if missing(name) == "median"},
    )


def code_rows(
    table: TextTable, columns: TableColumns, *, hint: bool = False
) -> tuple[np.ndarray, list[str | None]]:
    """Return rows as (rows, columns) float32, and why each cannot be used (None if it can).

    Numbers stand for the categories in the last columns. With `hint`, reasons name the key that
    would keep the row.
    """
    reasons: list[str | None] = [None] * len(table)
    values = np.zeros((len(table), len(columns.names)), np.float64)
    numeric = columns.numeric
    for place, name in enumerate(columns.names):
        cells, is_number = table.columns[name], place < numeric
        column = values[:, place]
        if is_number:
            column[:] = table.numbers(name)
        else:
            words = pa.array(columns.categories[place - numeric], pa.large_string())
            codes = pc.index_in(cells, words).cast(pa.float64())
            column[:] = np.asarray(pc.fill_null(codes, np.nan))
        table.forget(name)
        bad, empty = ~np.isfinite(column), np.asarray(pc.equal(cells, ""), bool)
        if name in columns.medians:
            column[empty] = columns.medians[name]
            bad &= ~empty
        way = "median" if is_number else "category"
        for row in np.flatnonzero(bad).tolist():
            cell = cells[row].as_py()
            if cell and not is_number:
                unseen = f"{name} is a category that the training has not seen"
                reasons[row] = reasons[row] or Reason(unseen, f": {cell!r}")
                continue
            reason = column_kinds.explain_no_number(table, name, row)
            if hint and np.isnan(column[row]) and not explain_notation(cell):
                keep = MARK_MISSING if cell else f"data.missing: {way} keeps the row"
                reason = Reason(f"{reason.cause} ({keep})", reason.detail)
            reasons[row] = reasons[row] or reason
    return values.astype(np.float32), reasons


def fill_medians(
    values: np.ndarray, columns: TableColumns, train: np.ndarray
) -> tuple[np.ndarray, TableColumns, dict[str, int]]:
    """Fill empty cells with the medians of the rows `train`, in columns set to median.

    Returns the rows (rows, columns), the columns with their medians, and notes with the numbers of
    filled cells. Raises UnreadableSource if a column is empty in all rows `train`.
    """
    values, medians, notes = values.copy(), {}, {}
    for name in columns.medians:
        column = values[:, columns.names.index(name)]
        empty = np.isnan(column)
        known = column[train][~empty[train]]
        if not len(known):
            raise UnreadableSource(
                f"column {name} is empty in all rows of the training split, so it has no median"
                " there",
                "remove it from data.numeric, or list it in data.ignore if that is unset",
            )
        medians[name] = float(np.median(known))
        column[empty] = medians[name]
        if empty.any():
            notes[f"empty cells of {name} filled with {medians[name]:.7g}"] = int(empty.sum())
    return values, replace(columns, medians=medians), notes


def refuse_two_uses(path: Path, named: Mapping[str, Sequence[str]]) -> None:
    """Refuse columns that several keys name; `split` is the column of splits."""
    uses: dict[str, list[str]] = {"split": ["the splits"]}
    for key, names in named.items():
        for name in names:
            uses.setdefault(name, []).append(key)
    twice = [f"{name} ({' and '.join(keys)})" for name, keys in uses.items() if keys[1:]]
    if twice:
        raise UnreadableSource(
            f"{path}: a column has one use, and these have several: {', '.join(twice)}",
            "name each once",
        )


def check_marks(path: Path, settings: DataSettings, names: Iterable[str]) -> None:
    """Refuse `data.missing_values` of columns that are not among `names`."""
    marks, known = settings.missing_values, [*names]
    for name in marks if isinstance(marks, dict) else ():
        if name not in known:
            hint = did_you_mean(name, known)
            raise UnreadableSource(f"{path}: data.missing_values: no column {name}; {hint}")


def check_missing(table: TextTable, kinds: Mapping[str, Kind]) -> None:
    """Refuse entries of `data.missing` that name no feature or do not suit its kind."""
    ways = table.settings.missing if isinstance(table.settings.missing, dict) else {}
    features = {name: kind for name, kind in kinds.items() if kind in ("number", "category")}

    def check(name: str, way: str) -> None:
        where = f"{table.path}: data.missing:"
        if name not in features:
            hint = did_you_mean(name, [*features])
            raise UnreadableSource(f"{where} no feature is named {name}", hint)
        is_number = features[name] == "number"
        held, other = ("numbers", "median") if is_number else ("categories", "category")
        if way not in ("reject", other):
            raise UnreadableSource(
                f"{where} {way} does not suit {name}, which holds {held}",
                f"set data.missing: {{{name}: {other}}}",
            )

    check_all(table.path, *(partial(check, *named) for named in ways.items()))


def read_targets(table: TextTable, reasons: list[str | None]) -> np.ndarray:
    """Return the numbers to predict (rows, targets) float64; set `reasons` for rows without one."""
    names = table.settings.label_columns
    targets = np.stack([table.numbers(name) for name in names], axis=1)
    for place, name in reversed([*enumerate(names)]):
        shown = "label" if len(names) == 1 else f"label {name}"
        for row in np.flatnonzero(~np.isfinite(targets[:, place])).tolist():
            reasons[row] = f"{shown} missing"
            if table.columns[name][row].as_py():
                reasons[row] = column_kinds.explain_no_number(table, name, row, shown=shown)
    return targets


def refuse_text_labels(table: TextTable) -> None:
    settings = table.settings
    for name in settings.label_columns if settings.label_kind == "number" else ():
        if column_kinds.guess_kind(table, name) == "category":
            shown = f"{table.path}: label column {name}"
            if unread := explain_unread(table.columns[name], table.decimal_of(name)):
                raise UnreadableSource(f"{shown} {unread}")
            raise UnreadableSource(
                f"{shown} holds text, but data.label_kind: number needs numbers",
                "set data.label_kind: class, or name another data.label_column",
            )
