"""Arguments and results of writing a snapshot's rows: the context, a shard's place, its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import PlainValidator

from throughline.data.columns.channel_stats import Moments
from throughline.data.columns.index import Chunk, Column, write_encoded_rows, write_rows
from throughline.data.columns.stored import ColumnObject, ColumnUpload
from throughline.data.shards.files import ShardFiles
from throughline.data.shards.index import Shard
from throughline.plan.ops import Op
from throughline.plan.schema import Schema
from throughline.shared.files import atomic_file
from throughline.shared.object_store import ObjectStore

STATISTICS_OF = "train"
# (rows, rank) int64, lists in JSON. All rows of a split are in memory.
Shapes = Annotated[np.ndarray, PlainValidator(lambda lists: np.asarray(lists, np.int64))]


@dataclass(frozen=True, kw_only=True)
class EarlierRows:
    """The rows of one shard in an earlier snapshot that the same ops and program made.

    The rows begin at row `start` of the split. They are in `objects` of a store, or below `folder`,
    whose input column has `stored` rows.
    """

    folder: Path
    start: int
    stored: int
    chunks: tuple[Chunk, ...]
    objects: tuple[ColumnObject, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PlacedShard:
    """A shard, its first row within its split, and earlier rows that may be copied for it."""

    shard: Shard
    start: int
    earlier: EarlierRows | None = None

    def __str__(self) -> str:
        return self.shard.name


@dataclass(frozen=True, kw_only=True)
class WriteContext:
    """The properties of the whole snapshot that writing one shard's rows needs.

    Attributes:
      stored: Number of rows of each split, from the first on, that store the model's input.
      key: The snapshot's key, below which a store holds the columns.
      store: If given, columns are put there; the folder holds everything else.
    """

    folder: Path
    shard_files: ShardFiles
    columns: Sequence[Column]
    ops: Sequence[Op]
    schema: Schema
    stored: Mapping[str, int]
    key: str
    store: ObjectStore | None = None

    @property
    def value(self) -> Column:
        return next(one for one in self.columns if one.name == self.schema.input.name)

    @property
    def value_columns(self) -> Sequence[Column]:
        """The columns of the stored rows: the model's input and, if ragged, its offsets."""
        return (self.value, self.value.extent) if self.value.ragged else (self.value,)

    @property
    def columns_of_all_rows(self) -> Sequence[Column]:
        """The columns that store every row: all but the model's first input and its offsets."""
        return [one for one in self.columns if one not in self.value_columns]

    @property
    def fixed_size_columns(self) -> Sequence[Column]:
        """The columns that are written row by row: all but a ragged one and its offsets."""
        return self.columns_of_all_rows if self.value.ragged else self.columns

    def stored_of(self, placed: PlacedShard) -> int:
        """Return the number of a shard's rows, from the first on, that store the model's input."""
        left = self.stored[placed.shard.split] - placed.start
        return min(max(0, left), placed.shard.examples)

    def takes_statistics(self, split: str) -> bool:
        return split == STATISTICS_OF and not self.schema.is_text

    def open_writer(self, split: str) -> ColumnUpload | ColumnFiles:
        """Return the writer of one shard's rows, to the store if there is one, else to files."""
        return ColumnUpload(self.store, self.key, split) if self.store else ColumnFiles(self, split)

    def part_path(self, split: str, start: int) -> Path:
        """Return the file of a ragged column's values from row `start`, before they are joined."""
        return self.folder / split / f".part-{start:012d}"

    def write_bytes(self, split: str, column: Column, start: int, data: bytes) -> None:
        """Write the bytes of rows from `start` into their column, or a ragged one's part file."""
        if column.ragged:
            with atomic_file(self.part_path(split, start)) as temporary:
                temporary.write_bytes(data)
        else:
            write_encoded_rows(self.folder, split, column, start=start, data=data)


@dataclass(frozen=True)
class ColumnFiles:
    """Writes the rows of one shard into the files of a split, as `ColumnUpload` does to a store."""

    context: WriteContext
    split: str
    names: Sequence[str] = ()

    def write_rows(
        self, columns: Sequence[Column], *, start: int, values: Mapping[str, np.ndarray]
    ) -> Chunk:
        return write_rows(self.context.folder, self.split, columns, start=start, values=values)

    def add(self, chunk: Chunk, column: str, data: bytes) -> None:
        """Write a chunk of the ragged `column` as a part."""
        self.context.write_bytes(self.split, self.context.value, chunk.start, data)

    def finish(self) -> None:
        pass


@dataclass(frozen=True, kw_only=True)
class ShardRows:
    """Facts about the written rows of one shard.

    Attributes:
      moments: Moments of the values, for the training split.
      shapes: Shapes of the values of a ragged column.
      objects: Names of the shard's objects in a store.
      copied: The rows were copied from an earlier snapshot.
      resumed: The rows were there from an interrupted run.
    """

    chunks: Sequence[Chunk]
    moments: Sequence[Moments]
    shapes: Shapes = field(default_factory=lambda: join_shapes(()))
    objects: Sequence[str] = ()
    copied: bool = False
    resumed: bool = False

    @property
    def count(self) -> int:
        return sum(chunk.count for chunk in self.chunks)


def join_shapes(parts: Sequence[np.ndarray], rank: int = 1) -> np.ndarray:
    """Concatenate the shapes of consecutive rows to (rows, rank) int64."""
    return np.concatenate([np.empty((0, rank), np.int64), *parts])
