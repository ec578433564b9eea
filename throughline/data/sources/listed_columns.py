"""Columns of the table that lists images or texts, which the model sees as a second input, and
numbers to predict of them. Not a source itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from throughline.data.encodings.labels import LabelKind
from throughline.data.sources.base import ColumnReading, ListedColumns
from throughline.data.sources.column_kinds import (
    Kind,
    describe_column,
    find_missing_marks,
    refuse_mistaken,
)
from throughline.data.sources.table import (
    check_missing,
    choose_columns,
    code_rows,
    read_targets,
    refuse_text_labels,
    refuse_two_uses,
)
from throughline.data.sources.tabular import Problems, TextTable
from throughline.plan.schema import TableColumns
from throughline.settings import DataSettings
from throughline.shared.errors import UnreadableSource


@dataclass(frozen=True, kw_only=True)
class Listing:
    """What a table says of the examples that it lists, row by row: `columns` that the model sees,
    if any, `numbers` (rows, targets) float64 to predict, if these are, and why a row cannot be
    used.
    """

    columns: ListedColumns | None
    numbers: np.ndarray | None
    problems: list[str | None]
    readings: Sequence[ColumnReading]
    dialect: Sequence[str]
    warnings: Sequence[str]

    @property
    def label_kind(self) -> LabelKind:
        """What labels are."""
        return "class" if self.numbers is None else "number"

    @property
    def targets(self) -> int:
        """How many numbers a label is."""
        return 1 if self.numbers is None else self.numbers.shape[1]


def name_required(settings: DataSettings, key: str) -> dict[str, Sequence[str]]:
    """The columns that every example has, by the keys of params.yaml that name them; `key` is that
    of the examples.
    """
    return {
        f"data.{key}": [getattr(settings, key)],
        "data.label_column": settings.label_columns if settings.label_kind != "none" else (),
    }


def name_columns(settings: DataSettings, key: str) -> dict[str, Sequence[str]]:
    """The same with those that the model sees."""
    seen = {"data.numeric": settings.numeric, "data.categorical": settings.categorical}
    return {**name_required(settings, key), **seen}


def check_names(path: Path, named: Mapping[str, Sequence[str]], *, input_name: str) -> None:
    """Refuse columns that are named twice, or as the examples are where a model is served."""
    problems = Problems(path)
    with problems.collect():
        refuse_two_uses(path, named)
    with problems.collect():
        if input_name in (*named["data.numeric"], *named["data.categorical"]):
            raise UnreadableSource(
                f"{path}: a column that the model sees is named {input_name}, as the {input_name}"
                " itself",
                "give it another name",
            )
    problems.refuse()


def read_listing(table: TextTable) -> Listing:
    """Read what `data.numeric`, `data.categorical` and `data.label_kind` name.

    Raises:
      UnreadableSource: all that cannot be meant so.
    """
    settings, kinds = table.settings, _list_kinds(table.settings)
    _check(table, kinds)
    columns = (
        choose_columns(table, settings.numeric, settings.categorical) if kinds else TableColumns()
    )
    values, problems = code_rows(table, columns, hint=True)
    numbers = None
    if settings.label_kind == "number":
        numbers = read_targets(table, problems)
    label: dict[str, Kind] = {
        name: "label" for name in settings.label_columns if name in table.columns
    }
    return Listing(
        columns=ListedColumns(columns=columns, values=values) if kinds else None,
        numbers=numbers,
        problems=problems,
        readings=[describe_column(table, name, kind) for name, kind in (label | kinds).items()],
        dialect=table.describe_dialect() if kinds or numbers is not None else (),
        warnings=find_missing_marks(columns),
    )


def _list_kinds(settings: DataSettings) -> dict[str, Kind]:
    """The columns that the model sees, by what they hold."""
    numbers: dict[str, Kind] = dict.fromkeys(settings.numeric, "number")
    return {**numbers, **dict.fromkeys(settings.categorical, "category")}


def _check(table: TextTable, kinds: Mapping[str, Kind]) -> None:
    settings, problems = table.settings, Problems(table.path)
    with problems.collect():
        refuse_mistaken(table, kinds)
    with problems.collect():
        check_missing(table, kinds)
    with problems.collect():
        if settings.label_kind == "number":
            refuse_text_labels(table)
    problems.refuse()
