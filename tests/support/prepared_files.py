"""Shards and columns of a few examples that a test makes up."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from throughline.data.columns.index import (
    Column,
    SnapshotIndex,
    SplitColumns,
    Statistics,
    allocate,
    write_index,
    write_rows,
)
from throughline.data.encodings.arrays import pixels_feature
from throughline.data.encodings.labels import labeled
from throughline.data.shards.index import Shard, ShardIndex
from throughline.data.shards.records import Label, encode_head_and_tail
from throughline.data.shards.tfrecord import Compression, frame, write_frames


def write_shard(path: Path, records: Sequence[bytes], *, compression: Compression = "none"):
    """A shard of the training split with these records, of one example each."""
    frames = (part for record in records for part in frame(record))
    digest = write_frames(path, frames, compression=compression)
    counts = {"records": len(records), "examples": len(records), "bytes": path.stat().st_size}
    return Shard(name=path.name, split="train", digest=digest, compression=compression, **counts)


def encode_example(*, key: int, label: Label, value: bytes, feature: str = "image") -> bytes:
    """One tf.train.Example, as shards hold it."""
    head, tail = encode_head_and_tail(len(value), key=key, label=label, feature=feature)
    return b"".join((head, value, tail))


def index_of(*shards: Shard, shape: tuple[int, ...]) -> ShardIndex:
    """The index of shards with images of this shape in two classes."""
    schema = labeled(pixels_feature(shape))
    return ShardIndex(schema=schema, classes=("a", "b"), data_digest="d", shards=shards)


def write_columns(
    folder: Path, columns: tuple[Column, ...], values: Mapping[str, np.ndarray], *, rows: int
) -> SnapshotIndex:
    """Columns of a training split in chunks of so many rows, the last one first."""
    count = len(values[columns[0].name])
    allocate(folder, "train", columns, count)
    chunks = []
    for start in reversed(range(0, count, rows)):
        part = {name: array[start : start + rows] for name, array in values.items()}
        chunks.append(write_rows(folder, "train", columns, start=start, values=part))
    index = SnapshotIndex(
        key="k",
        statistics=Statistics(mean=(0.0,), deviation=(1.0,)),
        columns=columns,
        splits={"train": SplitColumns(count=count, chunks=tuple(chunks))},
    )
    write_index(folder, index)
    return index
