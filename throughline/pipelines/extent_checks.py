"""Checks plans against the amount of data: buffers beyond memory, and workers without files."""

from __future__ import annotations

from throughline.pipelines.read.prepared_data import PreparedData
from throughline.pipelines.sizes import estimate_cached_bytes, estimate_record_bytes
from throughline.plan.plan import Plan
from throughline.plan.steps import Cache, Prefetch, Read, Shuffle, shuffle_buffer_size
from throughline.shared.errors import ImpossiblePlan
from throughline.shared.limits import available_memory


def check_extent(plan: Plan, data: PreparedData, split: str) -> None:
    """Check a plan against the extent of a split.

    Raises:
      ImpossiblePlan: A shuffle buffer does not fit into memory, or a worker has no shard to read.
    """
    _check_service(plan, data, split)
    _check_buffer(plan, data, split)


def _check_service(plan: Plan, data: PreparedData, split: str) -> None:
    service, first = plan.service, plan.steps[0]
    if service is None or service.address or service.sharding != "static":
        return
    shards = len(data.shards.for_split(split))
    if isinstance(first, Read) and first.source == "shards" and service.workers > shards:
        raise ImpossiblePlan(
            f"service.workers: {service.workers} workers cannot each have files of their own, for"
            f" the {split} split has {shards} shards; use at most {shards} workers or `sharding:"
            f" dynamic`, or set shard.min_shards to {service.workers} or more and run `dvc repro`"
        )


def _check_buffer(plan: Plan, data: PreparedData, split: str) -> None:
    """Check the memory of a shuffle buffer of records, or of a disk cache's elements.

    A memory cache shares its examples with the buffer; windows and file names are small.
    """
    shuffle = next((step for step in plan.steps if isinstance(step, Shuffle)), None)
    cache = next((step for step in plan.steps if isinstance(step, Cache)), None)
    reads_files = isinstance(plan.steps[0], Read) and plan.steps[0].source == "files"
    if shuffle is None or plan.window or (cache.where == "memory" if cache else reads_files):
        return
    examples = data.shards.examples(split)
    kept = (
        estimate_cached_bytes(plan.steps[plan.steps.index(cache) - 1], data, split)
        if cache
        else estimate_record_bytes(data, split)
    )
    buffers = 1 + isinstance(plan.steps[-1], Prefetch)  # the next epoch's buffer is filled ahead
    size = shuffle_buffer_size(shuffle.size, examples=examples)
    needed, available = buffers * size * kept / max(1, examples), available_memory()
    if needed > available:
        raise ImpossiblePlan(
            f"shuffle.size: {buffers * size:,} examples in shuffle buffers would take"
            f" {needed / 2**30:,.1f} GiB of memory, {available / 2**30:,.1f} GiB are available; set"
            f" it to {max(1, int(size * available / needed)):,} or less, or use `read: snapshot`"
        )
