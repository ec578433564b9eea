"""Examples as rows of a table: numeric columns as they are, categories as numbers after them, and
one label column.

Vocabularies are those of the whole table, in the order of spelling, so that a category seen only in
the test split keeps its place. Categories and classes are the text of their cells. A row with an
impossible value is rejected with its reason, and so is one with an empty cell, unless
`data.missing` says what that stands for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from throughline.data.encodings.arrays import array_feature
from throughline.data.encodings.labels import (
    LabelKind,
    guess_label_kind,
    labeled,
    list_numbers,
)
from throughline.data.sources.base import Arrays, Rejected
from throughline.data.sources.column_kinds import (
    FEW_CATEGORIES,
    UNREAD_NUMBERS,
    Kind,
    describe_column,
    explain_no_number,
    find_kinds,
    find_merging,
    find_missing_marks,
    guess_kind,
    refuse_mistaken,
)
from throughline.data.sources.number_text import have_fractions, looks_like_numbers, read_numbers
from throughline.data.sources.odd_values import (
    find_groups,
    find_leaks,
    find_sentinels,
    find_total,
)
from throughline.data.sources.tabular import (
    Problems,
    TextTable,
    check_columns,
    read_split,
    read_table,
)
from throughline.plan.schema import TableColumns
from throughline.settings import DataSettings
from throughline.shared.errors import UnreadableSource, did_you_mean

pc: Any = pyarrow.compute  # its functions are made when it is imported
MARK_MISSING = "data.missing_values can say that it is missing"
EXACT_IN_64 = 2.0**53  # below, float64 tells whole numbers apart


def scan(settings: DataSettings) -> Arrays:
    """Read the table at `data.path`; an optional column `split` holds train, validation or test.

    What the label is, a class or a number to predict, is what `data.label_kind` says, or else
    follows from its column.
    """
    table = read_table(Path(settings.path), settings)
    problems, kind = Problems(table.path), "class"
    named = {
        "data.label_column": settings.label_columns,
        "data.numeric": settings.numeric,
        "data.categorical": settings.categorical,
        "data.ignore": settings.ignore,
        "data.group": [settings.group] if settings.group else [],
    }
    apart = [*settings.label_columns, "split", settings.group]
    with problems.collect():
        check_columns(table, named)
    with problems.collect():
        refuse_two_uses(table.path, named)
    with problems.collect():
        _refuse_mistaken_features(table, apart)
    with problems.collect():
        if table.columns.keys() >= {*settings.label_columns}:
            kind = _label_kind(table, settings)
            if kind == "class" and settings.label_kind == "auto":
                refuse_double_spelling(table)
            if kind == "number" and settings.label_kind == "auto":
                _refuse_merging_label(table, settings.label_columns[0])
    problems.refuse()
    kinds = find_kinds(table, apart)
    numeric = settings.numeric or _of_kind(kinds, "number")
    categorical = settings.categorical or _of_kind(kinds, "category")
    columns = choose_columns(table, numeric, categorical)
    schema = labeled(
        array_feature("numbers", (len(columns.names),), "float32", columns),
        kind,
        targets=len(settings.label_columns),
    )
    values, problems = code_rows(table, columns, hint=True)
    splits = table.cells("split") if "split" in table.columns else [""] * len(table)
    named = [read_split(value) for value in splits]
    labels: list[Any] = (
        list_numbers(read_targets(table, problems))
        if kind == "number"
        else _read_classes(table, problems)
    )
    if find_total(table, [*numeric, *(settings.label_columns if kind == "number" else ())]):
        problems[-1] = "sums up the rows above it"
    reasons = [problem or reason for (_, problem), reason in zip(named, problems, strict=True)]
    usable = np.asarray([reason is None for reason in reasons], bool)
    ids = np.asarray([f"{number:08d}" for number in range(len(table))])
    labels = [label for label, used in zip(labels, usable.tolist(), strict=True) if used]
    distinct = sorted({*labels}) if kind == "class" else []
    roles: dict[str, Kind] = {**dict.fromkeys(settings.label_columns, "label"), "split": "split"}
    groups = table.columns[settings.group].to_pylist() if settings.group else []
    if settings.group:
        roles[settings.group] = "group"
    return Arrays(
        values=values[usable],
        labels=labels,
        ids=ids[usable].tolist(),
        splits=[split for (split, _), used in zip(named, usable.tolist(), strict=True) if used],
        classes=sorted(distinct, key=_by_value),
        schema=schema,
        rejected=[
            Rejected(id=f"row {number + 1}", reason=reason)
            for number, reason in enumerate(reasons)
            if reason is not None
        ],
        readings=[
            describe_column(table, name, roles.get(name) or kinds[name]) for name in table.columns
        ],
        dialect=table.describe_dialect(),
        warnings=[
            *table.warnings,
            *table.describe_unread(),
            *find_missing_marks(columns),
            *find_sentinels(table, numeric),
            *find_leaks(table, kinds, number=kind == "number"),
            *find_groups(table, [*kinds]),
        ],
        groups={ids[row]: groups[row] for row in np.flatnonzero(usable)} if groups else {},
    )


def choose_columns(
    table: TextTable, numeric: Sequence[str], categorical: Sequence[str]
) -> TableColumns:
    """Columns of a table as a model sees them, numbers first. Medians are not a number until the
    training split is known, of which they are.
    """
    missing = table.settings.missing_in
    return TableColumns(
        names=(*numeric, *categorical),
        categories=tuple(_vocabulary(table, name) for name in categorical),
        decimal=table.decimal,
        thousands=table.thousands,
        medians={name: np.nan for name in numeric if missing(name) == "median"},
    )


def code_rows(
    table: TextTable, columns: TableColumns, *, hint: bool = False
) -> tuple[np.ndarray, list[str | None]]:
    """Rows as (rows, columns) float32, the categories of the last columns as numbers; and why a row
    cannot be used, None where it can, with a `hint` at the key that would keep it.
    """
    reasons: list[str | None] = [None] * len(table)
    values = np.zeros((len(table), len(columns.names)), np.float64)
    numeric = columns.numeric
    for place, name in enumerate(columns.names):
        cells, is_number = table.columns[name], place < numeric
        column = values[:, place]
        column[:] = (
            table.numbers(name)
            if is_number
            else _code_categories(cells, columns.categories[place - numeric])
        )
        table.forget(name)
        bad, empty = ~np.isfinite(column), np.asarray(pc.equal(cells, ""), bool)
        if name in columns.medians:
            column[empty] = columns.medians[name]
            bad &= ~empty
        way = "median" if is_number else "category"
        for row in np.flatnonzero(bad).tolist():
            reason = (
                explain_no_number(table, name, row)
                if is_number or empty[row]
                else f"{name} is {cells[row].as_py()!r}, a category that the training has not seen"
            )
            keep = f"data.missing can be {way} to keep the row" if empty[row] else MARK_MISSING
            hinted = hint and (is_number or empty[row]) and np.isnan(column[row])
            reasons[row] = reasons[row] or (f"{reason} ({keep})" if hinted else reason)
    return values.astype(np.float32), reasons


def fill_medians(
    values: np.ndarray, columns: TableColumns, train: np.ndarray
) -> tuple[np.ndarray, TableColumns, dict[str, int]]:
    """Rows (rows, columns) with the medians of the rows `train` in the empty cells that they are to
    fill, the columns with these, and how many cells there were of each, in words.

    Raises:
      UnreadableSource: a column has no number there.
    """
    values, medians, notes = values.copy(), {}, {}
    places = {name: place for place, name in enumerate(columns.names)}
    for name in columns.medians:
        column = values[:, places[name]]
        empty = np.isnan(column)
        known = column[train][~empty[train]]
        if not len(known):
            raise UnreadableSource(
                f"column {name} is empty in all rows of the training split, so it has no median"
                " there",
                "take it out of data.numeric or, of a table, name it in data.ignore",
            )
        medians[name] = float(np.median(known))
        column[empty] = medians[name]
        if empty.any():
            notes[f"{name} missing, {medians[name]:.7g} for it"] = int(empty.sum())
    return values, replace(columns, medians=medians), notes


def refuse_two_uses(path: Path, named: Mapping[str, Sequence[str]]) -> None:
    """Refuse columns that are named twice, by the keys that name them; `split` names splits."""
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


def _refuse_mistaken_features(table: TextTable, apart: Sequence[str]) -> None:
    """Refuse a table whose columns cannot be meant as what they are read as, or that has none to
    learn from.
    """
    settings, problems = table.settings, Problems(table.path)
    kinds = find_kinds(table, apart)
    with problems.collect():
        refuse_mistaken(table, kinds)
    with problems.collect():
        if not {"number", "category"} & {*kinds.values()}:
            raise UnreadableSource(
                f"{table.path}: no column is left to learn from besides the label"
                f" {' and '.join(settings.label_columns)}",
                "set data.numeric or data.categorical",
            )
    with problems.collect():
        check_missing(table, kinds)
    problems.refuse()


def check_missing(table: TextTable, kinds: Mapping[str, Kind]) -> None:
    """Refuse what `data.missing` says of columns that it cannot hold of."""
    missing, problems = table.settings.missing, Problems(table.path)
    for name, way in missing.items() if isinstance(missing, dict) else ():
        with problems.collect():
            _check_missing(table, name, way, kinds)
    problems.refuse()


def _check_missing(table: TextTable, name: str, way: str, kinds: Mapping[str, Kind]) -> None:
    features = {each: kind for each, kind in kinds.items() if kind in ("number", "category")}
    if name not in features:
        raise UnreadableSource(
            f"{table.path}: data.missing: no feature is named {name}",
            did_you_mean(name, [*features]),
        )
    other = "median" if features[name] == "number" else "category"
    if way not in ("reject", other):
        held = "numbers" if features[name] == "number" else "categories"
        raise UnreadableSource(
            f"{table.path}: column {name} holds {held}", f"set data.missing: {{{name}: {other}}}"
        )


def _code_categories(cells: pa.LargeStringArray, vocabulary: tuple[str, ...]) -> np.ndarray:
    """(rows,) float64: each category's number in its vocabulary; NaN where it has none."""
    codes = pc.index_in(cells, pa.array(vocabulary, pa.large_string()))
    return np.asarray(pc.fill_null(codes.cast(pa.float64()), np.nan), np.float64)


def _of_kind(kinds: dict[str, Kind], kind: Kind) -> list[str]:
    return [name for name, each in kinds.items() if each == kind]


def _vocabulary(table: TextTable, name: str) -> tuple[str, ...]:
    words = pc.unique(table.columns[name]).to_pylist()
    return tuple(
        sorted(word for word in words if word or table.settings.missing_in(name) != "reject")
    )


def read_targets(table: TextTable, reasons: list[str | None]) -> np.ndarray:
    """The numbers to predict (rows, targets) float64; why a row has none goes into `reasons`."""
    names = table.settings.label_columns
    targets = np.stack([table.numbers(name) for name in names], axis=1)
    for place, name in reversed([*enumerate(names)]):
        shown = "label" if len(names) == 1 else f"label {name}"
        for row in np.flatnonzero(~np.isfinite(targets[:, place])).tolist():
            empty = not table.columns[name][row].as_py()
            reasons[row] = (
                f"{shown} missing" if empty else explain_no_number(table, name, row, shown=shown)
            )
    return targets


def _read_classes(table: TextTable, reasons: list[str | None]) -> list[str]:
    """The class of each row; why a row has none goes into `reasons`."""
    name = table.settings.label_columns[0]
    if table.settings.label_kind == "auto" and guess_kind(table, name) == "number":
        for row in np.flatnonzero(~np.isfinite(table.numbers(name))).tolist():
            reasons[row] = explain_no_number(table, name, row, shown="label")
    for row in np.flatnonzero(np.asarray(pc.equal(table.columns[name], ""), bool)).tolist():
        reasons[row] = "label missing"
    return table.cells(name)


def _label_kind(table: TextTable, settings: DataSettings) -> LabelKind:
    """A class is text, a boolean or one of few whole numbers. Fractions are numbers to predict, and
    so are whole numbers written with a decimal point where there are too many for classes.

    Raises:
      UnreadableSource: many whole numbers may be either; texts are as many as rows; or two
        spellings would be two classes.
    """
    if settings.label_kind == "number":
        refuse_text_labels(table)
        return "number"
    name = settings.label_columns[0]
    if settings.label_kind == "class":
        return "class"
    looks = guess_kind(table, name)
    shown = f"{table.path}: label column {name}"
    if looks == "category" and looks_like_numbers(table.columns[name]):
        raise UnreadableSource(
            f"{shown} {UNREAD_NUMBERS}", "or set data.label_kind: class to make classes of them"
        )
    reading = describe_column(table, name, "label")
    rows = len(table) - reading.missing
    if looks == "category" or _is_truth(table, name):
        if reading.distinct > max(FEW_CATEGORIES, rows / 2):
            raise UnreadableSource(
                f"{shown} has {reading.distinct:,} different texts in {rows:,} rows: no classes",
                "name another data.label_column, or set data.label_kind: class",
            )
        return "class"
    values = table.numbers(name)
    values = values[np.isfinite(values)]
    return guess_label_kind(
        shown,
        distinct=reading.distinct,
        rows=rows,
        fractions=bool((values % 1 != 0).any()),
        floats=name in table.floats or have_fractions(table.columns[name], table.decimal_of(name)),
    )


def refuse_text_labels(table: TextTable) -> None:
    """Refuse numbers to predict that are text."""
    for name in table.settings.label_columns:
        if guess_kind(table, name) == "category":
            raise UnreadableSource(
                f"{table.path}: label column {name} holds text, and data.label_kind: number needs"
                " numbers",
                "set data.label_kind: class, or name another data.label_column",
            )


def refuse_double_spelling(table: TextTable) -> None:
    """Refuse a label in which 1 and 1.0, or true and True, would be two classes."""
    name = table.settings.label_columns[0]
    texts, spelled = pc.unique(table.columns[name]), {}
    values = read_numbers(texts, table.decimal_of(name)).tolist()
    for text, value in zip(texts.to_pylist(), values, strict=True):
        if abs(value) < EXACT_IN_64 and spelled.setdefault(value, text) != text:
            raise UnreadableSource(
                f"{table.path}: label column {name} holds {spelled[value]} and {text}, the same"
                " value",
                "write it alike, or set data.label_kind: class to keep them apart",
            )


def _refuse_merging_label(table: TextTable, name: str) -> None:
    if merging := find_merging(table.numbers(name)):
        raise UnreadableSource(
            f"{table.path}: label column {name} {merging}",
            "or set data.label_kind: number to predict them so rounded",
        )


def _is_truth(table: TextTable, name: str) -> bool:
    return set(pc.unique(pc.utf8_lower(table.columns[name])).to_pylist()) <= {"true", "false", ""}


def _by_value(name: str) -> tuple[float, str]:
    """Numbers by value, words by spelling."""
    try:
        return float(name), name
    except ValueError:
        return float("inf"), name
