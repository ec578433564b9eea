"""Copies rows of an earlier snapshot of the same shards: between files, or within an object store.

Each shard and each copied chunk is still compared with its digest, so that no damage is copied.
"""

import itertools
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from throughline.data.columns import ragged
from throughline.data.columns.channel_stats import Moments, compute_moments
from throughline.data.columns.fetching import FetchedColumns, fetch_checked
from throughline.data.columns.index import (
    INDEX,
    Chunk,
    Column,
    SnapshotIndex,
    holds_columns,
    read_chunk,
)
from throughline.data.columns.stored import (
    ColumnObject,
    Destination,
    check_stored_index,
    list_objects,
)
from throughline.data.shards.index import INDEX as SHARDS
from throughline.data.shards.index import ShardIndex
from throughline.data.storage import Storage
from throughline.pipelines.read.prepared_data import compute_snapshot_key
from throughline.pipelines.write.rows import (
    EarlierRows,
    PlacedShard,
    ShardRows,
    WriteContext,
    join_shapes,
)
from throughline.plan.ops import Op
from throughline.results.base import read_value
from throughline.shared.errors import ObjectStoreFailed, UserError
from throughline.shared.layout import Layout
from throughline.shared.object_store import ObjectStore
from throughline.shared.progress import echo_problem

_REFUSED: set[str] = set()  # stores that did not copy, which is reported once


def find_earlier_rows(
    destination: Destination,
    key: str,
    preprocess: Sequence[Op],
    columns: Sequence[Column],
    files: Mapping[str, str],
) -> Mapping[tuple[str, str], EarlierRows]:
    """Return the rows of whole shards in an earlier run's snapshot, by split and shard digest.

    The same program, these ops and the same `files` made the rows. They are in equal columns, and
    in the destination's store, if it has one. The result is empty if there are no such rows, if
    they cannot be read, or if a store has them under this `key` already.
    """
    earlier, store = destination.earlier, destination.store
    if earlier is None:
        return {}
    try:
        if not (earlier.snapshot / INDEX).exists():
            return {}
        index = read_value(SnapshotIndex, earlier.snapshot / INDEX, "snapshot")
        shards = read_value(ShardIndex, earlier.shards / SHARDS, "shard")
        same = (tuple(columns), dict(files), compute_snapshot_key(shards, preprocess))
        in_files = holds_columns(earlier.snapshot)
        found = (index.columns, dict(index.files), index.key)
        if found != same or in_files == bool(store) or (store and index.key == key):
            return {}
        shards = shards.with_repaired(index.repaired)
        objects = _find_objects(earlier, index, shards, store) if store else {}
        return dict(_divide(earlier, index, shards, objects))
    except (UserError, OSError) as error:
        if store:
            echo_problem(f"nothing of the earlier snapshot is copied: {error}")
    return {}


def _find_objects(
    earlier: Layout, index: SnapshotIndex, shards: ShardIndex, store: ObjectStore
) -> dict[str, list[ColumnObject]]:
    """Return the objects of a snapshot by split; a store with the snapshot's index has them all."""
    fetched = FetchedColumns(
        storage=Storage(url=store.url, cache=earlier.root / "fetched"),
        snapshot_folder=earlier.snapshot,
        index=index,
        shards=shards,
    )
    check_stored_index(store, index.key, earlier.snapshot)
    extents = [column.extent for column in index.columns if column.ragged]
    for split, extent in itertools.product(index.splits, extents):
        fetched.fetch(split, extent)  # the offsets give the sizes of the objects of values
    return {
        split: [
            one
            for column in index.columns
            for one in list_objects(index, shards, split, column, fetched.folder)
        ]
        for split in index.splits
    }


def _divide(
    earlier: Layout,
    index: SnapshotIndex,
    shards: ShardIndex,
    objects: Mapping[str, Sequence[ColumnObject]],
) -> Iterator[tuple[tuple[str, str], EarlierRows]]:
    """Yield (split, shard digest) and rows of each shard whose input values are all stored."""
    for split in shards.splits:
        rows, of_split = index.splits[split], shards.for_split(split)
        stored = rows.rows(index.columns[0])
        ends = list(itertools.accumulate(shard.examples for shard in of_split))
        chunks, parts = defaultdict(list), defaultdict(list)  # by the shard's number
        for chunk in rows.chunks:
            chunks[bisect_right(ends, chunk.start)].append(chunk)
        for one in objects.get(split, ()):
            parts[bisect_right(ends, one.rows.start)].append(one)
        for number, (shard, end) in enumerate(zip(of_split, ends, strict=True)):
            if end <= stored:
                rows_of_shard = EarlierRows(
                    folder=earlier.snapshot,
                    start=end - shard.examples,
                    stored=stored,
                    chunks=tuple(chunks[number]),
                    objects=tuple(parts[number]),
                )
                yield (split, shard.digest), rows_of_shard


def copy_rows(context: WriteContext, placed: PlacedShard) -> ShardRows | None:
    """Copy the rows of a shard to their new place; None if they cannot all be copied."""
    earlier, shard = placed.earlier, placed.shard
    if earlier is None or context.stored_of(placed) < shard.examples:
        return None
    if not context.shard_files.is_whole(shard):
        return None  # the code that then reads the shard reports the damage
    read, extent = _open_earlier(context, shard.split, earlier), context.value.extent
    chunks: list[Chunk] = []
    parts: list[Moments] = []
    shapes: list[np.ndarray] = []
    for chunk in earlier.chunks:
        try:
            data = {column.name: read(column, chunk) for column in context.columns}
        except (UserError, OSError, ValueError):
            return None  # damaged
        extents = None
        if context.value.ragged:  # offsets of values in the file change, their shapes stay
            extents = np.frombuffer(data.pop(extent.name), np.int64).reshape(-1, *extent.shape)
            shapes.append(extents[:, 1:])
        own = {name: chunk.digests[name] for name in data}
        chunks.append(replace(chunk, start=chunk.start - earlier.start + placed.start, digests=own))
        if context.store is None:
            for column in (context.value, *context.columns_of_all_rows):
                context.write_bytes(shard.split, column, chunks[-1].start, data[column.name])
        if context.takes_statistics(shard.split):
            parts.append(compute_moments(_decode(context.value, data[context.value.name], extents)))
    objects = _copy_objects(context, context.store, placed, earlier) if context.store else ()
    if objects is None:
        return None
    found = join_shapes(shapes, len(context.value.shape))
    return ShardRows(chunks=chunks, moments=parts, shapes=found, objects=objects, copied=True)


def _open_earlier(
    context: WriteContext, split: str, earlier: EarlierRows
) -> Callable[[Column, Chunk], bytes]:
    """Return a function that reads and checks a chunk of a column; call it for chunks in order."""
    store, folder = context.store, earlier.folder
    if store is None:
        return lambda column, chunk: read_chunk(folder, split, column, chunk, earlier.stored)
    last: dict[str, tuple[ColumnObject, memoryview]] = {}  # of each column

    def read(column: Column, chunk: Chunk) -> bytes:
        if column.name not in last or chunk.start not in last[column.name][0].rows:
            last.pop(column.name, None)
            objects = (one for one in earlier.objects if one.column == column.name)
            one = next(one for one in objects if chunk.start in one.rows)
            last[column.name] = one, fetch_checked(store, one)
        one, data = last[column.name]
        number = one.chunks.index(chunk)
        begin = sum(one.sizes[:number])
        return bytes(data[begin : begin + one.sizes[number]])

    return read


def _copy_objects(
    context: WriteContext, store: ObjectStore, placed: PlacedShard, earlier: EarlierRows
) -> Sequence[str] | None:
    """Let the store copy a shard's objects, except offsets; return new names, None if it fails."""
    objects = [one for one in earlier.objects if one.column != context.value.extent.name]
    shift = placed.start - earlier.start
    names = [one.name_at(context.key, one.rows.start + shift) for one in objects]
    try:
        for one, name in zip(objects, names, strict=True):
            found = store.find(name)
            if found is None or found.bytes != one.bytes:
                store.copy(one.name, name)
    except ObjectStoreFailed as error:
        if store.url not in _REFUSED:
            _REFUSED.add(store.url)
            echo_problem(f"rows are computed again, because the store did not copy them: {error}")
        return None
    return names


def _decode(column: Column, data: bytes, extents: np.ndarray | None) -> np.ndarray:
    """Return a chunk's values as an array; those of a ragged column as (pixels, channels)."""
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
