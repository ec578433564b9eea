"""Numbers and sizes that do not fit the machine or the data."""

from __future__ import annotations

from throughline.diagnosis.facts import Facts
from throughline.diagnosis.rules.base import SNAPSHOT, Change, Effort, rule
from throughline.plan.steps import Shuffle

FEW_SHARDS = 64  # so few are opened in no time


@rule(
    params_key="map.parallel",
    cause="more calls than cores only compete",
    change=Change(config={"map": {"parallel": "cores"}}),
)
def _too_parallel(facts: Facts) -> str | None:
    threads = facts.map_parallelism.threads(facts.cores)
    return f"{threads} calls at once on {facts.cores} cores" if threads > 2 * facts.cores else None


@rule(
    params_key="threads",
    cause="the private pool is smaller than the machine",
    change=Change(config={"threads": "shared"}),
)
def _few_threads(facts: Facts) -> str | None:
    threads = facts.config.threads
    return (
        f"{threads} threads for {facts.cores} cores"
        if isinstance(threads, int) and threads < facts.cores and facts.plan.steps
        else None
    )


@rule(
    params_key="shuffle",
    cause="examples are shuffled by holding them",
    change=Change(config=SNAPSHOT.config),
    effort=Effort.DISK,
)
def _buffer_memory(facts: Facts) -> str | None:
    mixes = [
        step
        for step in facts.plan.steps
        if isinstance(step, Shuffle) and isinstance(step.size, int)
    ]
    # The buffer of this epoch, and of the next, which is opened ahead.
    held = 2 if facts.config.prefetch != "none" else 1
    most = max((int(step.size) for step in mixes), default=0)
    used = held * min(most, facts.examples) * facts.shuffled_mib
    return (
        f"what is shuffled takes up to {used:,.0f} MiB of memory"
        if used > facts.available_memory_mib / 10
        else None
    )


def _count_readers(facts: Facts) -> int:
    """as many as `interleave.cycle_length`"""
    return facts.config.interleave.cycle_length if facts.config.interleave else 1


@rule(
    params_key="shard.min_shards",
    cause="there are fewer files than readers",
    change=Change(other={"shard.min_shards": _count_readers}),
)
def _few_shards(facts: Facts) -> str | None:
    turns = facts.config.interleave
    if turns is None or facts.plan.reads_snapshot or facts.plan.caches:
        return None
    if facts.shard_count >= turns.cycle_length:
        return None
    return f"{facts.shard_count} shards for {turns.cycle_length} readers"


@rule(
    params_key="shard.target_size_mib",
    cause="shards are too small",
    change=Change(other={"shard.target_size_mib": 128, "shard.min_shards": 8}),
)
def _small_shards(facts: Facts) -> str | None:
    if facts.plan.seekable or facts.plan.caches or facts.shard_mib >= 1:
        return None
    if facts.shard_count <= FEW_SHARDS:
        return None
    return (
        f"{facts.shard_count} shards of {facts.shard_mib:.2f} MiB: opening files takes longer than"
        " reading them"
    )
