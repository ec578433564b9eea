"""Estimates the bytes that a pipeline keeps, and checks plans against the amount of data.

Sizes that are not known are estimated from the first records.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Literal

from throughline.data.shards.tfrecord import read_records
from throughline.pipelines.read.prepared_data import PreparedData
from throughline.plan.ops import Load, Op, Parse
from throughline.plan.plan import Plan
from throughline.plan.shapes import resolve_decode
from throughline.plan.steps import Cache, Map, Prefetch, Read, Shuffle, Step, shuffle_buffer_size
from throughline.shared.errors import ImpossiblePlan
from throughline.shared.limits import available_memory

SAMPLED_RECORDS = 16  # records whose mean size estimates that of all


def estimate_kept_bytes(
    plan: Plan, data: PreparedData, split: str, *, where: Literal["memory", "disk"]
) -> float:
    """Return the bytes of a split that a plan keeps in memory or on disk after its first epoch."""
    kept = 0.0
    for before, step in zip((None, *plan.steps), plan.steps, strict=False):
        if where == "memory" and isinstance(step, Read) and step.source == "arrays":
            kept += estimate_record_bytes(data, split)
        if isinstance(step, Cache) and (step.where == "memory") == (where == "memory"):
            kept += estimate_cached_bytes(before, data, split)
    return kept


def estimate_snapshot_bytes(data: PreparedData, split: str, fraction: float = 1.0) -> float:
    """Return the bytes of a split in a snapshot that stores the inputs of this fraction of rows.

    If images vary in size and are not all stored now, estimate it from the first records.
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
    """Return the bytes of a cache after the step `before`.

    After all of preprocessing, the cache is as large as the snapshot; elsewhere it is estimated.
    """
    if not isinstance(before, Map) or before.first_op_position + len(before.ops) == 0:
        return estimate_snapshot_bytes(data, split)
    ops = [op for op in before.ops if not isinstance(op, Load | Parse)]
    return _estimate_bytes(ops, data, split)


def _estimate_bytes(ops: Sequence[Op], data: PreparedData, split: str) -> float:
    """Estimate the bytes of a split's inputs after these ops from its first records."""
    import tensorflow as tf

    from throughline.kernels.elements import process_record

    schema = data.shards.schema
    ops = (Parse.of(schema), *ops)
    names = [feature.name for feature in schema.features if feature.role == "input"]

    def size(record: bytes) -> int:
        element = process_record(ops, tf.constant(record))
        return sum(element[name].numpy().nbytes for name in names if name in element)

    return _extrapolate(size, data, split)


def estimate_record_bytes(data: PreparedData, split: str) -> float:
    """Return the bytes of a split's uncompressed records; of compressed shards, an estimate."""
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


def check_extent(plan: Plan, data: PreparedData, split: str) -> None:
    """Check a plan against the extent of a split.

    Raises:
      ImpossiblePlan: A shuffle buffer does not fit into memory, or a local tf.data service with
        static sharding has more workers than the split has shards.
    """
    _check_buffer(plan, data, split)
    service, first, shards = plan.service, plan.steps[0], len(data.shards.for_split(split))
    static = service and not service.address and service.sharding == "static"
    workers = service.workers if service and static else 0
    if isinstance(first, Read) and first.source == "shards" and workers > shards:
        raise ImpossiblePlan(
            f"service.workers: {workers} workers need a shard each with `sharding: static`,"
            f" and the {split} split has only {shards}; use at most that many, or `sharding:"
            f" dynamic`, or set shard.min_shards to {workers} or more and run `dvc repro`"
        )


def _check_buffer(plan: Plan, data: PreparedData, split: str) -> None:
    """Check that a shuffle buffer of records, or of a disk cache's elements, fits into memory.

    Skip memory caches, which share their examples with the buffer, and windows and file names.
    """
    shuffle = next((step for step in plan.steps if isinstance(step, Shuffle)), None)
    cache = next((step for step in plan.steps if isinstance(step, Cache)), None)
    reads_files = isinstance(plan.steps[0], Read) and plan.steps[0].source == "files"
    if shuffle is None or plan.window or (cache.where == "memory" if cache else reads_files):
        return
    examples = data.shards.examples(split)
    if cache:
        kept = estimate_cached_bytes(plan.steps[plan.steps.index(cache) - 1], data, split)
    else:
        kept = estimate_record_bytes(data, split)
    buffers = 1 + isinstance(plan.steps[-1], Prefetch)  # the next epoch's buffer is filled ahead
    size = shuffle_buffer_size(shuffle.size, examples=examples)
    needed, available = buffers * size * kept / max(1, examples), available_memory()
    if needed > available:
        raise ImpossiblePlan(
            f"shuffle.size: {buffers * size:,} examples in shuffle buffers would take"
            f" {needed / 2**30:,.1f} GiB of memory, and {available / 2**30:,.1f} GiB are available;"
            f" set it to {max(1, int(size * available / needed)):,} or less, or use `read:"
            " snapshot`"
        )
