"""Makes documents from the fields of rows or JSON objects, and a table from cells they keep."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from throughline.data.encodings.base import RejectedValue
from throughline.data.encodings.texts import check_size
from throughline.data.found import Document, Rejected, is_utf8
from throughline.data.tables.tabular import TextTable, clean_cells, read_split
from throughline.plan.schema import TableColumns
from throughline.settings import DataSettings

UNLABELED = "text"  # the one class of documents without classes


class NumberText(str):
    """A cell that is a number in its source, written with a decimal point."""

    __slots__ = ()


@dataclass(frozen=True, kw_only=True)
class KeptCells:
    """The cells that documents keep, from the columns `names` of the file at `path`.

    The kinds of columns are open until the cells of all documents are known. `floats` and
    `delimiter` are as in `TextTable`.
    """

    path: Path
    settings: DataSettings
    names: tuple[str, ...]
    floats: frozenset[str] = frozenset()
    delimiter: str = ""

    def make_table(
        self, rows: Sequence[Sequence[str]], *, trained: TableColumns | None = None
    ) -> TextTable:
        columns = zip(*rows, strict=True) if rows else [()] * len(self.names)
        cells, floats = dict(zip(self.names, columns, strict=True)), set(self.floats)
        for name, column in cells.items():
            if all(isinstance(cell, NumberText) for cell in column if cell):
                floats.add(name)
        return clean_cells(
            TextTable(
                path=self.path,
                columns={name: pa.array(cells[name], pa.large_string()) for name in cells},
                rows=len(rows),
                settings=self.settings,
                floats=frozenset(floats),
                delimiter=self.delimiter,
                trained=trained,
            )
        )


def read_fields(
    fields: Mapping[str, Any],
    example_id: str,
    settings: DataSettings,
    *,
    use_splits: bool = True,
) -> Document | Rejected:
    """Return the document that fields describe, or why they describe none.

    With `use_splits`, a field `split` may hold train, validation or test.
    """
    text, label = fields.get(settings.text_column), fields.get(settings.label_columns[0])
    missing = settings.missing_marks
    if text is None or (isinstance(text, str) and text.strip() in missing(settings.text_column)):
        return Rejected(id=example_id, reason="text missing")
    if not isinstance(text, str):
        return Rejected(id=example_id, reason=f"text is {type(text).__name__}, not a string")
    if isinstance(label, (list, dict, bytes)) and settings.label_kind not in ("none", "number"):
        return Rejected(id=example_id, reason=f"label is {type(label).__name__}, not one name")
    name = _as_cell(label)
    name = label_or_none("" if name in missing(settings.label_columns[0]) else name, settings)
    if not name and settings.label_kind != "number":
        return Rejected(id=example_id, reason="label missing")
    split = fields.get("split") if use_splits else None
    split, problem = read_split(None if split in missing("split") else split)
    if problem is not None:
        return Rejected(id=example_id, reason=problem)
    try:
        name.encode()
        check_size(len(text.encode("utf-8", "surrogatepass")), settings.max_bytes)
    except UnicodeEncodeError:
        return Rejected(id=example_id, reason=f"label is not {settings.encoding}")
    except RejectedValue as error:
        return Rejected(id=example_id, reason=error.reason)
    kept = settings.kept_columns
    for one in kept:
        if problem := _find_cell_problem(fields.get(one), settings):
            return Rejected(id=example_id, reason=f"{one} is {problem}")
    cells = [_as_cell(fields.get(one)) for one in kept]
    return Document(id=example_id, content=text, label=name, split=split, cells=cells)


def _find_cell_problem(value: Any, settings: DataSettings) -> str | None:
    if isinstance(value, (list, dict, bytes)):
        return f"{type(value).__name__}, no single value"
    return None if is_utf8(_as_cell(value)) else f"not {settings.encoding}"


def label_or_none(name: str, settings: DataSettings) -> str:
    """Return the class of a document: `name`, or the one class of all if they have none."""
    return UNLABELED if settings.label_kind == "none" else name


def _as_cell(value: Any) -> str:
    """Return a value as the text of a cell or the name of a class; 2.0 becomes 2."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        whole = isinstance(value, float) and value.is_integer()
        return NumberText(int(value) if whole else value)
    return str(value).strip()
