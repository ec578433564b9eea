"""Reads the examples that a model is to predict, as ingest does: images, tables, series, texts.

Unusable inputs are `Rejected`, in their place. Nothing is read before it is needed. A new kind of
input is a function in `read_examples`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np

from throughline.data.found import Rejected
from throughline.data.tables.table_start import SIGNATURES
from throughline.data.tables.tabular import TABLES
from throughline.models.inference import InferenceSpec, TrainedModel
from throughline.shared.errors import UnreadableSource, UserError
from throughline.shared.progress import note

T = TypeVar("T")
# First bytes of files that are given for texts and tables by mistake.
_MISTAKEN = {**SIGNATURES, b"\xff\xfe": "UTF-16 text", b"\xfe\xff": "UTF-16 text"}
NO_COLUMNS = "is no table, and the model sees columns of one as well"
ARRAYS = frozenset({".npy", ".npz"})
COLUMNS_SHOWN = 12
KINDS_SHOWN = 5  # kinds of unread files that are named


def note_skipped(folder: Path, skipped: Mapping[str, int], noun: str) -> None:
    """Report which other files of a folder, by kind, are not read."""
    if skipped:
        kinds = ", ".join(f"{count} {kind}" for kind, count in [*skipped.items()][:KINDS_SHOWN])
        note(f"{folder}: passed over {kinds}: no {noun}")


@dataclass(frozen=True, kw_only=True)
class Example:
    """One thing to predict.

    `value` is what the model's shards store: the bytes of an image file or of a text, or an array.
    `columns` (columns,) float32 is the table input, if there is one. `row` is the last time step
    that a window sees, counted from 1.
    """

    id: str
    value: bytes | np.ndarray
    columns: np.ndarray | None = None
    row: int = 0


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """How to read inputs: whether by lines of texts, and by every window of a series."""

    lines: bool = False
    every_window: bool = False


@dataclass(frozen=True, kw_only=True)
class Examples:
    """Examples, read one by one; they can be iterated once.

    `items` also yields rejected ones; `total` is about the number of both.
    """

    items: Iterable[Example | Rejected]
    total: int


Reader = Callable[[Path, TrainedModel, Wanted], Examples]


def read_examples(paths: Sequence[Path], trained: TrainedModel, wanted: Wanted) -> Examples:
    """Read all examples at `paths`; a file that cannot be read at all becomes a reject."""
    from throughline.prediction import (
        files,  # they need this module
        tables,  # they need this module
        texts,  # they need this module
    )

    encoding = trained.spec.schema.input.encoding
    readers: dict[str, Reader] = {
        "files": files.read,
        "rows": files.read if encoding.modality == "images" else tables.read_rows,
        "blocks": tables.read_series,
        "documents": texts.read,
    }
    read = files.read_arrays if takes_arrays(trained.spec) else readers[encoding.storage]
    opened = [(path, _open(read, path, trained, wanted)) for path in paths]
    return Examples(
        items=(item for path, one in opened for item in _guarded(path, one.items)),
        total=sum(one.total for _, one in opened),
    )


def takes_arrays(spec: InferenceSpec) -> bool:
    """Return whether a model takes arrays of two axes or more per example, not rows of a table."""
    value = spec.schema.input
    return (
        value.encoding.modality == "numbers"
        and value.encoding.storage == "rows"
        and len(value.shape) > 1
    )


def describe_inputs(spec: InferenceSpec) -> str:
    data, columns = spec.data, spec.schema.columns.names
    encoding = spec.schema.input.encoding
    if takes_arrays(spec):
        shape = ", ".join(map(str, ("examples", *spec.schema.input.shape)))
        return f"This model takes .npy or .npz arrays ({shape}) of {spec.schema.input.dtype}."
    named = ", ".join(columns[:COLUMNS_SHOWN])
    if more := len(columns[COLUMNS_SHOWN:]):
        named += f" and {more} more"
    tables = f"CSV, TSV ({data.encoding}) or Parquet"
    if spec.schema.table_input and spec.schema.is_text:
        return (
            f"This model takes .jsonl, .csv, .tsv ({data.encoding}) and .parquet files with the"
            f" columns {data.text_column}, {named}."
        )
    if spec.schema.table_input:
        return (
            f"This model takes tables ({tables}) with paths of {encoding.noun} in column"
            f" {data.path_column}, and the columns {named}."
        )
    if encoding.modality == "images":
        arrays = "" if encoding.storage == "files" else ", .npy or .npz arrays of images"
        return (
            "This model takes images (JPEG, PNG, GIF, BMP or WebP), folders of them, tables with"
            f" their paths in column {data.path_column}{arrays}."
        )
    if encoding.storage == "files":
        return (
            f"This model takes {encoding.noun}: files, folders of them, and tables with their"
            f" paths in column {data.path_column}."
        )
    if spec.schema.is_text:
        return (
            f"This model takes texts ({data.encoding}): files, folders of them, and .jsonl, .csv,"
            f" .tsv or .parquet files whose column {data.text_column} holds the text."
        )
    if spec.schema.is_series:
        time = "".join(f"{name}, " for name in data.time_columns)
        return (
            f"This model takes series of at least {spec.window.length} time steps: tables"
            f" ({tables}) with the columns {time}{named}, or .npy arrays of {named}."
        )
    return f"This model takes tables ({tables}) with the columns {named}."


def _open(read: Reader, path: Path, trained: TrainedModel, wanted: Wanted) -> Examples:
    try:
        problem = _find_misuse(path, trained.spec)
        if problem is None:
            return read(path, trained, wanted)
    except UserError as error:
        problem = _explain(error, path)
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
    return Examples(items=[Rejected(id=str(path), reason=problem)], total=1)


def _find_misuse(path: Path, spec: InferenceSpec) -> str | None:
    """Return why a model cannot take a path, judged by its kind and first bytes, or None."""
    encoding = spec.schema.input.encoding
    if not path.exists():
        return "does not exist"
    if path.is_dir():
        return "is a folder, not a file" if encoding.modality == "numbers" else None
    if not path.is_file():
        return "is no regular file"
    suffix = path.suffix.lower()
    arrays = ARRAYS if takes_arrays(spec) else {".npy"} if encoding.storage == "blocks" else ()
    as_text = suffix != ".parquet" and (
        suffix in TABLES
        if encoding.modality == "images" or encoding.storage == "files"
        else suffix not in arrays
    )
    with path.open("rb") as file:
        start = file.read(1 << 12)
    if not start:
        return "is empty"
    # In other encodings any bytes may be characters.
    if not as_text or "\n".encode(spec.data.encoding) != b"\n":
        return None
    known = [what for signature, what in _MISTAKEN.items() if start.startswith(signature)]
    what = next(iter(known), "binary, not text" if b"\0" in start else None)
    return what and f"is {what}"


def _guarded(path: Path, items: Iterable[Example | Rejected]) -> Iterator[Example | Rejected]:
    """Yield the items; an error in them, or a path without items, becomes a reject."""
    last = ""
    try:
        for item in items:
            last = f", after {item.id}"
            yield item
        if not last:
            yield Rejected(id=str(path), reason="holds no example")
    except UserError as error:
        yield Rejected(id=str(path), reason=f"{_explain(error, path)}{last}")


def _explain(error: UserError, path: Path) -> str:
    """Return what is wrong with the file at `path`, in a line without its path and a remedy."""
    unreadable = [error] if isinstance(error, UnreadableSource) else []
    found = [one.problem for each in unreadable for one in each.several or [each]] or [str(error)]
    whats = [" ".join(one.split()).removeprefix(str(path)).lstrip(":, ") for one in found]
    return "; ".join(what.rstrip(".") for what in whats)


def in_batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch
