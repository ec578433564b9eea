"""Rows of an earlier snapshot, copied where they were made of the same shards.

A shard is read for its digest all the same, and what is copied is compared with its own: nothing is
taken that is not whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from throughline.data.columns import ragged
from throughline.data.columns.channel_stats import Moments, compute_moments
from throughline.data.columns.index import (
    INDEX,
    Chunk,
    Column,
    SnapshotIndex,
    holds_columns,
    read_chunk,
)
from throughline.data.shards.index import INDEX as SHARDS
from throughline.data.shards.index import ShardIndex
from throughline.pipelines.read.prepared_data import compute_snapshot_key
from throughline.pipelines.write.rows import (
    EarlierSnapshot,
    PlacedShard,
    ShardRows,
    WriteContext,
)
from throughline.plan.ops import Op
from throughline.results.base import parse
from throughline.shared.errors import UserError, expect_current_schema
from throughline.shared.files import digest_file, read_json
from throughline.shared.layout import Layout


def find_earlier_snapshot(
    earlier: Layout | None,
    preprocess: Sequence[Op],
    columns: Sequence[Column],
    files: Mapping[str, str],
) -> EarlierSnapshot | None:
    """The snapshot of an earlier run of the same program, if its rows were made by these ops and
    with the same files, and are stored in columns like these.
    """
    if earlier is None:
        return None
    with suppress(UserError, OSError):
        with expect_current_schema(earlier.snapshot / INDEX, "snapshot"):
            index = parse(SnapshotIndex, read_json(earlier.snapshot / INDEX))
        with expect_current_schema(earlier.shards / SHARDS, "shard"):
            shards = parse(ShardIndex, read_json(earlier.shards / SHARDS))
        same = (tuple(columns), dict(files), compute_snapshot_key(shards, preprocess))
        if (index.columns, dict(index.files), index.key) == same and holds_columns(
            earlier.snapshot
        ):
            return _place(earlier.snapshot, index, shards.with_repaired(index.repaired))
    return None


def _place(folder: Path, index: SnapshotIndex, shards: ShardIndex) -> EarlierSnapshot:
    starts: dict[tuple[str, str], int] = {}
    for split in shards.splits:
        row = 0
        for shard in shards.for_split(split):
            starts[split, shard.digest] = row
            row += shard.examples
    return EarlierSnapshot(folder=folder, splits=index.splits, starts=starts)


def copy_rows(context: WriteContext, placed: PlacedShard) -> ShardRows | None:
    """Copy the rows of a shard to where they are now; None where no earlier snapshot has all of
    them.
    """
    earlier, shard = context.earlier, placed.shard
    start = earlier.starts.get((shard.split, shard.digest)) if earlier else None
    if earlier is None or start is None or context.stored_of(placed) < shard.examples:
        return None
    rows, end = earlier.splits[shard.split], start + shard.examples
    if rows.rows(context.value) < end or not _is_whole(context, placed):
        return None
    chunks: list[Chunk] = []
    parts: list[Moments] = []
    shapes: list[Sequence[int]] = []
    for chunk in rows.chunks:
        if not start <= chunk.start < end:
            continue
        data = _read(context, earlier, shard.split, chunk)
        if data is None:
            return None
        # Where values lie in the file is another thing now; their shapes stay.
        extents = _decode_extents(context, data.pop(context.value.extent.name, None))
        own = {name: chunk.digests[name] for name in data}
        chunks.append(replace(chunk, start=chunk.start - start + placed.start, digests=own))
        for column in (context.value, *context.columns_of_all_rows):
            context.write_bytes(shard.split, column, chunks[-1].start, data[column.name])
        shapes += [] if extents is None else extents[:, 1:].tolist()
        if context.takes_statistics(shard.split):
            parts.append(compute_moments(_decode(context.value, data[context.value.name], extents)))
    return ShardRows(chunks=chunks, moments=parts, shapes=shapes, copied=True)


def _is_whole(context: WriteContext, placed: PlacedShard) -> bool:
    with suppress(OSError):  # what reads it says what is wrong with it
        return digest_file(context.shard_path(placed.shard)) == placed.shard.digest
    return False


def _read(
    context: WriteContext, earlier: EarlierSnapshot, split: str, chunk: Chunk
) -> dict[str, bytes] | None:
    """The bytes of a chunk by column; None where they are not whole."""
    stored = earlier.splits[split].rows(context.value)
    with suppress(UserError, OSError, ValueError):
        return {
            column.name: read_chunk(earlier.folder, split, column, chunk, stored)
            for column in context.columns
        }
    return None


def _decode_extents(context: WriteContext, data: bytes | None) -> np.ndarray | None:
    """Where each value of a chunk begins, and its shape, (rows, 1 + rank); None of a column that is
    not ragged.
    """
    if data is None:
        return None
    return np.frombuffer(data, np.int64).reshape(-1, *context.value.extent.shape)


def _decode(column: Column, data: bytes, extents: np.ndarray | None) -> np.ndarray:
    """The values of a chunk, or all of their pixels, as they were when it was computed."""
    flat = np.frombuffer(data, np.dtype(column.dtype))
    if extents is None:
        return flat.reshape(-1, *(size or 0 for size in column.shape))
    begins = extents[:, 0] - extents[0, 0]
    return ragged.flatten_pixels(
        [
            flat[begin : begin + np.prod(shape)].reshape(shape)
            for begin, shape in zip(begins.tolist(), extents[:, 1:].tolist(), strict=True)
        ]
    )
