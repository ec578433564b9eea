"""Texts as rows of a table that need not fit into memory: CSV, TSV or Parquet.

Also makes documents from fields of JSON objects, and a table from the cells that documents keep.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from throughline.data.encodings.base import Reason, RejectedValue
from throughline.data.encodings.texts import check_encoding, check_size
from throughline.data.found import Document, Rejected, Texts, is_utf8
from throughline.data.tables import delimited, tabular
from throughline.data.tables.delimited import RowLine
from throughline.data.tables.number_text import is_number
from throughline.data.tables.table_columns import check_names, name_columns
from throughline.data.tables.table_files import NoText, TableFiles, as_text, find_floats
from throughline.data.tables.table_paths import find_delimited, open_files
from throughline.data.tables.table_start import read_start
from throughline.data.tables.tabular import (
    OtherSplits,
    TextTable,
    refuse_column,
    refuse_undivided,
)
from throughline.plan.schema import TableColumns
from throughline.settings import DataSettings
from throughline.settings.source_kinds import TABLES
from throughline.shared.errors import UnreadableSource

_ROWS = 256
KEY = "text_column"  # key of params.yaml that names the column of texts
TEXT = "text"  # name of the texts when a model is served
UNDECODED = "surrogateescape"  # for bytes that are not in the encoding
DOUBTFUL = 10_000  # lines that may be rows, kept until more classes are known
_TEXTS = ("string", "large_string", "dictionary")  # types of columns
UNLABELED = "text"  # the one class of documents without classes


class NumberText(str):
    """A cell that is a number in its source, written with a decimal point."""

    __slots__ = ()


@dataclass(frozen=True, kw_only=True)
class KeptCells:
    """The cells that documents keep: those in the columns `names` of the file at `path`.

    The kinds of columns are known only when all documents are read. `floats` and `delimiter` are as
    in `TextTable`.
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
        cells = dict(zip(self.names, columns, strict=True))
        numbers = {
            name
            for name, column in cells.items()
            if all(isinstance(cell, NumberText) for cell in column if cell)
        }
        return tabular.clean_cells(
            TextTable(
                path=self.path,
                columns={name: pa.array(cells[name], pa.large_string()) for name in cells},
                rows=len(rows),
                settings=self.settings,
                floats=self.floats | numbers,
                delimiter=self.delimiter,
                trained=trained,
            )
        )


def scan(settings: DataSettings, *, use_splits: bool = True) -> Texts:
    """Read the table at `data.path`; with `use_splits`, a column or file names give the splits."""
    path = Path(settings.path)
    check_encoding(settings.encoding)
    if files := open_files(path, settings):
        return _scan_files(files, settings, use_splits=use_splits)
    if path.is_file() and path.suffix.lower() not in TABLES:
        raise UnreadableSource(
            f"{path}: a table of texts must be named .csv, .tsv, .psv or .parquet",
            "name it .tsv if tabs separate its cells; .jsonl and .txt need data.source: text_lines",
        )
    files, left_out, warnings = find_delimited(path, settings)
    named = {file: split if use_splits else None for file, split in files.items()}
    if kept := keep_cells(path, settings):
        kept = replace(kept, delimiter=read_start(min(files), settings, UNDECODED).delimiter)
    others = OtherSplits(settings, known=any(named.values())) if use_splits else None
    documents = chain.from_iterable(
        _csv_rows(file, split, settings, others, alone=file == path)
        for file, split in named.items()
    )
    return Texts(
        documents=_refuse_after(documents, others, path),
        total=sum(map(delimited.count_lines, files)),
        kept=kept,
        left_out=left_out,
        warnings=warnings,
    )


def _refuse_after(
    documents: Iterable[Document | Rejected], others: OtherSplits | None, path: Path
) -> Iterator[Document | Rejected]:
    yield from documents
    if others:
        others.refuse(path)


def keep_cells(
    path: Path, settings: DataSettings, *, floats: frozenset[str] = frozenset()
) -> KeptCells | None:
    """Return the cells that texts keep, or None; `floats` is as in `KeptCells`."""
    check_names(path, settings, name_columns(settings, KEY), input_name=TEXT)
    names = settings.kept_columns
    return KeptCells(path=path, settings=settings, names=names, floats=floats) if names else None


def check_fields(
    names: Sequence[str], needed: Mapping[str, Sequence[str]], *, where: str, auto: bool = False
) -> None:
    """Refuse missing columns; `needed` lists columns by the key of params.yaml that names them."""
    for key, columns in needed.items():
        for name in columns:
            if name not in names:
                refuse_column(where, name, names, key, auto=auto)


def _csv_rows(
    path: Path,
    split: str | None,
    settings: DataSettings,
    others: OtherSplits | None,
    *,
    alone: bool,
) -> Iterator[Document | Rejected]:
    with delimited.open_delimited(path, settings, errors=UNDECODED) as table:
        header, auto = table.header, settings.header == "auto"
        needed = name_columns(settings, KEY)
        for key, names in needed.items():
            for name in names:
                refuse_undivided(str(path), name, header, key)
        check_fields(header, needed, where=str(path), auto=auto)
        labels, numbers = set[str](), settings.label_kind == "number"
        doubtful: list[RowLine] = []
        place = header.index(settings.label_columns[0]) if settings.label_kind != "none" else None
        for number, record in enumerate(table.records, start=1):
            cells, example_id = record.cells, f"{'row ' if alone else f'{path.name}:'}{number:08d}"
            if len(cells) != len(header):
                found = f": {len(cells)}, not {len(header)}"
                reason = Reason("not as many fields as the header", found)
                yield Rejected(id=example_id, reason=reason)
                continue
            if place is not None:
                if settings.quoting == "auto":
                    lines = list(delimited.find_row_lines(record, table, place))
                    labels |= {line.label for line in lines if numbers and _is_number(line.label)}
                    _refuse_joined_rows(lines, path, labels)
                    doubtful += lines[: DOUBTFUL - len(doubtful)]
                labels |= set() if numbers else {cells[place].strip()}
            fields = {name: cell or None for name, cell in zip(header, cells, strict=True)}
            yield read_fields(fields, example_id, settings, others, split=split)
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
                " texts do hold line breaks",
            )


def _scan_files(files: TableFiles, settings: DataSettings, *, use_splits: bool) -> Texts:
    path, names = files.path, files.schema.names
    named = name_columns(settings, KEY)
    check_fields(names, named, where=str(path))
    needed = [*dict.fromkeys(chain.from_iterable(named.values()))]
    others = OtherSplits(settings) if use_splits else None
    texts = [field.name for field in files.schema if others and str(field.type).startswith(_TEXTS)]
    more = ["split", settings.group, *texts]
    needed += [one for one in dict.fromkeys(more) if one in names and one not in needed]
    documents = _read_rows(files, needed, settings, others)
    return Texts(
        documents=_refuse_after(documents, others, path),
        total=files.count_rows(),
        kept=keep_cells(path, settings, floats=find_floats(files.schema)),
        warnings=files.warnings,
        left_out=files.left_out,
    )


def _read_rows(
    files: TableFiles, names: list[str], settings: DataSettings, others: OtherSplits | None
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
            yield read_fields(fields, f"{below}{number:08d}", settings, others)


def _read_kept(column: pa.Array, name: str, path: Path) -> list[str]:
    try:
        return as_text(pa.chunked_array([column])).to_pylist()
    except (NoText, pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise UnreadableSource(
            f"{path}: column {name} ({column.type}) cannot be read as text", "name another column"
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


def read_fields(
    fields: Mapping[str, Any],
    example_id: str,
    settings: DataSettings,
    others: OtherSplits | None = None,
    *,
    split: str | None = None,
) -> Document | Rejected:
    """Return the document that the fields of a row or line hold, or why it is rejected.

    With `others`, a field `split` may hold train, validation or test; else `split` counts.
    """
    missing = settings.missing_marks
    text, label = fields.get(settings.text_column), fields.get(settings.label_columns[0])
    named = None
    if others is not None:
        named = fields.get("split")
        others.see(fields)
    try:
        if text is None or (
            isinstance(text, str) and text.strip() in missing(settings.text_column)
        ):
            raise RejectedValue("text missing")
        if not isinstance(text, str):
            raise RejectedValue(f"text is {type(text).__name__}, not a string")
        if isinstance(label, (list, dict, bytes)) and settings.label_kind not in ("none", "number"):
            raise RejectedValue(f"label is {type(label).__name__}, not one name")
        name = _as_cell(label)
        name = label_or_none("" if name in missing(settings.label_columns[0]) else name, settings)
        if not name and settings.label_kind != "number":
            raise RejectedValue("label missing")
        named, problem = tabular.read_split(None if named in missing("split") else named)
        if problem is not None:
            return Rejected(id=example_id, reason=problem)
        if not is_utf8(name):
            raise RejectedValue(f"label is not {settings.encoding}")
        check_size(len(text.encode("utf-8", "surrogatepass")), settings.max_bytes)
        cells = [_read_cell(fields, one, settings) for one in settings.kept_columns]
        group = _read_cell(fields, settings.group, settings)
    except RejectedValue as error:
        return Rejected(id=example_id, reason=error.reason)
    group = "" if group in missing(settings.group) else group
    split = named or split
    return Document(id=example_id, content=text, label=name, split=split, cells=cells, group=group)


def _read_cell(fields: Mapping[str, Any], name: str, settings: DataSettings) -> str:
    value = fields.get(name)
    if isinstance(value, (list, dict, bytes)):
        raise RejectedValue(f"{name} is {type(value).__name__}, not a single value")
    cell = _as_cell(value)
    if not is_utf8(cell):
        raise RejectedValue(f"{name} is not {settings.encoding}")
    return cell


def label_or_none(name: str, settings: DataSettings) -> str:
    """Return the class of a document: `name`, or `UNLABELED` if documents have no classes."""
    return UNLABELED if settings.label_kind == "none" else name


def _as_cell(value: Any) -> str:
    """Return a value as the text of a cell or the name of a class; 2.0 becomes 2."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        whole = isinstance(value, float) and value.is_integer()
        return NumberText(int(value) if whole else value)
    return str(value).strip()
