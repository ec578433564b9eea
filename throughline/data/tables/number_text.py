"""Reads numbers from text, for whole columns, and finds their decimal mark."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from throughline.settings import DataSettings
from throughline.shared.errors import UnreadableSource

pc: Any = pyarrow.compute  # untyped: the import makes its functions
_EXPONENT = r"([eE][+-]?\d+)?$"
_POINT = r"^[+-]?(\d+\.?\d*|\.\d+)" + _EXPONENT
# Points may separate thousands before a decimal comma.
_COMMA = r"^[+-]?((\d{1,3}(\.\d{3})+|\d+)(,\d*)?|,\d+)" + _EXPONENT
_FRACTION = {",": r"^[+-]?[\d.]*,\d+" + _EXPONENT, ".": r"^[+-]?\d*\.\d+" + _EXPONENT}
# 1,234 has a decimal comma or a thousands separator; 0,234 is a fraction.
_THOUSANDS = {",": r"^[+-]?[1-9]\d{0,2},\d{3}$", ".": r"^[+-]?[1-9]\d{0,2}\.\d{3}$"}
_GROUPED = {  # a comma, or a mark that separates only thousands
    ",": r"^[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?$",
    "'": r"^[+-]?[1-9]\d{0,2}(['’]\d{3})+([.,]\d*)?$",
    " ": r"^[+-]?[1-9]\d{0,2}([ \x{a0}\x{202f}]\d{3})+([.,]\d*)?$",
}
_DIVIDED = r"^[+-]?[1-9]\d{0,2}[,'’ \x{a0}\x{202f}]\d{3}"
_CERTAIN = {**_GROUPED, ",": r"^[+-]?[1-9]\d{0,2}((,\d{3})+\.\d+|(,\d{3}){2,})$"}
_TRUTH = r"^(?i:true|false)$"
# Numbers to people, but not to this module: thousands separators, currencies, percents.
_PLAIN = r"[-+−–]?\p{Sc}?\s*[\p{Nd}.,][\p{Nd}.,'’\s\x{a0}\x{202f}]*[%\p{Sc}]?"
_FLAGGED = re.compile(r"([+-]?\d+([.,]\d+)?)\s*[A-Za-z]{1,3}")  # as statistical offices do
_NUMBER_LIKE = rf"^({_PLAIN}|\({_PLAIN}\))$"
# As 1248 CC, 23.4 kmpl, 17 km/kg, €110.5M; 007A is a code.
_WITH_UNIT = (
    r"^[+-]?\p{Sc}?(?P<number>[1-9][\d.,]*|0?[.,]\d+|0)\s*"
    r"(?P<unit>[A-Za-zµ°]{1,6}(?:/[A-Za-z]+|[²³])?)$"
)
_FEW_UNITS, _NEARLY_ALL = 3, 0.9  # more units are letters of codes, as in 12A, 12B, 7F
FEW_CATEGORIES = 20  # up to this many different texts are categories, however few the rows
MOST = 0.5  # a greater share of a column's cells decides its content


def matches(cells: pa.LargeStringArray, pattern: str) -> np.ndarray:
    """Return whether a pattern is found in each cell, (rows,) bool."""
    return np.asarray(pc.match_substring_regex(cells, pattern), bool)


def count_filled(cells: pa.LargeStringArray) -> int:
    return len(cells) - pc.sum(pc.equal(cells, "")).as_py() if len(cells) else 0


def share(cells: pa.LargeStringArray, pattern: str) -> float:
    """Return the share of the cells that are not empty in which a pattern is found."""
    return int(matches(cells, pattern).sum()) / max(1, count_filled(cells))


def is_number(cells: pa.LargeStringArray, decimal: str) -> np.ndarray:
    """Return whether each cell is a number, (rows,) bool; `inf`, `nan` and `1_000` are not."""
    return matches(cells, _COMMA if decimal == "," else _POINT)


def read_numbers(cells: pa.LargeStringArray, decimal: str, *, known: bool = False) -> np.ndarray:
    """Return numbers as (rows,) float64; NaN if a cell is not a number.

    true and false are 1 and 0 if no other cell is filled or, in a column `known` to hold numbers,
    if no cell is a number.
    """
    truth = matches(cells, _TRUTH)
    alone = not is_number(cells, decimal).any() if known else truth.sum() == count_filled(cells)
    if truth.any() and alone:
        return np.where(truth, matches(cells, r"^(?i:true)$").astype(np.float64), np.nan)
    return read_digits(cells, decimal)


def read_digits(cells: pa.LargeStringArray, decimal: str) -> np.ndarray:
    """Return numbers as (rows,) float64; NaN for other cells, including true and false."""
    text = pc.if_else(pa.array(is_number(cells, decimal)), cells, None)
    if decimal == ",":
        text = pc.replace_substring(pc.replace_substring(text, ".", ""), ",", ".")
    return np.asarray(pc.fill_null(text.cast(pa.float64()), np.nan), np.float64).copy()


def divide_no_thousands(
    columns: Mapping[str, pa.LargeStringArray], mark: str
) -> tuple[dict[str, pa.LargeStringArray], str]:
    """Remove thousands separators; return the changed columns and the separator, or ({}, "").

    `mark` is the separator, `none`, or `auto` for one that is certain.
    """
    marks = {"auto": list(_GROUPED), "none": []}.get(mark, [mark])
    divided = {name: cells for name, cells in columns.items() if matches(cells, _DIVIDED).any()}
    for each in marks:
        grouped = {
            name: cells
            for name, cells in divided.items()
            if matches(cells, _GROUPED[each]).any()
            and share(cells, f"{_GROUPED[each]}|{_POINT}|{_COMMA}") > MOST
        }
        certain = any(matches(cells, _CERTAIN[each]).any() for cells in grouped.values())
        if grouped and (certain or mark != "auto"):
            return {name: _join_thousands(cells, each) for name, cells in grouped.items()}, each
    return {}, ""


def _join_thousands(cells: pa.LargeStringArray, mark: str) -> pa.LargeStringArray:
    joined = pc.replace_substring_regex(cells, "," if mark == "," else r"['’ \x{a0}\x{202f}]", "")
    return pc.if_else(pa.array(matches(cells, _GROUPED[mark])), joined, cells)


def explain_unread(cells: pa.LargeStringArray, decimal: str) -> str:
    """Describe numbers that this module cannot read; "" unless most cells look like numbers."""
    if units := _explain_units(cells):
        return units
    if share(cells, _NUMBER_LIKE) <= MOST:
        return ""
    cell = cells[int(np.argmax(matches(cells, _NUMBER_LIKE) & ~is_number(cells, decimal)))].as_py()
    remedy = explain_notation(cell) or "write them as 1234.5"
    return f"holds numbers such as {cell!r}, in a notation that cannot be read; {remedy}"


def _explain_units(cells: pa.LargeStringArray) -> str:
    """Describe numbers with units; "" unless most cells are, with few units, many numbers."""
    found = pc.extract_regex(cells, _WITH_UNIT).filter(matches(cells, _WITH_UNIT))
    numbers, units = (pc.struct_field(found, one) for one in ("number", "unit"))
    counts = [one["counts"] for one in pc.value_counts(units).to_pylist()]
    common = sum(sorted(counts)[-_FEW_UNITS:])
    if common <= max(MOST * count_filled(cells), _NEARLY_ALL * len(found)):
        return ""
    if pc.count_distinct(numbers).as_py() <= FEW_CATEGORIES:
        return ""
    remedy = "write all in one unit, without its name"
    if len(counts) == 1:
        remedy = f"write them as {numbers[0]}"
    cell = cells.filter(pa.array(matches(cells, _WITH_UNIT)))[0].as_py()
    return f"holds numbers with units such as {cell!r}; {remedy}"


def are_like_numbers(cells: pa.LargeStringArray) -> np.ndarray:
    """Return whether cells are numbers to people, also with a few letters, (rows,) bool."""
    return matches(cells, rf"{_NUMBER_LIKE}|^{_FLAGGED.pattern}$")


def explain_notation(cell: str) -> str:
    """Return a remedy for a number with letters, or with an unknown minus; "" for other cells."""
    if flagged := _FLAGGED.fullmatch(cell):
        return f"write {flagged[1]}, without the letters"
    if not pc.match_substring_regex(cell, _NUMBER_LIKE).as_py():
        return ""
    if cell.startswith("("):
        return f"brackets are not read as a minus; write -{cell[1:-1].strip()}"
    if cell.startswith(("−", "–")):
        return f"its minus is the character U+{ord(cell[0]):04X}; write -{cell[1:].strip()}"
    return ""


def have_fractions(cells: pa.LargeStringArray, decimal: str) -> bool:
    return bool(matches(cells, _FRACTION[decimal]).any())


def find_decimal(
    columns: Mapping[str, pa.LargeStringArray],
    settings: DataSettings,
    path: Path,
    *,
    delimiter: str = "",
    likely: str = "",
) -> str:
    """Return the decimal mark of a table.

    The mark is as set, or a comma if columns hold fractions with a comma and none with a point,
    else a point. If all such marks could separate thousands instead, it is `likely`, but no comma
    where commas separate cells. Raises UnreadableSource if both occur, or the mark remains open.
    """
    if settings.decimal != "auto":
        return settings.decimal
    commas = _find_fractions(columns, ",")
    if not commas:
        doubtful = find_lone_points(columns) if likely or delimiter == ";" else ""
        if likely or not doubtful:
            return likely if doubtful and delimiter != "," else "."
        remedy = "set data.decimal: '.' for a fraction, ',' for a separator"
    else:
        points, doubtful = _find_fractions(columns, "."), _first_fraction(commas, ",")
        if points and not (likely == "," and _all_thousands(points, ".")):
            raise UnreadableSource(
                f"{path}: fractions are written both ways, {doubtful} and"
                f" {_first_fraction(points, '.')}",
                "set data.decimal",
            )
        if likely == "," or not _all_thousands(commas, ","):
            return ","
        remedy = "set data.decimal: ',' for a fraction, or data.thousands: ',' for a separator"
    raise UnreadableSource(
        f"{path}: {doubtful} may be a fraction or have a thousands separator", remedy
    )


def leave_decimal_open(columns: Mapping[str, pa.LargeStringArray]) -> bool:
    """Return whether there are fractions, all of which could have a thousands separator instead."""
    found = {mark: _find_fractions(columns, mark) for mark in ",."}
    return any(found.values()) and all(_all_thousands(each, mark) for mark, each in found.items())


def find_lone_points(columns: Mapping[str, pa.LargeStringArray]) -> str:
    """Return a number such as 1.234 and its column if no number decides what points mean; or ""."""
    points = _find_fractions(columns, ".")
    if not points or _find_fractions(columns, ",") or not _all_thousands(points, "."):
        return ""
    return _first_fraction(points, ".")


def _find_fractions(
    columns: Mapping[str, pa.LargeStringArray], decimal: str
) -> dict[str, pa.LargeStringArray]:
    number = _COMMA if decimal == "," else _POINT
    return {
        name: cells
        for name, cells in columns.items()
        if share(cells, number) > MOST and have_fractions(cells, decimal)
    }


def _all_thousands(columns: Mapping[str, pa.LargeStringArray], decimal: str) -> bool:
    fraction, thousands = _FRACTION[decimal], _THOUSANDS[decimal]
    return all(
        (matches(cells, fraction) <= matches(cells, thousands)).all() for cells in columns.values()
    )


def _first_fraction(columns: Mapping[str, pa.LargeStringArray], decimal: str) -> str:
    name, cells = next(iter(columns.items()))
    return f"{cells[int(np.argmax(matches(cells, _FRACTION[decimal])))].as_py()} in column {name}"
