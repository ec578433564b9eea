"""Writes a snapshot's columns shard by shard, with their digests; resumes after a kill."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from throughline.data.columns import ragged
from throughline.data.columns.channel_stats import compute_moments
from throughline.data.columns.index import Chunk, SplitColumns, column_path, flush
from throughline.data.shards.index import Shard
from throughline.pipelines.write.earlier_rows import copy_rows
from throughline.pipelines.write.rows import PlacedShard, ShardRows, WriteContext, join_shapes
from throughline.plan.ops import Op
from throughline.results.base import read_value
from throughline.shared.errors import CorruptShard, ImpossiblePlan
from throughline.shared.files import digest_blake3, write_json
from throughline.shared.gc_pause import import_large
from throughline.shared.progress import in_threads

if TYPE_CHECKING:
    import tensorflow as tf

ROWS_BYTES = 32 << 20  # about this many bytes are preprocessed, written and digested together
UPLOADS = 8  # shards whose offsets are uploaded at a time


class NotDecoded(Exception):
    """A record of `shard` could not be read, or could not be decoded by `ops`."""

    def __init__(self, message: str, shard: str, ops: Sequence[Op]) -> None:
        super().__init__(message)
        self.shard, self.ops = shard, ops

    def __reduce__(self) -> tuple[type[NotDecoded], tuple[str, str, Sequence[Op]]]:
        return NotDecoded, (str(self), self.shard, self.ops)


def write_or_resume(context: WriteContext, placed: PlacedShard) -> ShardRows:
    """Write the rows of one shard, or copy them from an earlier snapshot.

    If an interrupted run has left the shard's note, which is written last, and a store still has
    its objects, return the rows as noted.
    """
    shard = placed.shard
    note = context.folder / f".done-{shard.name}.json"
    if note.exists():
        done = read_value(ShardRows, note, "snapshot")
        if context.store is None or all(map(context.store.find, done.objects)):
            return replace(done, resumed=True)
    written = copy_rows(context, placed) or write_shard(context, shard, placed.start)
    if context.store is None:
        flush(context.folder, shard.split, context.fixed_size_columns)
    write_json(note, written)
    return written


def write_shard(context: WriteContext, shard: Shard, start: int) -> ShardRows:
    """Write the rows of one shard, from row `start` of its split.

    Raises:
      NotDecoded: A record cannot be read or decoded.
      CorruptShard: The shard does not hold as many examples as the index says.
      ImpossiblePlan: The results of preprocessing do not fit into their column.
    """
    import_large("tensorflow")
    from throughline.kernels.elements import TENSORFLOW_ERRORS, read_message

    path = context.shard_files.path(shard)
    chunks, parts, shapes, count = [], [], [], 0
    writer = context.open_writer(shard.split)
    try:
        stored = context.stored[shard.split] - start
        for group in _preprocessed(path, shard, context):
            if context.takes_statistics(shard.split):
                # Summed over all rows preprocessed together, stored or not, so that the sums are
                # always the same to the last bit.
                inputs = group[context.value.name]
                pixels = ragged.flatten_pixels(inputs) if isinstance(inputs, list) else inputs
                parts.append(compute_moments(pixels))
            cut = max(0, stored - count)
            for part in (slice(cut), slice(cut, None)):
                values = {name: each[part] for name, each in group.items()}
                if not len(values["key"]):
                    continue
                inputs, is_stored = _as_stored(values[context.value.name], context), count < stored
                columns = context.fixed_size_columns if is_stored else context.columns_of_all_rows
                chunk = writer.write_rows(columns, start=start + count, values=values)
                if is_stored and isinstance(inputs, list):
                    data = ragged.pack(inputs)
                    own = {context.value.name: digest_blake3(data)}
                    chunk = replace(chunk, digests={**own, **chunk.digests})
                    writer.add(chunk, context.value.name, data)
                    shapes.append(np.asarray([value.shape for value in inputs], np.int64))
                chunks.append(chunk)
                count += chunk.count
    except TENSORFLOW_ERRORS as error:
        raise NotDecoded(
            f"{path}: cannot be read or decoded after record {count}: {read_message(error)}",
            shard.name,
            context.ops,
        ) from error
    if count != shard.examples:
        raise CorruptShard(
            f"{path}: holds {count} examples, but {shard.examples} according to the index; run `dvc"
            " repro --force shard`"
        )
    writer.finish()
    found = join_shapes(shapes, len(context.value.shape))
    return ShardRows(chunks=chunks, moments=parts, shapes=found, objects=writer.names)


def _as_stored(inputs: Any, context: WriteContext) -> Any:
    """Return inputs in the column's type: tokens are cast to it, others must have it.

    Raises:
      ImpossiblePlan: They have values, a type or a number of channels that the column cannot store.
    """
    column = context.value
    if context.schema.is_text:
        most = np.iinfo(column.dtype).max
        if any(len(one) and (one.min() < 0 or one.max() > most) for one in inputs):
            raise ImpossiblePlan(
                f"preprocess: some of its tokens are not from 0 to {most:,}, the range of this"
                " tokenizer in a snapshot; have your op return only tokens of the tokenizer"
            )
        return [tokens.astype(column.dtype) for tokens in inputs]
    if (dtype := inputs[0].dtype) != column.dtype:
        raise ImpossiblePlan(
            f"preprocess: its result is {dtype}, but a snapshot stores {column.dtype}; have your op"
            f" return {column.dtype}, or move it to postprocess"
        )
    channels = column.shape[-1] if column.shape else None
    if channels and isinstance(inputs, list) and any(one.shape[-1] != channels for one in inputs):
        raise ImpossiblePlan(
            f"preprocess: some of its results do not have the {channels} channels that a snapshot"
            " of these images stores; have your op return as many, or move it to postprocess"
        )
    return inputs


def finish_split(context: WriteContext, split: str, written: Sequence[ShardRows]) -> SplitColumns:
    """Return a split's columns, after joining a ragged column's parts and writing its offsets."""
    chunks = [chunk for rows in written for chunk in rows.chunks]
    count = sum(rows.count for rows in written)
    column = context.value
    if not column.ragged:
        return SplitColumns(count=count, chunks=tuple(chunks))
    rank, itemsize = len(column.shape), np.dtype(column.dtype).itemsize
    shapes = join_shapes([rows.shapes.reshape(-1, rank) for rows in written], rank)
    offsets = ragged.compute_offsets(shapes, itemsize)
    stored = [chunk for chunk in chunks if column.name in chunk.digests]
    if context.store is None:
        ragged.concatenate_parts(
            [context.part_path(split, chunk.start) for chunk in stored],
            column_path(context.folder, split, column.name),
        )
    placed = in_threads(
        lambda rows: list(_write_extents(context, split, rows.chunks, offsets)),
        written,
        workers=UPLOADS if context.store else 1,
    )
    chunks = tuple(itertools.chain.from_iterable(placed))
    if context.store is None:
        flush(context.folder, split, (column.extent,))
    ends = {column.name: ragged.end_offset(offsets, itemsize)}
    return SplitColumns(count=count, chunks=chunks, ragged=ends)


def _write_extents(
    context: WriteContext, split: str, chunks: Sequence[Chunk], offsets: np.ndarray
) -> Iterator[Chunk]:
    """Write the offsets of a shard's stored values; yield all of its chunks with their digests."""
    extent, writer = context.value.extent, context.open_writer(split)
    for chunk in chunks:
        digests = chunk.digests
        if context.value.name in digests:
            values = {extent.name: offsets[chunk.start : chunk.start + chunk.count]}
            placed = writer.write_rows((extent,), start=chunk.start, values=values)
            digests = {**digests, **placed.digests}
        yield replace(chunk, digests=digests)
    writer.finish()


def _preprocessed(path: Path, shard: Shard, context: WriteContext) -> Iterator[dict[str, Any]]:
    """Yield a shard's preprocessed examples in order, about ROWS_BYTES at a time.

    Inputs that differ in size come as a list of arrays.
    """
    import tensorflow as tf

    from throughline.kernels.elements import process_record, without_autograph

    run = without_autograph(partial(process_record, context.ops))
    records: tf.data.Dataset = tf.data.TFRecordDataset(
        str(path), compression_type="GZIP" if shard.compression == "gzip" else ""
    )
    name = context.value.name
    if context.schema.is_series:
        for block in records.map(run).as_numpy_iterator():
            steps = np.arange(len(block[name]), dtype=np.int64)
            yield {name: block[name], "key": block["key"] + steps}
        return
    examples = records.map(run, num_parallel_calls=tf.data.AUTOTUNE)
    if context.value.ragged:
        passed = 0

        def number(example: dict[str, Any]) -> int:
            nonlocal passed
            passed += example[name].nbytes
            return passed // ROWS_BYTES

        for _, group in itertools.groupby(examples.as_numpy_iterator(), key=number):
            together = list(group)
            columns = {key: [item[key] for item in together] for key in together[0]}
            yield {key: each if key == name else np.asarray(each) for key, each in columns.items()}
        return
    rows = max(1, ROWS_BYTES // context.value.stride)
    if all(op.takes != "example" for op in context.ops):
        examples = records.batch(rows).map(run)
    else:
        examples = examples.batch(rows)
    yield from examples.as_numpy_iterator()
