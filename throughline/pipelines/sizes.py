"""The bytes that a pipeline keeps of a split: known sizes, or estimates from the first records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Literal

from throughline.data.shards.tfrecord import read_records
from throughline.pipelines.read.prepared_data import PreparedData
from throughline.pipelines.write.undecodable import process_record
from throughline.plan.ops import Load, Op, Parse
from throughline.plan.plan import Plan
from throughline.plan.shapes import resolve_decode
from throughline.plan.steps import Cache, Map, Read, Step

SAMPLED_RECORDS = 16  # whose size stands for that of all


def estimate_kept_bytes(
    plan: Plan, data: PreparedData, split: str, *, where: Literal["memory", "disk"]
) -> float:
    """Return the bytes that a plan keeps of a split after its first epoch."""
    kept = 0.0
    for before, step in zip((None, *plan.steps), plan.steps, strict=False):
        if where == "memory" and isinstance(step, Read) and step.source == "arrays":
            kept += estimate_record_bytes(data, split)
        if isinstance(step, Cache) and (step.where == "memory") == (where == "memory"):
            kept += estimate_cached_bytes(before, data, split)
    return kept


def estimate_snapshot_bytes(data: PreparedData, split: str, fraction: float = 1.0) -> float:
    """Return the bytes of a split in a snapshot that stores this fraction of its rows.

    Estimated from the first records for images of variable size that are not all stored now.
    """
    rows, column = data.snapshot.splits[split], data.input_column
    values = (column, column.extent) if column.ragged else (column,)
    others = sum(rows.bytes(each) for each in data.snapshot.columns if each not in values)
    if rows.rows(column) == rows.count:
        stored = float(sum(rows.bytes(each) for each in values))
    elif column.ragged:
        ops = resolve_decode(data.preprocess, data.shards.schema)
        stored = _estimate_bytes(ops, data, split) + rows.count * column.extent.stride
    else:
        stored = float(rows.count * column.stride)
    return others + fraction * stored


def estimate_cached_bytes(before: Step | None, data: PreparedData, split: str) -> float:
    """Return the bytes of a cache after this step.

    Known from a whole snapshot after all of preprocessing, else estimated.
    """
    if not isinstance(before, Map) or before.first_op_position + len(before.ops) == 0:
        return estimate_snapshot_bytes(data, split)
    return _estimate_bytes(
        [op for op in before.ops if not isinstance(op, Load | Parse)], data, split
    )


def _estimate_bytes(ops: Sequence[Op], data: PreparedData, split: str) -> float:
    """Estimate the bytes of a split's inputs after these ops from its first records."""
    import tensorflow as tf

    schema = data.shards.schema
    ops = (Parse.of(schema), *ops)

    names = [feature.name for feature in schema.features if feature.role == "input"]

    def size(record: bytes) -> int:
        element = process_record(ops, tf.constant(record))
        return sum(element[name].numpy().nbytes for name in names if name in element)

    return _extrapolate(size, data, split)


def estimate_record_bytes(data: PreparedData, split: str) -> float:
    """Return the bytes of a split's records as read; for compressed shards an estimate."""
    shards = data.shards.for_split(split)
    if all(shard.compression == "none" for shard in shards):
        return sum(shard.bytes for shard in shards)
    return _extrapolate(len, data, split)


def _extrapolate(size: Callable[[bytes], int], data: PreparedData, split: str) -> float:
    """Return the total size of a split's records, estimated from the first."""
    shards = data.shards.for_split(split)
    path = data.shard_files.path(shards[0])
    records = read_records(path, compression=shards[0].compression)
    sizes = [size(record) for record in islice(records, SAMPLED_RECORDS)]
    return sum(shard.records for shard in shards) * sum(sizes) / len(sizes)
