"""Mapped columns: each feature of all examples of a split as a raw, fixed-stride array on disk.

    data/snapshot/index.json        key, columns (dtype, shape), splits (count, chunks with digests)
    data/snapshot/train/image.bin   examples × height × width × channels, uint8, C order
    data/snapshot/train/label.bin   examples, int64        …and key.bin

Values of different sizes are in a ragged column (`ragged.py`). A snapshot may store only the first
rows of the model's input; labels and keys are always complete.

A batch is a gather of rows: nothing is parsed, and no file is copied into memory. The cache is the
operating system's page cache. Needs no TensorFlow.
"""

from __future__ import annotations

import math
import mmap
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache, partial
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
MEMORY_SHARE = 0.5  # share of available memory that a column to read ahead may take
LEAST_PRIORITY = 19  # nice value of the thread, which yields to those that prepare the first batch
READ_BYTES = 1 << 22
MAP_NORESERVE = 0x4000  # on Linux; Python's mmap has no name for it


@dataclass(frozen=True, kw_only=True)
class Column:
    """One feature: its NumPy dtype and the shape of a value, with None for sizes that differ."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]

    @property
    def ragged(self) -> bool:
        """Whether values differ in size; the column `NAME.extent` then says where each one lies."""
        return None in self.shape

    @property
    def extent(self) -> Column:
        """The column that says where each value of this one begins [elements], and its shape."""
        return Column(name=f"{self.name}.extent", dtype="int64", shape=(1 + len(self.shape),))

    @property
    def stride(self) -> int:
        """Bytes per example, for a column that is not ragged."""
        return math.prod((np.dtype(self.dtype).itemsize, *(size or 0 for size in self.shape)))


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Rows [start, start + count) that were written together, with a digest per stored column."""

    start: int
    count: int
    digests: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class SplitColumns:
    """The rows of one split; `ragged` has the sizes of ragged columns [bytes]."""

    count: int
    chunks: tuple[Chunk, ...]
    ragged: Mapping[str, int] = field(default_factory=dict)

    def rows(self, column: Column) -> int:
        """Return the number of rows that a column stores; they are the first rows of the split."""
        return sum(chunk.count for chunk in self.chunks if column.name in chunk.digests)

    def bytes(self, column: Column) -> int:
        return self.ragged[column.name] if column.ragged else column.stride * self.rows(column)


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Mean and standard deviation of the training input, per channel or column (its last axis)."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class SnapshotIndex:
    """Everything about a snapshot but the bytes of its columns.

    Attributes:
      key: identifies the shards, preprocessing, code and versions that it was made with.
      repaired: the shards that are read in place of damaged ones.
      vocabulary: number of different tokens in text, padding included; 0 for other data.
      files: digests of other files in the snapshot's folder, by name.
    """

    key: str
    statistics: Statistics
    columns: tuple[Column, ...]
    splits: Mapping[str, SplitColumns]
    repaired: tuple[Shard, ...] = ()
    vocabulary: int = 0
    files: Mapping[str, str] = field(default_factory=dict)

    def bytes(self, split: str) -> int:
        return sum(self.splits[split].bytes(column) for column in self.columns)


def count_stored(count: int, fraction: float) -> int:
    """Return the number of rows, of `count`, that a snapshot of this fraction stores."""
    return round(fraction * count)


def column_path(folder: Path, split: str, column: str) -> Path:
    return folder / split / f"{column}.bin"


def allocate(folder: Path, split: str, columns: Sequence[Column], count: int) -> None:
    """Create files of final size for columns that are not ragged; keep files of that size."""
    (folder / split).mkdir(parents=True, exist_ok=True)
    for column in columns:
        path, size = column_path(folder, split, column.name), column.stride * count
        if not column.ragged and not (path.exists() and path.stat().st_size == size):
            path.write_bytes(b"")
            os.truncate(path, size)


def write_rows(
    folder: Path,
    split: str,
    columns: Sequence[Column],
    *,
    start: int,
    values: Mapping[str, np.ndarray],
) -> Chunk:
    """Encode rows by `encode_chunk` and write them; return the chunk. Only `flush` secures them."""
    chunk, encoded = encode_chunk(columns, start=start, values=values)
    for column in columns:
        write_encoded_rows(folder, split, column, start=start, data=encoded[column.name])
    return chunk


def encode_chunk(
    columns: Sequence[Column], *, start: int, values: Mapping[str, np.ndarray]
) -> tuple[Chunk, dict[str, memoryview]]:
    """Return the chunk of consecutive rows with its digests, and their bytes by column.

    `values[name]` must have the shape (rows, *column.shape) and the column's dtype, else an op has
    changed them, and ImpossiblePlan is raised.
    """
    encoded = {}
    for column in columns:
        rows = values[column.name]
        if (rows.dtype, rows.shape[1:]) != (np.dtype(column.dtype), column.shape):
            raise ImpossiblePlan(
                f"preprocess: an op made {column.name} {rows.dtype} of shape {rows.shape[1:]}, but"
                f" a snapshot stores {column.dtype} of shape {column.shape}; have your op return"
                " that, or move it to postprocess"
            )
        encoded[column.name] = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data
    digests = {name: digest_blake3(data) for name, data in encoded.items()}
    return Chunk(start=start, count=len(values[columns[0].name]), digests=digests), encoded


def write_encoded_rows(
    folder: Path, split: str, column: Column, *, start: int, data: bytes | memoryview
) -> None:
    with column_path(folder, split, column.name).open("r+b") as file:
        file.seek(start * column.stride)
        file.write(data)


def flush(folder: Path, split: str, columns: Sequence[Column]) -> None:
    """Make sure that all rows written to a split are on the disk."""
    for column in columns:
        with column_path(folder, split, column.name).open("rb") as file:
            os.fsync(file.fileno())


def write_index(folder: Path, index: SnapshotIndex) -> None:
    """Write the index, last of all: its presence means that the columns are complete."""
    write_json(folder / INDEX, asdict(index))


def holds_columns(folder: Path) -> bool:
    """Return whether the columns of a snapshot are in its folder, not in an object store."""
    return any(folder.glob("*/*.bin"))


def read_index(folder: Path, *, key: str | None = None, with_columns: bool = True) -> SnapshotIndex:
    """Read the index, and check that the snapshot is complete and has this `key`, if given.

    Files of columns are checked only if `with_columns` is set. Raises MissingInput, DamagedFile,
    StaleSnapshot (of another key), or CorruptColumn (a file is not as the index says).
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
                    state = "is missing" if size is None else f"has {size} bytes, not {needed}"
                    raise CorruptColumn(f"{path} {state}; {rebuild_hint(folder, 'snapshot')}")
    return index


def verify(folder: Path, index: SnapshotIndex) -> None:
    """Compare every chunk with its digest; raise CorruptColumn for damaged rows."""
    for split, rows in index.splits.items():
        for column in index.columns:
            for chunk in rows.chunks:
                if column.name in chunk.digests:
                    read_chunk(folder, split, column, chunk, rows.rows(column))


def read_chunk(folder: Path, split: str, column: Column, chunk: Chunk, count: int) -> bytes:
    """Return the bytes of a chunk of a column of `count` rows; compare them with their digest."""
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
    """Return bytes [begin, end) of a chunk in a column file of `count` rows; refuse bad extents."""
    if not column.ragged:
        return chunk.start * column.stride, (chunk.start + chunk.count) * column.stride
    rows = slice(chunk.start, chunk.start + chunk.count)
    offsets = map_column(folder, split, column.extent, count)[rows]
    itemsize = np.dtype(column.dtype).itemsize
    begin, end = int(offsets[0, 0]) * itemsize, ragged.end_offset(offsets, itemsize)
    path = column_path(folder, split, column.name)
    size = path.stat().st_size if path.exists() else end  # the column may be in a store
    if not 0 <= begin <= end <= size:
        raise CorruptColumn(
            f"{column_path(folder, split, column.extent.name)}: rows cannot be at bytes {begin:,}"
            f" to {end:,} of {path.name}; {rebuild_hint(folder, 'snapshot')}"
        )
    return begin, end


def map_column(folder: Path, split: str, column: Column, count: int) -> np.ndarray:
    """Map a column as an array (count, *shape), or (elements,) if it is ragged, without reading it.

    The mapping is copy-on-write, because consumers such as DLPack refuse read-only memory; nothing
    is ever written back. No memory is reserved for copies, so a column may be larger than memory.
    """
    path, dtype = column_path(folder, split, column.name), np.dtype(column.dtype)
    shape = (-1,) if column.ragged else (count, *(size or 0 for size in column.shape))
    size = 0 if count == 0 else path.stat().st_size if column.ragged else column.stride * count
    if size == 0:
        return np.empty([max(0, length) for length in shape], dtype)
    flags, prot = mmap.MAP_PRIVATE | MAP_NORESERVE, mmap.PROT_READ | mmap.PROT_WRITE
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), size, flags=flags, prot=prot)
    return np.frombuffer(mapped, dtype).reshape(shape)


@cache
def read_ahead(path: Path, size: int) -> None:
    """Read the first `size` bytes of a column into the page cache, in the background.

    Does so once per process and file, if the bytes take at most half of the available memory. A
    cold disk is slow at reading rows in random order; from beginning to end it reads at full speed.
    """
    if path.exists() and size <= MEMORY_SHARE * available_memory():
        work = partial(_read_through, path, size)
        threading.Thread(target=work, daemon=True, name="read-ahead").start()


def _read_through(path: Path, size: int) -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LEAST_PRIORITY)
    block = bytearray(READ_BYTES)
    with path.open("rb", buffering=0) as file:
        # If only some rows have been fetched, the file has holes for the others.
        with suppress(OSError):
            first = os.lseek(file.fileno(), 0, os.SEEK_DATA)
            size = min(size, os.lseek(file.fileno(), first, os.SEEK_HOLE))
            file.seek(first)
        while file.tell() < size and file.readinto(block):
            pass
