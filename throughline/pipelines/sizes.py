"""How much of a split a pipeline keeps, in bytes: what is known, and estimates by the first records
where it is not.
"""

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
    """Bytes of what a plan keeps of a split from its first epoch on, in memory or on disk."""
    kept = 0.0
    for before, step in zip((None, *plan.steps), plan.steps, strict=False):
        if where == "memory" and isinstance(step, Read) and step.source == "arrays":
            kept += estimate_record_bytes(data, split)
        if isinstance(step, Cache) and (step.where == "memory") == (where == "memory"):
            kept += estimate_cached_bytes(before, data, split)
    return kept


def estimate_snapshot_bytes(data: PreparedData, split: str, fraction: float = 1.0) -> float:
    """Bytes of a split in a snapshot that stores this fraction of its rows; where there is less now
    than all of them, and images differ in size, by the first records.
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
    """Bytes of what a cache after this step holds: those of a whole snapshot after all of
    preprocessing, else an estimate.
    """
    if not isinstance(before, Map) or before.first_op_position + len(before.ops) == 0:
        return estimate_snapshot_bytes(data, split)
    return _estimate_bytes(
        [op for op in before.ops if not isinstance(op, Load | Parse)], data, split
    )


def _estimate_bytes(ops: Sequence[Op], data: PreparedData, split: str) -> float:
    """Bytes of the model's inputs of a split after these ops, by its first records, which are in
    random order; of ops that leave keys alone, none.
    """
    import tensorflow as tf

    schema = data.shards.schema
    ops = (Parse.of(schema), *ops)

    names = [feature.name for feature in schema.features if feature.role == "input"]

    def size(record: bytes) -> int:
        element = process_record(ops, tf.constant(record))
        return sum(element[name].numpy().nbytes for name in names if name in element)

    return _extrapolate(size, data, split)


def estimate_record_bytes(data: PreparedData, split: str) -> float:
    """Bytes of the records of a split as they are read: of compressed shards, by the first ones."""
    shards = data.shards.for_split(split)
    if all(shard.compression == "none" for shard in shards):
        return sum(shard.bytes for shard in shards)
    return _extrapolate(len, data, split)


def _extrapolate(size: Callable[[bytes], int], data: PreparedData, split: str) -> float:
    """The sum of the sizes of all records of a split, by its first ones."""
    shards = data.shards.for_split(split)
    path = data.shard_files.path(shards[0])
    records = read_records(path, compression=shards[0].compression)
    sizes = [size(record) for record in islice(records, SAMPLED_RECORDS)]
    return sum(shard.records for shard in shards) * sum(sizes) / len(sizes)
