"""Numbers written as text: which cells are one, and with which decimal mark. Vectorized over
columns; not a source itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from tasks.errors import UnreadableSource
from tasks.settings import DataSettings

pc: Any = pyarrow.compute  # its functions are made when it is imported
_EXPONENT = r"([eE][+-]?\d+)?$"
_POINT = r"^[+-]?(\d+\.?\d*|\.\d+)" + _EXPONENT
# Before a decimal comma points may divide thousands.
_COMMA = r"^[+-]?((\d{1,3}(\.\d{3})+|\d+)(,\d*)?|,\d+)" + _EXPONENT
_FRACTION = {",": r"^[+-]?[\d.]*,\d+" + _EXPONENT, ".": r"^[+-]?\d*\.\d+" + _EXPONENT}
# 1,234 is a number with a decimal comma, or one with a thousands separator.
_THOUSANDS = r"^[+-]?\d{1,3},\d{3}$"
_TRUTH = r"^(?i:true|false)$"
# What people read as a number, and nothing here does: thousands separators, currencies, percents.
_NUMBER_LIKE = r"^[-+−]?\p{Sc}?\s*[\p{Nd}.,][\p{Nd}.,'’\s\x{a0}\x{202f}]*[%\p{Sc}]?$"


def is_number(cells: pa.StringArray, decimal: str) -> np.ndarray:
    """(rows,) bool: which cells are numbers with this decimal mark; `inf`, `nan` and `1_000` are
    none.
    """
    return _matches(cells, _COMMA if decimal == "," else _POINT)


def read_numbers(cells: pa.StringArray, decimal: str) -> np.ndarray:
    """(rows,) float64: the numbers; NaN where a cell is none. A column of nothing but true and
    false is one of 1 and 0.
    """
    filled = pc.not_equal(cells, "")
    truth = _matches(cells, _TRUTH)
    if truth.any() and truth.sum() == pc.sum(filled).as_py():
        ones = _matches(cells, r"^(?i:true)$")
        return np.where(truth, ones.astype(np.float64), np.nan)
    known = is_number(cells, decimal)
    text = pc.if_else(pa.array(known), cells, None)
    if decimal == ",":
        text = pc.replace_substring(pc.replace_substring(text, ".", ""), ",", ".")
    return np.asarray(pc.fill_null(text.cast(pa.float64()), np.nan), np.float64).copy()


def looks_like_numbers(cells: pa.StringArray) -> bool:
    """Whether most cells are numbers to people, in whatever notation."""
    return _mostly(cells, _NUMBER_LIKE)


def have_fractions(cells: pa.StringArray, decimal: str) -> bool:
    """Whether a number among the cells is written with a decimal mark."""
    return bool(_matches(cells, _FRACTION[decimal]).any())


def find_decimal(columns: Mapping[str, pa.StringArray], settings: DataSettings, path: Path) -> str:
    """The decimal mark of a table: as set, or a comma where columns hold fractions with one and
    none with a point.

    Raises:
      UnreadableSource: both occur, or every comma could divide thousands.
    """
    if settings.decimal != "auto":
        return settings.decimal
    commas = {
        name: cells
        for name, cells in columns.items()
        if _mostly(cells, _COMMA) and _matches(cells, _FRACTION[","]).any()
    }
    if not commas:
        return "."
    name, cells = next(iter(commas.items()))
    shown = _first(cells, _FRACTION[","])
    points = [
        other
        for other, each in columns.items()
        if _mostly(each, _POINT) and _matches(each, _FRACTION["."]).any()
    ]
    if points:
        raise UnreadableSource(
            f"{path}: column {name} holds numbers such as {shown}, column {points[0]} such as"
            f" {_first(columns[points[0]], _FRACTION['.'])}; set data.decimal"
        )
    with_comma = [_matches(cells, _FRACTION[","]) for cells in commas.values()]
    thousands = [_matches(cells, _THOUSANDS) for cells in commas.values()]
    if all((one <= other).all() for one, other in zip(with_comma, thousands, strict=True)):
        raise UnreadableSource(
            f"{path}: {shown} in column {name} may be a fraction or have a thousands separator; set"
            " data.decimal: ',' for a fraction, or remove the separators"
        )
    return ","


def _mostly(cells: pa.StringArray, pattern: str) -> bool:
    """Whether more than half of the cells that are not empty match."""
    filled = pc.sum(pc.not_equal(cells, "")).as_py() or 0
    return filled > 0 and 2 * int(_matches(cells, pattern).sum()) > filled


def _matches(cells: pa.StringArray, pattern: str) -> np.ndarray:
    return np.asarray(pc.match_substring_regex(cells, pattern), bool)


def _first(cells: pa.StringArray, pattern: str) -> str:
    return cells[int(np.argmax(_matches(cells, pattern)))].as_py()
