"""What a model is to predict, from the paths that were given: image files, tables, series and texts
become examples as ingest makes them, by its own functions.

What cannot be used comes as `Rejected`, with its reason, where it stands; nothing is read before it
is needed. A new kind of input is a function in `READERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tasks.data.sources.base import Rejected
from tasks.errors import UserError
from tasks.training.inference import TrainedModel

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Example:
    """One thing to predict: `value` as the model's shards store it, the bytes of an image file or
    of a text, or an array. `row` is the last time step that a window sees, counted from 1.
    """

    id: str
    value: bytes | np.ndarray
    row: int = 0


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """How inputs are to be read: each line of a text file by itself, every window of a series
    instead of the last.
    """

    lines: bool = False
    every_window: bool = False


@dataclass(frozen=True, kw_only=True)
class Examples:
    """Examples, read one by one while they are iterated, once; what cannot be used comes between
    them. `total` counts both, about.
    """

    items: Iterable[Example | Rejected]
    total: int


Reader = Callable[[Path, TrainedModel, Wanted], Examples]


def read_examples(paths: Sequence[Path], trained: TrainedModel, wanted: Wanted) -> Examples:
    """All that the files and folders at `paths` hold for a model; a file that cannot be read at all
    is rejected like an example.
    """
    from tasks.prediction import images, tables, texts  # they need this module

    readers: dict[str, Reader] = {
        "image": images.read,
        "features": tables.read_series
        if trained.spec.schema.payload == "series"
        else tables.read_rows,
        "text": texts.read,
    }
    read = readers[trained.spec.schema.feature]
    opened = [_open(read, path, trained, wanted) for path in paths]
    return Examples(
        items=(item for one in opened for item in _guarded(one.items)),
        total=sum(one.total for one in opened),
    )


def _open(read: Reader, path: Path, trained: TrainedModel, wanted: Wanted) -> Examples:
    if not path.exists():
        return Examples(items=[Rejected(id=str(path), reason="does not exist")], total=1)
    try:
        return read(path, trained, wanted)
    except UserError as error:
        return Examples(items=[_reject(path, error)], total=1)


def _guarded(items: Iterable[Example | Rejected]) -> Iterator[Example | Rejected]:
    """The items up to an error in what they are read from, which rejects the rest of it."""
    last = ""
    try:
        for item in items:
            last = item.id
            yield item
    except UserError as error:
        yield Rejected(id=f"after {last}" if last else "input", reason=_one_line(error))


def _reject(path: Path, error: UserError) -> Rejected:
    return Rejected(id=str(path), reason=_one_line(error))


def _one_line(error: UserError) -> str:
    return " ".join(str(error).split())


def in_batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in lists of `size`, the last one shorter."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def as_arrays(path: Path, name: str) -> Any:
    """The array of an .npy file, mapped, or that of this name in an .npz file.

    Raises:
      KeyError, OSError, ValueError: there is none.
    """
    loaded = np.load(path, mmap_mode="r", allow_pickle=False)
    if path.suffix == ".npz":
        with loaded as archive:
            return archive[name]
    return loaded
