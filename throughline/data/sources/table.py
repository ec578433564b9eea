"""Examples as rows of a table: numeric columns, then categories as numbers, and a label column.

Categories and classes are the text of their cells.
"""

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow.compute

from throughline.data.encodings.arrays import array_feature
from throughline.data.encodings.labels import LabelKind, guess_label_kind, labeled, list_numbers
from throughline.data.found import Arrays, Rejected
from throughline.data.tables import column_kinds, odd_values, table_columns, tabular
from throughline.data.tables.column_kinds import Kind
from throughline.data.tables.number_text import explain_unread, have_fractions, read_numbers
from throughline.data.tables.tabular import TextTable
from throughline.settings import DataSettings
from throughline.shared.errors import UnreadableSource

pc: Any = pyarrow.compute  # untyped: the import makes its functions
EXACT_IN_64 = 2.0**53  # below it, float64 holds every whole number
_WHOLE = re.compile(r"-?\d\.0+e\+00")


def scan(settings: DataSettings) -> Arrays:
    """Read the table at `data.path`; a column `split` or file names may give the splits.

    `data.label_kind` says whether labels are classes or numbers; `auto` decides by the column.
    """
    table = tabular.read_table(Path(settings.path), settings)
    kinds, kind = _check_kinds(table)
    numeric = settings.numeric or [name for name in kinds if kinds[name] == "number"]
    categorical = settings.categorical or [name for name in kinds if kinds[name] == "category"]
    number = kind == "number"
    heading = odd_values.find_units(table, [*numeric, *(settings.label_columns if number else ())])
    body = table.skip(len(heading))
    columns = table_columns.choose_columns(body, numeric, categorical)
    values, problems = table_columns.code_rows(table, columns, hint=True)
    predicted = table_columns.read_targets(table, problems) if number else np.empty((len(table), 0))
    labels: list[Any] = list_numbers(predicted) if number else _read_classes(table, problems)
    features = [*zip(numeric, values.T, strict=False)]
    targets = [*zip(settings.label_columns, predicted.T, strict=False)]
    if odd_values.find_total(table, [column for _, column in [*features, *targets]]):
        problems[-1] = "holds sums or means of the rows above it"
    for row in heading:
        problems[row] = "holds units or a second header: remove it"
    splits = tabular.read_splits(table)
    reasons = [wrong or problem for (_, wrong), problem in zip(splits, problems, strict=True)]
    rows = [row for row, reason in enumerate(reasons) if reason is None]
    labels, ids = [labels[row] for row in rows], [f"{row:08d}" for row in rows]
    groups = table.cells(settings.group) if settings.group else []
    roles: dict[str, Kind] = {**dict.fromkeys(settings.label_columns, "label"), "split": "split"}
    roles |= {settings.group: "group"} if settings.group else {}
    value = array_feature("numbers", (len(columns.names),), "float32", columns)
    return Arrays(
        values=values[rows],
        labels=labels,
        ids=ids,
        splits=[splits[row][0] for row in rows],
        classes=[] if number else sorted(sorted({*labels}), key=_by_value),
        schema=labeled(value, kind, targets=len(settings.label_columns)),
        rejected=[
            Rejected(id=f"row {row + 1}", reason=reason)
            for row, reason in enumerate(reasons)
            if reason
        ],
        readings=[
            column_kinds.describe_column(body, name, roles.get(name) or kinds[name])
            for name in table.columns
        ],
        dialect=table.describe_dialect(),
        left_out=table.left_out,
        warnings=[
            *table.warnings,
            *table.describe_unread(),
            *column_kinds.find_missing_marks(columns),
            *odd_values.find_totals(
                table,
                [name for name in kinds if kinds[name] != "number"],
                {*range(len(table))}.difference(rows),
            ),
            *odd_values.find_sentinels(table, [*features, *targets]),
            *(
                odd_values.find_same(features, targets[0][1])
                if number
                else odd_values.find_leaks(table, columns.names)
            ),
            *odd_values.find_groups(table, [*kinds]),
        ],
        groups={name: groups[row] for name, row in zip(ids, rows, strict=True) if groups},
    )


def _check_kinds(table: TextTable) -> tuple[dict[str, Kind], LabelKind]:
    settings = table.settings
    named = {
        "data.label_column": settings.label_columns,
        "data.numeric": settings.numeric,
        "data.categorical": settings.categorical,
        "data.ignore": settings.ignore,
        "data.group": [settings.group] if settings.group else [],
    }
    apart = [*settings.label_columns, "split", settings.group]

    # A label column shows that rows are examples.
    may_be_wide = not table.columns.keys() & {*settings.label_columns}

    def refuse_none(kinds: Mapping[str, Kind]) -> None:
        if not {"number", "category"} & {*kinds.values()}:
            raise UnreadableSource(
                f"{table.path}: no column is left to learn from, except the label"
                f" {' and '.join(settings.label_columns)}",
                "set data.numeric or data.categorical",
            )

    def find_feature_kinds() -> dict[str, Kind]:
        kinds = column_kinds.find_kinds(table, apart)
        tabular.check_all(
            table.path,
            partial(column_kinds.refuse_mistaken, table, kinds),
            partial(refuse_none, kinds),
            partial(table_columns.check_missing, table, kinds),
        )
        return kinds

    *_, kinds, kind = tabular.check_all(
        table.path,
        partial(tabular.check_columns, table, named),
        partial(table_columns.check_marks, table.path, settings, table.columns),
        *[partial(column_kinds.refuse_wide, table)] * may_be_wide,
        partial(table_columns.refuse_two_uses, table.path, named),
        find_feature_kinds,
        partial(_find_label_kind, table),
    )
    return kinds, kind


def _read_classes(table: TextTable, reasons: list[str | None]) -> list[str]:
    name = table.settings.label_columns[0]
    if table.settings.label_kind == "auto" and column_kinds.guess_kind(table, name) == "number":
        for row in np.flatnonzero(~np.isfinite(table.numbers(name))).tolist():
            reasons[row] = column_kinds.explain_no_number(table, name, row, shown="label")
    for row in np.flatnonzero(np.asarray(pc.equal(table.columns[name], ""), bool)).tolist():
        reasons[row] = "label missing"
    cells = table.cells(name)
    # NumPy's savetxt writes 1 as 1.000000000000000000e+00.
    whole = {cell: f"{float(cell):.0f}" for cell in {*cells} if _WHOLE.fullmatch(cell)}
    return [whole.get(cell, cell) for cell in cells]


def _find_label_kind(table: TextTable) -> LabelKind:
    """Return the kind of the labels: `data.label_kind` or, for `auto`, the kind of their values.

    Texts, booleans, and whole numbers that are few or number classes are classes. Fractions,
    and many whole numbers written with a decimal point, are numbers to predict.
    """
    settings, name = table.settings, table.settings.label_columns[0]
    if not table.columns.keys() >= {*settings.label_columns}:
        return "class"  # missing columns are refused elsewhere
    table_columns.refuse_text_labels(table)
    if settings.label_kind in ("number", "class"):
        return cast("LabelKind", settings.label_kind)
    kind = _guess_label_kind(table, name)
    if kind == "class":
        refuse_double_spelling(table)
    elif merging := column_kinds.find_merging(table.numbers(name)):
        raise UnreadableSource(
            f"{table.path}: label column {name} {merging}",
            "or set data.label_kind: number to predict them rounded",
        )
    return kind


def _guess_label_kind(table: TextTable, name: str) -> LabelKind:
    looks = column_kinds.guess_kind(table, name)
    shown = f"{table.path}: label column {name}"
    decimal = table.decimal_of(name)
    if looks == "category" and (unread := explain_unread(table.columns[name], decimal)):
        raise UnreadableSource(
            f"{shown} {unread}", "or set data.label_kind: class to make classes of them"
        )
    if looks == "number" and (texts := column_kinds.explain_texts(table, name)):
        raise UnreadableSource(
            f"{shown} {texts}",
            "set data.label_kind: class to make classes of them, or number to reject the texts",
        )
    reading = column_kinds.describe_column(table, name, "label")
    rows = len(table) - reading.missing
    lower = pc.utf8_lower(table.columns[name])
    if looks == "category" or {*pc.unique(lower).to_pylist()} <= {"true", "false", ""}:
        if reading.distinct > max(column_kinds.FEW_CATEGORIES, rows / 2):
            raise UnreadableSource(
                f"{shown} has {reading.distinct:,} different texts in {rows:,} rows: too many",
                "name another data.label_column, or set data.label_kind: class",
            )
        return "class"
    values = table.numbers(name)
    values = values[np.isfinite(values)]
    return guess_label_kind(
        shown,
        np.unique(values).tolist(),
        rows=rows,
        fractions=bool((values % 1 != 0).any()),
        floats=name in table.floats or have_fractions(table.columns[name], decimal),
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
                "write it in one way, or set data.label_kind: class to keep them apart",
            )


def _by_value(name: str) -> tuple[float, str]:
    try:
        return float(name), name
    except ValueError:
        return float("inf"), name
