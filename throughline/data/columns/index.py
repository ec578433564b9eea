"""Mapped columns: each feature of all examples of a split as one raw, fixed-stride array on disk.
No TensorFlow.

    data/snapshot/index.json        key, columns (dtype, shape), splits (count, chunks with digests)
    data/snapshot/train/image.bin   examples × height × width × channels, uint8, C order
    data/snapshot/train/label.bin   examples, int64        …and key.bin

Values that differ in size are in a ragged column (`ragged.py`). Of the model's input a snapshot may
store the first rows alone; labels and keys are always there.

A batch is a gather of rows: no parsing, no copy of the file into memory; the cache is the operating
system's page cache.
"""

from __future__ import annotations

import math
import mmap
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from throughline.data.columns import ragged
from throughline.data.shards.index import Shard
from throughline.results.base import read_value
from throughline.shared.errors import (
    CorruptColumn,
    ImpossiblePlan,
    MissingInput,
    StaleSnapshot,
    expect_current_schema,
    explain_index_alone,
    rebuild_hint,
)
from throughline.shared.files import digest_blake3, digest_file, write_json
from throughline.shared.limits import available_memory

INDEX = "index.json"
MEMORY_SHARE = 0.5  # of what is available, that a column may take to be read ahead
LEAST_PRIORITY = 19  # of the thread: it gives way to those that prepare the first batch
READ_BYTES = 1 << 22
MAP_NORESERVE = 0x4000  # of Linux; Python's mmap has no name for it


@dataclass(frozen=True, kw_only=True)
class Column:
    """One feature: its NumPy dtype and the shape of one example's value; None stands for sizes that
    differ (`ragged.py`).
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]

    @property
    def ragged(self) -> bool:
        """Whether values differ in size, so that a column `NAME.extent` says where each lies."""
        return None in self.shape

    @property
    def extent(self) -> Column:
        """The column that says where each value of this one begins [elements], and its shape."""
        return Column(name=f"{self.name}.extent", dtype="int64", shape=(1 + len(self.shape),))

    @property
    def stride(self) -> int:
        """Bytes per example, of a column that is not ragged."""
        return math.prod((np.dtype(self.dtype).itemsize, *(size or 0 for size in self.shape)))


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Consecutive rows [start, start + count) written together, with a digest per column that
    stores them.
    """

    start: int
    count: int
    digests: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class SplitColumns:
    """The rows of one split."""

    count: int
    chunks: tuple[Chunk, ...]
    ragged: Mapping[str, int] = field(default_factory=dict)

    def rows(self, column: Column) -> int:
        """How many rows, the first, one of its columns stores."""
        return sum(chunk.count for chunk in self.chunks if column.name in chunk.digests)

    def bytes(self, column: Column) -> int:
        """Size of one of its columns; `ragged` holds those of the columns whose values differ in
        size.
        """
        return self.ragged[column.name] if column.ragged else column.stride * self.rows(column)


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Mean and standard deviation of the model's input per channel or column (its last axis), over
    the training split.
    """

    mean: tuple[float, ...]
    deviation: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class SnapshotIndex:
    """Everything about a snapshot but its bytes. `key` identifies shards, preprocessing and op
    versions.

    `vocabulary`: how many numbers the tokens of text can have, padding among them; 0 for other
    data. `files`: digests of what else belongs to it, by name. `repaired`: what is read in the
    place of damaged shards, by whatever reads shards.
    """

    key: str
    statistics: Statistics
    columns: tuple[Column, ...]
    splits: Mapping[str, SplitColumns]
    repaired: tuple[Shard, ...] = ()
    vocabulary: int = 0
    files: Mapping[str, str] = field(default_factory=dict)

    def bytes(self, split: str) -> int:
        """Size of all columns of a split."""
        return sum(self.splits[split].bytes(column) for column in self.columns)


def count_stored(count: int, fraction: float) -> int:
    """How many of `count` rows, the first, this fraction of them is."""
    return round(fraction * count)


def column_path(folder: Path, split: str, column: str) -> Path:
    """File that holds one column of one split."""
    return folder / split / f"{column}.bin"


def allocate(folder: Path, split: str, columns: Sequence[Column], count: int) -> None:
    """Create the column files of a split at their final size, or keep those that already have it;
    ragged columns come when all is known.
    """
    (folder / split).mkdir(parents=True, exist_ok=True)
    for column in columns:
        if column.ragged:
            continue
        with column_path(folder, split, column.name).open("ab") as file:
            if file.tell() != column.stride * count:
                os.ftruncate(file.fileno(), 0)
                os.ftruncate(file.fileno(), column.stride * count)


def write_rows(
    folder: Path,
    split: str,
    columns: Sequence[Column],
    *,
    start: int,
    values: Mapping[str, np.ndarray],
) -> Chunk:
    """Write consecutive rows of every column; returns the chunk with its digests. `flush` makes
    them last.

    `values[name]` has shape (rows, *column.shape) and the column's dtype.
    """
    digests, rows = {}, 0
    for column in columns:
        rows = len(values[column.name])
        stored = encode_rows(column, values[column.name])
        write_encoded_rows(folder, split, column, start=start, data=stored)
        digests[column.name] = digest_blake3(stored)
    return Chunk(start=start, count=rows, digests=digests)


def encode_rows(column: Column, values: np.ndarray) -> memoryview:
    """The bytes of consecutive rows of a column that is not ragged; `values` has shape (rows,
    *column.shape) and the column's dtype.

    Raises:
      ImpossiblePlan: an op has made something else of them.
    """
    if (values.dtype, values.shape[1:]) != (np.dtype(column.dtype), column.shape):
        raise ImpossiblePlan(
            f"preprocess: {column.name} is {values.dtype} of shape {values.shape[1:]} after it, and"
            f" a snapshot stores {column.dtype} of shape {column.shape}; have your op return that,"
            " or move it to postprocess"
        )
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def write_encoded_rows(
    folder: Path, split: str, column: Column, *, start: int, data: bytes | memoryview
) -> None:
    """Write the bytes of consecutive rows of a column that is not ragged."""
    with column_path(folder, split, column.name).open("r+b") as file:
        file.seek(start * column.stride)
        file.write(data)


def flush(folder: Path, split: str, columns: Sequence[Column]) -> None:
    """Make sure that what was written to a split has reached the disk."""
    for column in columns:
        with column_path(folder, split, column.name).open("rb") as file:
            os.fsync(file.fileno())


def write_index(folder: Path, index: SnapshotIndex) -> None:
    """Write the index, last of all: its presence means that the columns are complete."""
    write_json(folder / INDEX, asdict(index))


def holds_columns(folder: Path) -> bool:
    """Whether the columns of a snapshot are in its folder, and not in an object store."""
    return any(folder.glob("*/*.bin"))


def read_index(folder: Path, *, key: str | None = None, with_columns: bool = True) -> SnapshotIndex:
    """Read the index and check that the snapshot is the one asked for and has all its bytes. Those
    of the columns are not looked for unless `with_columns`.

    Raises:
      MissingInput: there is no complete snapshot.
      StaleSnapshot: it was made from other data or by other ops than `key` says.
      CorruptColumn: a file is missing or has the wrong size.
    """
    if not (folder / INDEX).exists():
        raise MissingInput(f"{folder} holds no complete snapshot; run `dvc repro snapshot`")
    index = read_value(SnapshotIndex, folder / INDEX, "snapshot")
    if key is not None and index.key != key:
        raise StaleSnapshot(
            f"{folder} was made from other shards, by other preprocessing or code, or with another"
            " TensorFlow; run `dvc repro snapshot`"
        )
    with expect_current_schema(folder / INDEX, "snapshot"):
        for name, digest in index.files.items():
            path = folder / name
            if not path.exists() or digest_file(path) != digest:
                raise CorruptColumn(
                    f"{path} is not the file that the index describes;"
                    f" {rebuild_hint(folder, 'snapshot')}"
                )
        if with_columns and not holds_columns(folder) and any(map(index.bytes, index.splits)):
            raise MissingInput(explain_index_alone(folder, "columns"))
        for split, rows in index.splits.items() if with_columns else ():
            for column in index.columns:
                path, needed = column_path(folder, split, column.name), rows.bytes(column)
                size = path.stat().st_size if path.exists() else None
                if size != needed:
                    state = "is missing" if size is None else f"has {size} bytes"
                    raise CorruptColumn(
                        f"{path} {state}, the index says {needed};"
                        f" {rebuild_hint(folder, 'snapshot')}"
                    )
    return index


def verify(folder: Path, index: SnapshotIndex) -> None:
    """Compare every chunk with its digest.

    Raises:
      CorruptColumn: names the file and the damaged rows.
    """
    for split, rows in index.splits.items():
        for column in index.columns:
            for chunk in rows.chunks:
                if column.name in chunk.digests:
                    read_chunk(folder, split, column, chunk, rows.rows(column))


def read_chunk(folder: Path, split: str, column: Column, chunk: Chunk, count: int) -> bytes:
    """The bytes of a chunk of a column, of `count` rows.

    Raises:
      CorruptColumn: they do not match their digest; names the file and the rows.
    """
    path = column_path(folder, split, column.name)
    begin, end = find_span(folder, split, column, chunk, count)
    with path.open("rb") as file:
        file.seek(begin)
        data = file.read(end - begin)
    if digest_blake3(data) != chunk.digests[column.name]:
        last = chunk.start + chunk.count - 1
        raise CorruptColumn(
            f"{path}: chunk of rows {chunk.start} to {last} does not match its digest;"
            f" {rebuild_hint(folder, 'snapshot')}"
        )
    return data


def find_span(
    folder: Path, split: str, column: Column, chunk: Chunk, count: int
) -> tuple[int, int]:
    """Bytes [begin, end) of a chunk within a column's file, of `count` rows."""
    if not column.ragged:
        return chunk.start * column.stride, (chunk.start + chunk.count) * column.stride
    offsets = map_column(folder, split, column.extent, count)[
        chunk.start : chunk.start + chunk.count
    ]
    itemsize = np.dtype(column.dtype).itemsize
    begin, end = int(offsets[0, 0]) * itemsize, ragged.end_offset(offsets, itemsize)
    path = column_path(folder, split, column.name)
    size = path.stat().st_size if path.exists() else end  # its objects may be in a store
    if not 0 <= begin <= end <= size:
        raise CorruptColumn(
            f"{column_path(folder, split, column.extent.name)}: says that rows are at bytes"
            f" {begin:,} to {end:,} of {path.name}; {rebuild_hint(folder, 'snapshot')}"
        )
    return begin, end


def map_column(folder: Path, split: str, column: Column, count: int) -> np.ndarray:
    """Map one column as an array (count, *shape), or one that is ragged as (elements,), without
    reading it.

    Copy-on-write, because consumers such as DLPack refuse read-only memory; nothing is ever written
    back. No memory is reserved for the copies, so a column may be larger than what there is.
    """
    path, dtype = column_path(folder, split, column.name), np.dtype(column.dtype)
    shape = (-1,) if column.ragged else (count, *(size or 0 for size in column.shape))
    size = 0 if count == 0 else path.stat().st_size if column.ragged else column.stride * count
    if size == 0:
        return np.empty([max(0, length) for length in shape], dtype)
    with path.open("rb") as file:
        mapped = mmap.mmap(
            file.fileno(),
            size,
            flags=mmap.MAP_PRIVATE | MAP_NORESERVE,
            prot=mmap.PROT_READ | mmap.PROT_WRITE,
        )
    return np.frombuffer(mapped, dtype).reshape(shape)


@cache
def read_ahead(path: Path, size: int) -> None:
    """Bring the first `size` bytes of a column into the page cache, once per process and in the
    background, if they take no more than half of the memory there is.

    Rows met in random order are read from a cold disk in small pieces; from beginning to end the
    disk gives all it has.
    """
    if path.exists() and size <= MEMORY_SHARE * available_memory():
        threading.Thread(
            target=_read_through, args=(path, size), daemon=True, name="read-ahead"
        ).start()


def _read_through(path: Path, size: int) -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LEAST_PRIORITY)
    block = bytearray(READ_BYTES)
    with path.open("rb", buffering=0) as file:
        # Where only some rows have been fetched, the others are holes.
        with suppress(OSError):
            first = os.lseek(file.fileno(), 0, os.SEEK_DATA)
            size = min(size, os.lseek(file.fileno(), first, os.SEEK_HOLE))
            file.seek(first)
        while file.tell() < size and file.readinto(block):
            pass
