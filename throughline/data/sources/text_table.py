"""Texts as rows of a table: CSV, TSV or Parquet with a column of texts and one of classes. Rows are
read one by one, so the table need not fit into memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

from throughline.data.encodings.texts import check_encoding
from throughline.data.sources.base import Document, Rejected, Texts
from throughline.data.sources.delimited import (
    DelimitedText,
    Record,
    find_joined_row,
    open_delimited,
)
from throughline.data.sources.text_records import read_fields
from throughline.settings import DataSettings
from throughline.shared.errors import DataNotFound, UnreadableSource, did_you_mean

CSV = (".csv", ".tsv")
_ROWS = 256
_BLOCK = 1 << 20


def scan(settings: DataSettings) -> Texts:
    """Read the table at `data.path`; an optional column `split` holds train, validation or test.

    Raises:
      DataNotFound: there is no such file.
      UnreadableSource: it is no table of this kind, or lacks a column.
    """
    path = Path(settings.path)
    if not path.is_file():
        raise DataNotFound(f"{path} does not exist; `data.path` must be a CSV or Parquet file")
    check_encoding(settings.encoding)
    if path.suffix == ".parquet":
        return _scan_parquet(path, settings)
    if path.suffix not in CSV:
        raise UnreadableSource(
            f"{path}: a table of texts is named .csv, .tsv or .parquet",
            "for .jsonl and .txt set `data.source: text_lines`",
        )
    return Texts(documents=_csv_rows(path, settings), total=_count_lines(path))


def check_fields(names: list[str], settings: DataSettings, *, where: str) -> None:
    """Refuse a table, or a first line, without a text or a label.

    Raises:
      UnreadableSource: names the column, the nearest one there is, and the key to set.
    """
    for key in _column_keys(settings):
        wanted = getattr(settings, key)
        if wanted not in names:
            raise UnreadableSource(
                f"{where}: no column {wanted}; {did_you_mean(wanted, names)}", f"set data.{key}"
            )


def _column_keys(settings: DataSettings) -> list[str]:
    """Keys of params.yaml that name a column which must be there."""
    return ["text_column", *(["label_column"] if settings.label_kind != "none" else [])]


def _csv_rows(path: Path, settings: DataSettings) -> Iterator[Document | Rejected]:
    with open_delimited(path, settings, errors="surrogateescape") as table:
        header = table.header
        check_fields(header, settings, where=str(path))
        labels: set[str] = set()
        place = header.index(settings.label_column) if settings.label_kind != "none" else None
        for number, record in enumerate(table.records, start=1):
            cells, example_id = record.cells, f"row {number:08d}"
            if len(cells) != len(header):
                reason = f"other fields than the header: {len(cells)}, not {len(header)}"
                yield Rejected(id=example_id, reason=reason)
                continue
            if place is not None:
                if settings.quoting == "auto":
                    _refuse_joined_rows(record, table, path, place, labels)
                labels.add(cells[place].strip())
            fields = zip(header, cells, strict=True)
            yield read_fields({name: cell or None for name, cell in fields}, example_id, settings)


def _refuse_joined_rows(
    record: Record, table: DelimitedText, path: Path, place: int, labels: set[str]
) -> None:
    """Texts may have several lines; a line that reads as a row of its own, with a class that is
    known, was joined to others by a stray quote.
    """
    line = find_joined_row(
        record, table, is_label=lambda cell, at: at == place and cell in labels and bool(cell)
    )
    if line is not None:
        raise UnreadableSource(
            f"{path}, line {record.line}: a quoted text goes on to line"
            f" {record.line + len(record.text) - 1}, and line {line} in it reads as a row of its"
            " own; a stray quote?",
            "set data.quoting: none if quotes are ordinary characters here, or multi_line if the"
            " text is meant so",
        )


def _scan_parquet(path: Path, settings: DataSettings) -> Texts:
    try:
        table = pq.ParquetFile(path)
    except Exception as error:  # parsers of other people's files raise anything
        raise UnreadableSource(f"{path} is not a readable Parquet table: {error}") from error
    names = list(table.schema_arrow.names)
    check_fields(names, settings, where=str(path))
    needed = [getattr(settings, key) for key in _column_keys(settings)]
    needed += ["split"] if "split" in names else []
    return Texts(
        documents=_parquet_rows(path, table, needed, settings), total=table.metadata.num_rows
    )


def _parquet_rows(
    path: Path, table: pq.ParquetFile, columns: list[str], settings: DataSettings
) -> Iterator[Document | Rejected]:
    number = 0
    try:
        for batch in table.iter_batches(batch_size=_ROWS, columns=columns):
            for fields in batch.to_pylist():
                number += 1
                yield read_fields(fields, f"row {number:08d}", settings)
    except OSError as error:
        raise UnreadableSource(f"{path}, after row {number}: cannot be read: {error}") from error


def _count_lines(path: Path) -> int:
    """About how many rows there are: a quoted text may have several lines."""
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(_BLOCK), b""))
