"""Digests of rows of numbers, and of rows of tables."""

from __future__ import annotations

import json
from functools import lru_cache

import numpy as np

from throughline.plan.schema import TableColumns
from throughline.shared.files import digest_blake2b


def digest_rows(values: np.ndarray, columns: TableColumns) -> list[str]:
    """Return the digest of each row of `values` (rows, ...).

    If columns have names, their order and the numbers of categories change no digest.
    """
    names: list[bytes] = []
    if values.dtype.kind == "f":
        values = values + values.dtype.type(0)  # -0.0 is the same number as 0.0
    if columns.names:
        order = sorted(range(len(columns.names)), key=columns.names.__getitem__)
        names = [json.dumps([columns.names[place] for place in order]).encode()]
        parts = [_column_bytes(values[..., place], columns, place) for place in order]
        values = np.concatenate(parts, axis=-1)
    contents = values.reshape(len(values), -1).view(np.uint8)
    return [digest_blake2b(*names, row.tobytes()) for row in contents]


def _column_bytes(column: np.ndarray, columns: TableColumns, place: int) -> np.ndarray:
    """Return bytes of numbers, or digests of categories' words, as (rows, ..., bytes) uint8."""
    if place < columns.numeric:
        return np.ascontiguousarray(column)[..., None].view(np.uint8)
    return _digest_words(columns.categories[place - columns.numeric])[column.astype(np.int64)]


@lru_cache(maxsize=256)  # rows come in blocks, and a vocabulary may be long
def _digest_words(words: tuple[str, ...]) -> np.ndarray:
    digests = bytes.fromhex("".join(digest_blake2b(word.encode()) for word in words))
    return np.frombuffer(digests, np.uint8).reshape(len(words), -1)
