"""Images listed in a table: CSV or Parquet with a path (relative to the table's folder), a class or
a number to predict and, if wanted, a split and columns that the model sees as well. `data.path` is
the folder that holds both, of which every file is watched, or the table alone.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from throughline.data.encodings.labels import LabelKind
from throughline.data.sources.base import ColumnReading, ExampleFile, Files, ListedColumns, Rejected
from throughline.data.sources.column_kinds import (
    Kind,
    describe_column,
    explain_no_number,
    guess_kind,
    refuse_mistaken,
)
from throughline.data.sources.table import (
    check_missing,
    choose_columns,
    code_rows,
    refuse_double_spelling,
    refuse_two_uses,
)
from throughline.data.sources.tabular import (
    TABLES,
    Problems,
    TextTable,
    check_columns,
    read_split,
    read_table,
)
from throughline.plan.schema import TableColumns
from throughline.settings import DataSettings
from throughline.shared.errors import DataNotFound, UnreadableSource

UNWATCHED = "DVC does not watch the images: data.path names the table, not the folder of both"
IMAGE = "image"  # as the images themselves are called where a model is served


def scan(settings: DataSettings) -> Files:
    """Read the table at or in `data.path`; an optional column `split` holds train, validation or
    test. The label is a class unless `data.label_kind` says number; columns that `data.numeric` and
    `data.categorical` name are a second input.

    Raises:
      DataNotFound: a folder holds no table, or several.
      UnreadableSource: the table cannot be read, or lacks a column.
    """
    path = _find_table(Path(settings.path))
    table = read_table(path, settings)
    _check(table)
    kind: LabelKind = "number" if settings.label_kind == "number" else "class"
    if settings.label_kind == "auto":
        refuse_double_spelling(table, settings.label_column)
    listed = settings.numeric or settings.categorical
    columns = (
        choose_columns(table, settings.numeric, settings.categorical) if listed else TableColumns()
    )
    values, problems = code_rows(table, columns, hint=True)
    numbers = table.numbers(settings.label_column) if kind == "number" else None
    labels = table.cells(settings.label_column) if numbers is None else map(str, numbers.tolist())
    files, rejected, places = [], [], []
    splits = table.cells("split") if "split" in table.columns else [""] * len(table)
    for row, (name, label, named) in enumerate(
        zip(table.cells(settings.path_column), labels, splits, strict=True)
    ):
        split, problem = read_split(named)
        if numbers is not None and not np.isfinite(numbers[row]):
            problem = explain_no_number(table, settings.label_column, row, shown="label")
        where = f"row {row + 1}: {name}"
        if not name:
            rejected.append(Rejected(id=f"row {row + 1}", reason="path missing"))
        elif not table.columns[settings.label_column][row].as_py():
            rejected.append(Rejected(id=where, reason="label missing"))
        elif reason := problem or problems[row]:
            rejected.append(Rejected(id=where, reason=reason))
        else:
            files.append(ExampleFile(id=name, path=path.parent / name, label=label, split=split))
            places.append(row)
    watched = path != Path(settings.path)
    return Files(
        root=path.parent,
        files=files,
        label_kind=kind,
        listed=ListedColumns(columns=columns, values=values[places]) if listed else None,
        rejected=rejected,
        readings=_describe(table),
        dialect=table.describe_dialect() if listed or kind == "number" else (),
        warnings=[] if watched else [UNWATCHED],
    )


def _check(table: TextTable) -> None:
    """Refuse a table without a column that is needed, or with one that cannot be meant so."""
    settings, problems = table.settings, Problems(table.path)
    named = {
        "data.path_column": [settings.path_column],
        "data.label_column": [settings.label_column],
        "data.numeric": settings.numeric,
        "data.categorical": settings.categorical,
    }
    check_columns(table, named)
    with problems.collect():
        refuse_two_uses(table, named)
    kinds = _listed_kinds(settings)
    with problems.collect():
        refuse_mistaken(table, kinds)
    with problems.collect():
        check_missing(table, kinds)
    label = settings.label_column
    with problems.collect():
        if settings.label_kind == "number" and guess_kind(table, label) == "category":
            raise UnreadableSource(
                f"{table.path}: label column {label} holds text, and data.label_kind: number needs"
                " numbers",
                "set data.label_kind: class, or name another data.label_column",
            )
    with problems.collect():
        if IMAGE in kinds:
            raise UnreadableSource(
                f"{table.path}: a column that the model sees is named {IMAGE}, as the image itself",
                "give it another name",
            )
    problems.refuse()


def _listed_kinds(settings: DataSettings) -> dict[str, Kind]:
    """The columns that the model sees, by what they hold."""
    numbers: dict[str, Kind] = dict.fromkeys(settings.numeric, "number")
    return {**numbers, **dict.fromkeys(settings.categorical, "category")}


def _describe(table: TextTable) -> list[ColumnReading]:
    kinds: dict[str, Kind] = {table.settings.label_column: "label"}
    kinds |= _listed_kinds(table.settings)
    return [describe_column(table, name, kind) for name, kind in kinds.items()]


def _find_table(path: Path) -> Path:
    if not path.is_dir():
        return path
    tables = sorted(
        one
        for one in path.iterdir()
        if one.suffix.lower() in TABLES and not one.name.startswith(".")
    )
    if len(tables) != 1:
        names = ", ".join(table.name for table in tables) or "none"
        raise DataNotFound(
            f"data.path: {path} holds {len(tables)} tables ({names}); expected one, of"
            f" {', '.join(sorted(TABLES))}, next to the images that it lists"
        )
    return tables[0]
