"""Reads the start of delimited text: encoding, lines above the header, and delimiter."""

import codecs
import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from throughline.data.encodings.texts import check_encoding
from throughline.data.local_files import POINTER
from throughline.settings import DataSettings
from throughline.settings.source_kinds import SOURCES
from throughline.shared.errors import UnreadableSource

_DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
BLANKS = " "  # the delimiter that stands for any number of blanks and tabs
_BY_NAME = {"tab": "\t", "blanks": BLANKS}
# First bytes of files that are not text, with a remedy.
SIGNATURES = {
    b"PK\x03\x04": "a ZIP archive, as Excel's files are; save the sheet as CSV, or unpack it",
    b"\x1f\x8b": "compressed with GZIP; unpack it with gunzip",
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"GIF8": "a GIF image",
    b"%PDF": "a PDF document",
    b"\x93NUMPY": "a NumPy array",
    POINTER: "a pointer of Git LFS; get the file itself with `git lfs pull`",
}
_PROBED_LINES = 50
_MOST_TITLES = 9
_SEPARATOR = re.compile(r"\ufeff?sep=(.)\s*", re.IGNORECASE)  # Excel's own first line
_NUMBER = re.compile(r"[+-]?(\d+[.,]?\d*|[.,]\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True, kw_only=True)
class Start:
    """The notation in the first lines of a file; `skipped` lines stand above the header."""

    delimiter: str
    encoding: str
    skipped: int = 0
    notes: tuple[str, ...] = ()


def read_start(path: Path, settings: DataSettings, errors: str = "strict") -> Start:
    check_encoding(settings.encoding)
    encoding = _find_encoding(path, settings)
    with path.open(encoding=encoding, errors=errors, newline="") as file:
        try:
            lines = [line for line, _ in zip(file, range(_PROBED_LINES), strict=False)]
        except UnicodeError as error:
            raise wrong_encoding(path, settings, error) from error
    named = _SEPARATOR.fullmatch(lines[0]) if lines else None
    first = skipped = int(named is not None)
    of_texts = SOURCES[settings.source].encoding == "text"  # any line can be a text
    while skipped + 1 < len(lines) and _is_comment(lines[skipped], lines[skipped + 1], of_texts):
        skipped += 1
    if not of_texts:
        skipped = _skip_titles(lines, skipped)
    delimiter, notes = _BY_NAME.get(settings.delimiter, settings.delimiter), list[str]()
    if delimiter == "auto":
        delimiter, notes = (named[1], []) if named else _find_delimiter(path, lines[skipped:])
    if skipped and _is_header(lines[skipped - 1 :], delimiter):
        skipped -= 1
    above = [line.strip() for line in lines[first:skipped] if line.strip()]
    if above:
        more = f" and {len(above) - 1} more" if len(above) > 1 else ""
        notes.append(f"left out above the header: {above[0][:40]!r}{more}")
    if encoding == "utf-16" and codecs.lookup(settings.encoding).name == "utf-8":
        notes.append("the file is UTF-16, as its first bytes say")
    return Start(delimiter=delimiter, encoding=encoding, skipped=skipped, notes=tuple(notes))


def refuse_numbers(header: Sequence[str], path: Path) -> None:
    """Refuse a first line that holds an example, not names.

    Rising numbers, such as years, wavelengths, or 0, 1, 2, can be names.
    """
    numbers = [cell for cell in header if _NUMBER.fullmatch(cell)]
    values = [float(cell.replace(",", ".")) for cell in numbers]
    rising = all(one < other for one, other in pairwise(values))
    few = len(numbers) < 3 and any({*cell} & {*".,"} for cell in numbers)  # noqa: PLR2004 - a series
    if numbers and (few or not rising):
        raise UnreadableSource(
            f"{path}: its first line holds numbers, not names: {', '.join(header[:4])} …",
            f"set data.header: none if the line is a row (the columns are then column_1 …"
            f" column_{len(header)}), or names if the numbers are names; else remove the line",
        )


def wrong_encoding(path: Path, settings: DataSettings, error: UnicodeError) -> UnreadableSource:
    return UnreadableSource(
        f"{path} is not {settings.encoding}: {error}",
        "set data.encoding, such as latin-1, cp1252 or utf-16",
    )


def _find_encoding(path: Path, settings: DataSettings) -> str:
    """Return the encoding of the settings; for UTF-8, UTF-16 if a byte order mark says so."""
    with path.open("rb") as file:
        first = file.read(max(map(len, SIGNATURES)))
    for signature, what in SIGNATURES.items():
        if first.startswith(signature):
            raise UnreadableSource(f"{path} is {what}")
    if codecs.lookup(settings.encoding).name != "utf-8":
        return settings.encoding
    # A byte order mark before a quoted name would make its quotes a part of it.
    marked = first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return "utf-16" if marked else "utf-8-sig"


def _is_comment(line: str, following: str, of_texts: bool) -> bool:
    """Return whether a line above others is a comment; `|` begins comments in C4.5's files."""
    return line[:1] == "#" or (line[:1] == "|" and "|" not in line[1:] + following and not of_texts)


def _skip_titles(lines: Sequence[str], skipped: int) -> int:
    """Return the header's index if only titles stand above it, else `skipped`."""
    for top in range(skipped, min(skipped + _MOST_TITLES, len(lines) - 2)):
        for delimiter in _DELIMITERS:
            rows = [_cells(line, delimiter) for line in lines[top:] if line.strip()]
            if len(rows) < 2 or len(rows[0]) < 2 or {*map(len, rows)} != {len(rows[0])}:  # noqa: PLR2004
                continue
            above = lines[skipped:top]
            few = all(2 * sum(map(bool, _cells(one, delimiter))) <= len(rows[0]) for one in above)
            quoted = any(line.count('"') % 2 for line in above)  # a quoted name of several lines
            if few and not quoted and all(rows[0]) and not any(map(_NUMBER.fullmatch, rows[0])):
                return top
    return skipped


def _is_header(lines: Sequence[str], delimiter: str) -> bool:
    rows = [_cells(line, delimiter) for line in lines[:3]]
    if not lines[0].startswith("#") or len(rows[0]) < 2 or len(rows[0]) != len(rows[1]):  # noqa: PLR2004
        return False
    numbers = [any(map(_NUMBER.fullmatch, row)) for row in rows]
    return numbers[1] or not numbers[-1]


def _cells(line: str, delimiter: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter), [])]
    except csv.Error:
        return [line]


def _find_delimiter(path: Path, lines: Sequence[str]) -> tuple[str, list[str]]:
    """Return the character between cells, and a note if it is not usual for the file's suffix."""
    usual = "\t" if path.suffix.lower() == ".tsv" else ","
    lines = [line for line in lines if line.strip()]  # a reader takes the first as header
    if not lines:
        return usual, []
    header = {each: lines[0].count(each) for each in _DELIMITERS}
    if not any(header[each] for each in ",;|") and _is_divided_by_blanks(lines):
        return BLANKS, ["cells are separated by blanks (data.delimiter sets it)"]
    # Take the delimiter of the header; of several, one with equal counts in all lines.
    present = [each for each in _DELIMITERS if header[each]]
    alike = [each for each in present if {line.count(each) for line in lines} == {header[each]}]
    present.sort(key=lambda each: (each not in alike, each != usual, -header[each]))
    found = present[0] if present else usual
    if len(alike) > 1 and len(lines) > 1:
        raise UnreadableSource(
            f"{path}: {' or '.join(_DELIMITERS[each] for each in alike)} could separate the cells,"
            " since every line has equally many of each; set data.delimiter"
        )
    note = f"cells are separated by {_DELIMITERS[found]}s (data.delimiter sets it)"
    return found, [note] if found != usual else []


def _is_divided_by_blanks(lines: Sequence[str]) -> bool:
    """Return whether blanks split all lines into the same number of cells, mostly numbers."""
    counts = {len(_cells(join_blanks(line), BLANKS)) for line in lines}
    first = [line.split("\t")[0].split() for line in lines[1:] or lines]
    return len(counts) == 1 and all(
        len(cells) > 1 and 2 * sum(map(bool, map(_NUMBER.fullmatch, cells))) > len(cells)
        for cells in first
    )


def join_blanks(line: str) -> str:
    """Return a line with one blank for each run of blanks and tabs, and none at its ends."""
    return " ".join(line.split()) + "\n"
