"""Cells that documents bring along, until those of all are known. Not a source itself: tables and
lines of texts use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from throughline.data.sources.tabular import TextTable, clean_cells
from throughline.plan.schema import TableColumns
from throughline.settings import DataSettings


class NumberText(str):
    """A cell that is a number in its source, with a decimal point."""

    __slots__ = ()


@dataclass(frozen=True, kw_only=True)
class KeptCells:
    """Which cells documents bring along, of the columns `names` of the file at `path`: what they
    are is open until those of all documents are known. `floats` and `delimiter` are those of
    `TextTable`.
    """

    path: Path
    settings: DataSettings
    names: tuple[str, ...]
    floats: frozenset[str] = frozenset()
    delimiter: str = ""

    def make_table(
        self, rows: Sequence[Sequence[str]], *, trained: TableColumns | None = None
    ) -> TextTable:
        """The cells of all documents as a table."""
        columns = zip(*rows, strict=True) if rows else [()] * len(self.names)
        cells, floats = {}, set(self.floats)
        for name, column in zip(self.names, columns, strict=True):
            floats |= (
                {name} if all(isinstance(cell, NumberText) for cell in column if cell) else set()
            )
            cells[name] = pa.array(column, pa.large_string())
        return clean_cells(
            TextTable(
                path=self.path,
                columns=cells,
                rows=len(rows),
                settings=self.settings,
                floats=frozenset(floats),
                delimiter=self.delimiter,
                trained=trained,
            )
        )
