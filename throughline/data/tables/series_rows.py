"""Refuses tables in which each row is a series, with a column per time: 1/22/20, 1/23/20."""

from __future__ import annotations

import re
from typing import Any

import pyarrow.compute

from throughline.data.tables.column_kinds import guess_kind
from throughline.data.tables.tabular import TextTable
from throughline.shared.errors import UnreadableSource

pc: Any = pyarrow.compute  # its functions are made when it is imported
_MONTH = r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_TIME = re.compile(
    r"X?((19|20)\d\d( ?\[YR\d{4}\]|[-/. ]?(Q[1-4]|M?\d{1,2}))?"  # years, quarters, months
    r"|(19|20)\d\d([-/.]\d{1,2}){2}([T ].*)?"
    r"|\d{1,2}(?P<mark>[-/.])\d{1,2}(?P=mark)\d{2,4}([T ].*)?"
    r"|\d{1,2}:\d{2}(:\d{2})?"
    rf"|(\d{{1,2}}[-. ]*)?{_MONTH}[-. ,]*(\d{{1,2}},? )?(\d{{2}}|\d{{4}}))",
    re.IGNORECASE,
)
_LEAST = 3  # columns that are named as times


def refuse_wide(table: TextTable) -> None:
    """Refuse a table if most of its columns are named as times."""
    times = [name for name in table.columns if _TIME.fullmatch(name)]
    if len(times) < _LEAST or 2 * len(times) <= len(table.columns):
        return
    others = [name for name in table.columns if name not in times]
    texts = [name for name in others if guess_kind(table, name) == "category"] or others
    sep = "" if table.delimiter in (",", "") else f", sep={table.delimiter!r}"
    read = "read_parquet" if table.path.suffix.lower() == ".parquet" else "read_csv"
    command = f"pandas.{read}({table.path.name!r}{sep})"
    if texts:
        place = max(texts, key=lambda name: pc.count_distinct(table.columns[name]).as_py())
        command += (
            f".melt({others!r}, var_name='time').pivot_table('value', 'time', {place!r},"
            " aggfunc='sum', sort=False)"
        )
    else:
        command += ".T"
    raise UnreadableSource(
        f"{table.path}: {len(times):,} columns are named as times, from {times[0]} to {times[-1]}:"
        " each row is a series, not a time step",
        "write a row for each time:"
        f"\n{command}.to_csv('by_time.csv', index_label='time')\nand set data.time_column: time",
    )
