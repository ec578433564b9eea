"""Texts as rows of a table that need not fit into memory: CSV, TSV or Parquet."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from throughline.data.encodings.base import Reason
from throughline.data.encodings.texts import check_encoding
from throughline.data.found import Document, Rejected, Texts
from throughline.data.sources.text_records import KeptCells, read_fields
from throughline.data.tables.delimited import (
    RowLine,
    count_lines,
    find_row_lines,
    open_delimited,
)
from throughline.data.tables.number_text import is_number
from throughline.data.tables.table_columns import check_names, name_columns
from throughline.data.tables.table_files import NoText, TableFiles, as_text, find_floats
from throughline.data.tables.table_start import read_start
from throughline.data.tables.tabular import TABLES, open_files
from throughline.settings import DataSettings
from throughline.shared.errors import UnreadableSource, did_you_mean

_ROWS = 256
KEY = "text_column"  # key of params.yaml that names the column of texts
TEXT = "text"  # name of the texts when a model is served
UNDECODED = "surrogateescape"  # for bytes that are not in the encoding
DOUBTFUL = 10_000  # lines that may be rows, kept until more classes are known


def scan(settings: DataSettings, *, use_splits: bool = True) -> Texts:
    """Read the table at `data.path`; `use_splits` applies a column `split`, if there is one."""
    path = Path(settings.path)
    check_encoding(settings.encoding)
    if files := open_files(path, settings):
        return _scan_files(files, settings, use_splits=use_splits)
    if path.suffix.lower() not in TABLES:
        raise UnreadableSource(
            f"{path}: a table of texts is named .csv, .tsv or .parquet",
            "for .jsonl and .txt set `data.source: text_lines`",
        )
    documents = _csv_rows(path, settings, use_splits=use_splits)
    if kept := keep_cells(path, settings):
        kept = replace(kept, delimiter=read_start(path, settings, UNDECODED).delimiter)
    return Texts(documents=documents, total=count_lines(path), kept=kept)


def keep_cells(
    path: Path, settings: DataSettings, *, floats: frozenset[str] = frozenset()
) -> KeptCells | None:
    """Return the cells that documents keep, or None; `floats` is as in `KeptCells`."""
    check_names(path, settings, name_columns(settings, KEY), input_name=TEXT)
    names = settings.kept_columns
    return KeptCells(path=path, settings=settings, names=names, floats=floats) if names else None


def check_fields(names: Sequence[str], needed: Mapping[str, Sequence[str]], *, where: str) -> None:
    """Refuse missing columns; `needed` has them by the keys of params.yaml that name them."""
    for key, columns in needed.items():
        for name in columns:
            if name not in names:
                raise UnreadableSource(
                    f"{where}: no column {name}; {did_you_mean(name, names)}", f"set {key}"
                )


def _csv_rows(
    path: Path, settings: DataSettings, *, use_splits: bool
) -> Iterator[Document | Rejected]:
    with open_delimited(path, settings, errors=UNDECODED) as table:
        header = table.header
        check_fields(header, name_columns(settings, KEY), where=str(path))
        labels, numbers = set[str](), settings.label_kind == "number"
        doubtful: list[RowLine] = []
        place = header.index(settings.label_columns[0]) if settings.label_kind != "none" else None
        for number, record in enumerate(table.records, start=1):
            cells, example_id = record.cells, f"row {number:08d}"
            if len(cells) != len(header):
                reason = Reason(
                    "other fields than the header", f": {len(cells)}, not {len(header)}"
                )
                yield Rejected(id=example_id, reason=reason)
                continue
            if place is not None:
                if settings.quoting == "auto":
                    lines = list(find_row_lines(record, table, place))
                    labels |= {line.label for line in lines if numbers and _is_number(line.label)}
                    _refuse_joined_rows(lines, path, labels)
                    doubtful += lines[: DOUBTFUL - len(doubtful)]
                labels |= set() if numbers else {cells[place].strip()}
            fields = {name: cell or None for name, cell in zip(header, cells, strict=True)}
            yield read_fields(fields, example_id, settings, use_splits=use_splits)
        _refuse_joined_rows(doubtful, path, labels)


def _is_number(text: str) -> bool:
    cell = pa.array([text], pa.large_string())
    return any(is_number(cell, mark)[0] for mark in ".,")


def _refuse_joined_rows(lines: Sequence[RowLine], path: Path, labels: Collection[str]) -> None:
    """Refuse lines of a text that read as rows with a known label: a stray quote joined them."""
    for one in lines:
        if one.label in labels:
            raise UnreadableSource(
                f"{path}, line {one.first}: a quoted text goes on to line {one.last}, and line"
                f" {one.line} in it reads as a row of its own; a stray quote?",
                "set data.quoting: none if quotes are ordinary characters here, or multi_line if"
                " the text is meant so",
            )


def _scan_files(files: TableFiles, settings: DataSettings, *, use_splits: bool) -> Texts:
    path, names = files.path, files.schema.names
    named = name_columns(settings, KEY)
    check_fields(names, named, where=str(path))
    needed = [*dict.fromkeys(chain.from_iterable(named.values()))]
    needed += ["split"] if "split" in names else []
    documents = _read_rows(files, needed, settings, use_splits=use_splits)
    kept = keep_cells(path, settings, floats=find_floats(files.schema))
    return Texts(
        documents=documents,
        total=files.count_rows(),
        kept=kept,
        warnings=files.warnings,
        left_out=files.left_out,
    )


def _read_rows(
    files: TableFiles, names: list[str], settings: DataSettings, *, use_splits: bool
) -> Iterator[Document | Rejected]:
    kept = settings.kept_columns
    for file, start, batch in files.read(names, rows=_ROWS):
        columns = [
            _read_kept(column, name, file) if name in kept else _read_cells(column)
            for name, column in zip(names, batch.columns, strict=True)
        ]
        below = "row " if file == files.path else f"{file.relative_to(files.path).as_posix()}:"
        for number, cells in enumerate(zip(*columns, strict=True), start=start + 1):
            fields = dict(zip(names, cells, strict=True))
            yield read_fields(fields, f"{below}{number:08d}", settings, use_splits=use_splits)


def _read_kept(column: pa.Array, name: str, path: Path) -> list[str]:
    try:
        return as_text(pa.chunked_array([column])).to_pylist()
    except (NoText, pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise UnreadableSource(
            f"{path}: column {name} ({column.type}) cannot be read as text", "name another one"
        ) from error


def _read_cells(column: pa.Array) -> list[Any]:
    """Return the values of a column; in texts, bytes that are not UTF-8 become surrogates."""
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        cells = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        return [
            cell.as_buffer().to_pybytes().decode("utf-8", "surrogateescape")
            if cell.is_valid
            else None
            for cell in cells
        ]
