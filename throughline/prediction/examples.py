"""The examples that a model is to predict; unusable inputs are `Rejected`, in their place."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np

from throughline.data.found import Rejected
from throughline.shared.progress import note

T = TypeVar("T")
NO_COLUMNS = "is not a table, but the model also needs columns of one"
ARRAYS = frozenset({".npy", ".npz"})
KINDS_SHOWN = 5  # kinds of unread files that are named


def note_skipped(folder: Path, skipped: Mapping[str, int], noun: str) -> None:
    """Report the numbers of skipped files in a folder, by kind."""
    if skipped:
        kinds = ", ".join(f"{count} {kind}" for kind, count in [*skipped.items()][:KINDS_SHOWN])
        note(f"{folder}: skipped {kinds}: not {noun}")


@dataclass(frozen=True, kw_only=True)
class Example:
    """One thing to predict.

    `value` is as in the model's shards: the bytes of a file or text, or an array. `columns`
    (columns,) float32 is the table input, if any. `row` is the last time step of a window, from 1.
    """

    id: str
    value: bytes | np.ndarray
    columns: np.ndarray | None = None
    row: int = 0


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Whether each line of a .txt file is a text, and whether to read every window of a series."""

    lines: bool = False
    every_window: bool = False


@dataclass(frozen=True, kw_only=True)
class Examples:
    """Examples and rejected ones, to be iterated once; `total` is about the number of both."""

    items: Iterable[Example | Rejected]
    total: int


def in_batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch
