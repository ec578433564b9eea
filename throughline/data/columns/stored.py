"""Columns of a snapshot in an object store: lists their objects, and puts them there.

    KEY/train/image/000000040960-DIGEST     consecutive chunks of one column of one shard, from the
                                            row in the name on
    KEY/index/DIGEST.json                   index.json, last of all: the snapshot is complete

KEY is the snapshot's. An object holds one chunk (about 32 MiB), or as many as make it 1 MiB. Its
name holds the digest of its contents, so it never changes: two writers write the same bytes, even
if they store different shares of the rows under KEY, and an existing object need not be written
again. Names follow from the index and the shards, so they are not stored.
"""

import re
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from throughline.data.columns.index import (
    INDEX,
    Chunk,
    Column,
    SnapshotIndex,
    encode_chunk,
    find_span,
)
from throughline.data.shards.index import ShardIndex
from throughline.shared.errors import ObjectStoreFailed, StaleSnapshot
from throughline.shared.files import digest_blake2b, digest_blake3
from throughline.shared.layout import Layout
from throughline.shared.object_store import ObjectStore

OBJECT_BYTES = 1 << 20  # an object gets chunks until it has at least this size
_NAME = re.compile(r"[0-9a-f]{32}/(index/[0-9a-f]{32}\.json|[^/]+/.+/\d{12}-[0-9a-f]{32})")


def is_of_snapshot(name: str) -> bool:
    """Return whether an object may be one of a snapshot, by its name; others share the bucket."""
    return bool(_NAME.fullmatch(name))


@dataclass(frozen=True, kw_only=True)
class Destination:
    """The place of a new snapshot: a folder and, if its columns go there, an object store.

    `earlier` has shards and snapshot of an earlier run of the same program, if any. `needs` are the
    files and libraries of the user's own ops; only with the same ones is a snapshot continued.
    """

    folder: Path
    store: ObjectStore | None = None
    earlier: Layout | None = None
    needs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ColumnObject:
    """An object with consecutive chunks of a column: bytes of the column's file from `begin` on."""

    key: str
    split: str
    column: str
    chunks: tuple[Chunk, ...]
    sizes: tuple[int, ...]
    begin: int = 0

    @property
    def name(self) -> str:
        return self.name_at(self.key, self.rows.start)

    @property
    def bytes(self) -> int:
        return sum(self.sizes)

    @property
    def end(self) -> int:
        return self.begin + self.bytes

    def name_at(self, key: str, start: int) -> str:
        """Return the object's name in snapshot `key`, in which its rows begin at row `start`."""
        digest = digest_blake2b(*(chunk.digests[self.column].encode() for chunk in self.chunks))
        return f"{key}/{self.split}/{self.column}/{start:012d}-{digest}"

    @property
    def rows(self) -> range:
        return range(self.chunks[0].start, self.chunks[-1].start + self.chunks[-1].count)

    def find_wrong_chunk(self, data: memoryview) -> Chunk | None:
        """Return the first chunk in the object's bytes that does not match its digest, or None."""
        for chunk, size in zip(self.chunks, self.sizes, strict=True):
            part, data = data[:size], data[size:]
            if digest_blake3(part) != chunk.digests[self.column]:
                return chunk
        return None

    @contextmanager
    def naming_rows(self) -> Iterator[None]:
        """Add the rows to errors of the store about this object."""
        try:
            yield
        except ObjectStoreFailed as error:
            raise ObjectStoreFailed(f"{error} ({self.describe(*self.chunks)})") from None

    def describe(self, *chunks: Chunk) -> str:
        """Return the column, the split and the rows of consecutive chunks, for messages."""
        first, last = chunks[0].start, chunks[-1].start + chunks[-1].count - 1
        return f"column {self.column} of the {self.split} split, rows {first} to {last}"


def list_objects(
    index: SnapshotIndex, shards: ShardIndex, split: str, column: Column, folder: Path
) -> Iterator[ColumnObject]:
    """Yield the objects of a column of a split, in order.

    `shards` are those that were read. The extents of a ragged column must be in `folder`.
    """
    rows, end = index.splits[split], 0
    stored = rows.rows(column)
    chunks = deque(chunk for chunk in rows.chunks if column.name in chunk.digests)
    for shard in shards.for_split(split):
        end += shard.examples
        while chunks and chunks[0].start < end:
            joined, sizes, first = list[Chunk](), list[int](), 0
            while chunks and chunks[0].start < end and sum(sizes) < OBJECT_BYTES:
                begin, stop = find_span(folder, split, column, chunks[0], stored)
                first = first if joined else begin
                joined.append(chunks.popleft())
                sizes.append(stop - begin)
            yield ColumnObject(
                key=index.key,
                split=split,
                column=column.name,
                chunks=tuple(joined),
                sizes=tuple(sizes),
                begin=first,
            )


class ColumnUpload:
    """Puts the chunks of one shard into a store as they come; `finish` puts the last ones."""

    def __init__(self, store: ObjectStore, key: str, split: str) -> None:
        self._store, self._key, self._split = store, key, split
        self._pending = defaultdict[str, list[tuple[Chunk, bytes | memoryview]]](list)
        self.names: list[str] = []  #: objects in the store by now

    def write_rows(
        self, columns: Sequence[Column], *, start: int, values: Mapping[str, np.ndarray]
    ) -> Chunk:
        """Put consecutive rows of every column; return the chunk with its digests."""
        chunk, encoded = encode_chunk(columns, start=start, values=values)
        for name, data in encoded.items():
            self.add(chunk, name, data)
        return chunk

    def add(self, chunk: Chunk, column: str, data: bytes | memoryview) -> None:
        pending = self._pending[column]
        pending.append((chunk, data))
        if sum(len(part) for _, part in pending) >= OBJECT_BYTES:
            self._put(column)

    def finish(self) -> None:
        """Put the remaining chunks; then all objects are in the store."""
        for column in [*self._pending]:
            self._put(column)

    def _put(self, column: str) -> None:
        chunks, parts = zip(*self._pending.pop(column), strict=True)
        sizes = tuple(map(len, parts))
        one = ColumnObject(
            key=self._key, split=self._split, column=column, chunks=chunks, sizes=sizes
        )
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        with one.naming_rows():
            found = self._store.find(one.name)
            if found is None or found.bytes != one.bytes:
                self._store.write(one.name, data)
        self.names.append(one.name)


def put_index(store: ObjectStore, key: str, folder: Path) -> None:
    """Put the index of a folder, last of all: its presence means that all objects are there."""
    data = (folder / INDEX).read_bytes()
    store.write(_index_name(key, data), data)


def check_stored_index(store: ObjectStore, key: str, folder: Path) -> None:
    """Check that the store has the whole snapshot of a folder's index; raise StaleSnapshot."""
    data = (folder / INDEX).read_bytes()
    name = _index_name(key, data)
    there = store.read(name) if store.find(name) else None
    if there != data:
        state = "is not there" if there is None else "is of another snapshot"
        raise StaleSnapshot(
            f"{store.address(name)} {state}, so {store.url} does not hold the whole snapshot that"
            f" {folder / INDEX} describes; correct storage.url, or run"
            " `dvc repro --force snapshot`"
        )


def _index_name(key: str, data: bytes) -> str:
    return f"{key}/index/{digest_blake3(data)}.json"
