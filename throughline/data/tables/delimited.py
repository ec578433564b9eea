"""Reads delimited text (CSV, TSV) strictly, for tables.

Every cell is text. A record that does not fit the header is an error that names its line. Lenient
readers shift cells, join rows at a stray quote, or give a column several types.
"""

import csv
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple, TextIO

from throughline.data.tables.table_files import refuse_doubled
from throughline.data.tables.table_start import (
    BLANKS,
    Start,
    join_blanks,
    read_start,
    refuse_numbers,
    wrong_encoding,
)
from throughline.settings import DataSettings
from throughline.shared.errors import UnreadableSource

_SHOWN, _MOST_NOTES = 3, 9
_MOST_SHOWN = 40  # characters of a line
_BLOCK = 1 << 20  # bytes
_BLANKS_BETWEEN = re.compile(r'"[ \t]+"')


@dataclass(frozen=True, kw_only=True)
class Record:
    """A row as written: its cells, its first line in the file (from 1), and its physical lines."""

    cells: list[str]
    line: int
    text: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class DelimitedText:
    header: list[str]
    records: Iterator[Record]
    delimiter: str
    detected: Sequence[str] = ()

    @property
    def divides(self) -> str:
        """The delimiter; empty if it is a comma and there is a single column."""
        return "" if self.delimiter == "," and len(self.header) == 1 else self.delimiter


def count_lines(path: Path) -> int:
    """Count a file's line breaks: about as many as its rows, since quoted text may span lines."""
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(_BLOCK), b""))


@contextmanager
def open_delimited(
    path: Path, settings: DataSettings, *, errors: str = "strict"
) -> Iterator[DelimitedText]:
    """Open delimited text; `errors` is passed to `open`, for bytes not in `data.encoding`.

    Raises UnreadableSource, then or while records are read; it names the file, often the line.
    """
    csv.field_size_limit(sys.maxsize)
    start = read_start(path, settings, errors)
    with path.open(encoding=start.encoding, errors=errors, newline="") as file:
        records = _records(file, start, path, settings)
        first = next((record for record in records if record.cells), None)
        if first is None:
            raise UnreadableSource(f"{path} is empty; its first line must name the columns")
        if settings.quoting == "auto":
            refuse_joined_lines(first, path)
        header = [cell.removeprefix("\ufeff").strip() for cell in first.cells]
        rows = _rows(records, first, path, settings)
        if settings.header == "none":
            header = [f"column_{place + 1}" for place in range(len(header))]
            rows = chain([first], rows)
        else:
            header[0] = header[0].lstrip("# ") or header[0]
            if settings.header == "auto":
                refuse_numbers(header, path)
        header = [name or f"Unnamed: {place}" for place, name in enumerate(header)]
        no_header = ["set data.header: none if its first line is a row"]
        refuse_doubled(header, path, *no_header * (settings.header == "auto"))
        yield DelimitedText(
            header=header, records=rows, delimiter=start.delimiter, detected=start.notes
        )


def _rows(
    records: Iterator[Record], first: Record, path: Path, settings: DataSettings
) -> Iterator[Record]:
    """Yield the records after the first one; refuse a repeated header, as in joined files.

    Blank lines are skipped, unless they may be gaps in a series of a single column.
    """
    gaps = settings.source == "time_series" and len(first.cells) == 1
    blank: list[Record] | None = None  # since the last record
    for record in records:
        if record.cells == first.cells and settings.header != "none":
            raise UnreadableSource(
                f"{path}, line {record.line}: repeats the header; remove such lines of joined files"
            )
        if record.cells:
            yield from blank or ()
            blank = []
            yield record
        elif gaps and blank is not None:
            blank.append(replace(record, cells=[""]))


def _records(file: TextIO, start: Start, path: Path, settings: DataSettings) -> Iterator[Record]:
    """Yield every record below the skipped lines at the start; a blank line has no cells."""
    lines: list[str] = []  # of the record
    blanks, quotes = start.delimiter == BLANKS, settings.quoting != "none"

    def remember() -> Iterator[str]:
        for line in islice(file, start.skipped, None):
            lines.append(line)
            yield join_blanks(line) if blanks else line

    reader = csv.reader(
        remember(),
        delimiter=start.delimiter,
        strict=True,
        quoting=csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE,
    )
    while True:
        line = start.skipped + reader.line_num + 1
        lines.clear()
        try:
            cells = next(reader)
        except StopIteration:
            return
        except UnicodeError as error:
            raise wrong_encoding(path, settings, error) from error
        except csv.Error as error:
            where = f"{path}, line {line}"
            raise _explain_broken(str(error), where, lines, blanks=blanks) from error
        for cell in cells if quotes and any(' "' in one for one in lines) else ():
            if cell[:1] == " " and cell.lstrip(" ")[:1] == '"':
                raise UnreadableSource(
                    f"{path}, line {line}: the quotes of {cell[:40]!r} come after a blank and would"
                    " be read as part of the cell",
                    "remove blanks before quotes, or set data.quoting: none if quotes are ordinary"
                    " characters here",
                )
        yield Record(cells=cells, line=line, text=[*lines])


def _explain_broken(
    problem: str, where: str, lines: Sequence[str], *, blanks: bool
) -> UnreadableSource:
    if "expected after" not in problem and "end of data" not in problem:
        return UnreadableSource(f"{where}: not a readable table: {problem}")
    if not blanks and _BLANKS_BETWEEN.search(lines[0]):
        what = "blanks seem to separate quoted cells; set data.delimiter: blanks"
        return UnreadableSource(f"{where}: {what}")
    goes_on = f" of {len(lines)} lines" if lines[1:] else ""
    return UnreadableSource(
        f"{where}: a quoted cell{goes_on} does not end with its quote; a stray quote?",
        "set data.quoting: none if quotes are ordinary characters here, or write quotes within a"
        " quoted cell twice",
    )


def refuse_joined_lines(record: Record, path: Path) -> None:
    """Refuse a record of several lines: a stray quote joins rows together with their labels."""
    if len(record.text) > 1:
        raise UnreadableSource(
            f"{path}, line {record.line}: a quoted cell goes on to line"
            f" {record.line + len(record.text) - 1}; a stray quote would join these rows.",
            "set data.quoting: none if quotes are ordinary characters here, or multi_line if cells"
            " do hold line breaks",
        )


class FieldCount:
    """Counts the records that have more or fewer cells than the header."""

    def __init__(self, header: Sequence[str], path: Path) -> None:
        self._header, self._path = header, path
        self._wrong: list[Record] = []
        self._starts: dict[int, int] = {}  # the first line with each number of cells
        self._counts = Counter[int]()
        self._trailing, self._last_right = 0, 0

    def fit(self, record: Record) -> list[str]:
        """Count a record; return its cells, cut or padded to the number of names in the header."""
        cells, expected = record.cells, len(self._header)
        self._counts[len(cells)] += 1
        if len(cells) == expected:
            self._last_right = record.line
            return cells
        self._trailing += len(cells) == expected + 1 and not cells[-1].strip()
        self._starts.setdefault(len(cells), record.line)
        if len(self._wrong) < _SHOWN:
            self._wrong.append(record)
        return [*cells[:expected], *[""] * (expected - len(cells))]

    def check(self) -> str:
        """Refuse records that do not fit; if all only end with a delimiter, return a note on it."""
        rows, expected = self._counts.total(), len(self._header)
        count = rows - self._counts[expected]
        if not count:
            return ""
        if self._trailing == rows:
            return "every line ends with a delimiter, which is left out"
        shown = ", ".join(f"line {one.line} has {len(one.cells)}" for one in self._wrong)
        shown += f" ({self._wrong[0].text[0].strip()[:_MOST_SHOWN]!r})"
        raise UnreadableSource(
            f"{self._path}: the header has {expected} fields, unlike {count:,} of {rows:,} rows:"
            f" {shown}. {self._explain(count)}",
            "or set data.delimiter",
        )

    def _explain(self, count: int) -> str:
        first, last_right = self._wrong[0], self._last_right
        if first.line > last_right > 0 and count <= _MOST_NOTES:
            return (
                f"Get the file again if it ends within line {first.line}; remove text below the"
                " table if it is a note; else quote cells that hold the delimiter"
            )
        usual, found = self._counts.most_common(1)[0]
        start = self._starts.get(usual, 0)
        if start and 2 * found > self._counts.total():
            names = usual == len(self._header) + 1 and start == first.line
            return (
                f"Lines with {usual} cells begin in line {start}; are the lines above it titles?"
                " Remove them, or begin each with #"
                + "; if their first cells name rows, name that column in the header, too"
                * names
            )
        return "Remove such lines if they are not rows, or quote cells that hold the delimiter"


class RowLine(NamedTuple):
    """A line within the record from line `first` to `last` that reads as a row with this label."""

    first: int
    last: int
    line: int
    label: str


def find_row_lines(record: Record, table: DelimitedText, place: int) -> Iterator[RowLine]:
    """Yield a record's lines, except the last, with the header's number of cells and a label."""
    last = record.line + len(record.text) - 1
    for number, line in enumerate(record.text[:-1], start=record.line):
        cells = line.replace('"', "").strip("\r\n").split(table.delimiter)
        if len(cells) == len(table.header) and (label := cells[place].strip()):
            yield RowLine(record.line, last, number, label)
