"""The production checklist: guides' demands on an input pipeline, each with evidence."""

from collections.abc import Sequence

from throughline.data.shards.index import Shard, ShardIndex
from throughline.results.comparison import ChecklistItem, Row
from throughline.results.profiling import GOOD_UTILIZATION_PCT
from throughline.settings import PipelineConfig, Settings

GOOD_SHARD_MIB = (100, 200)
# From this total on, the size of shards matters; smaller data has few files anyway.
LARGE_MIB = 1024


def run_checklist(config: PipelineConfig, shards: ShardIndex, row: Row) -> list[ChecklistItem]:
    train = shards.for_split("train") or shards.shards
    of_snapshot = config.read == "snapshot"
    parallel, vectorize = config.map.parallel, str(config.vectorize).lower()
    maps = f"map.parallel: {parallel}, vectorize: {vectorize}"
    part = config.snapshot.fraction
    used, low, high = (100 - one for one in (row.stall_pct, row.stall_pct_high, row.stall_pct_low))
    judged = {
        "stored as TFRecord, compressed where it pays": _judge_storage(config, shards, train),
        "shards of 100 to 200 MiB": _judge_shard_size(train),
        "several shards read at once": _judge_reading(config, len(train)),
        "shuffled twice: files and examples": _judge_shuffling(config, shards),
        "maps in parallel, or on whole batches": (
            (True, f"map.parallel: {parallel}, on whole batches")
            if of_snapshot
            else (parallel != "none" or config.vectorize, maps)
        ),
        "deterministic work done once": (
            (part == 1, "snapshot" + f" of {part:.0%}" * (part < 1))
            if of_snapshot
            else (config.cache is not None, f"cache: {_fields(config.cache)}")
        ),
        "prefetch last": (
            (True, "the train step gathers its batch itself")
            if config.snapshot_on == "device"
            else (config.prefetch != "none", f"prefetch: {config.prefetch}")
        ),
        f"accelerator used above {GOOD_UTILIZATION_PCT:.0f} %": (
            used > GOOD_UTILIZATION_PCT,
            f"the model takes {used:.0f} % of a training step ({low:.0f} to {high:.0f} %)",
        ),
        "deterministic": (
            config.deterministic,
            f"deterministic: {str(config.deterministic).lower()}; the seed decides order and"
            " augmentation",
        ),
    }
    return [
        ChecklistItem(name=name, passed=passed, evidence=evidence)
        for name, (passed, evidence) in judged.items()
    ]


def _judge_storage(
    config: PipelineConfig, shards: ShardIndex, train: Sequence[Shard]
) -> tuple[bool, str]:
    encoding = shards.schema.input.encoding
    compression = train[0].compression if train else "none"
    packed_twice = encoding.compressed and compression == "gzip"
    return bool(train) and not packed_twice and config.read != "files", (
        f"shards of {encoding.name} records: {len(train)}, compression: {compression}, read:"
        f" {config.read}"
    )


def _judge_shard_size(train: Sequence[Shard]) -> tuple[bool, str]:
    total = sum(shard.bytes for shard in train) / 2**20
    each, little = total / max(1, len(train)), total < LARGE_MIB
    return little or GOOD_SHARD_MIB[0] <= each <= GOOD_SHARD_MIB[1], (
        f"{each:,.1f} MiB on average, {total:,.0f} MiB in all"
        + (", too little to matter" if little else "")
    )


def _judge_reading(config: PipelineConfig, count: int) -> tuple[bool, str]:
    if config.read == "snapshot":
        return True, "random access to rows of mapped columns"
    if config.read == "indexed_shards":
        return True, "random access to the records of all shards"
    parallel = config.interleave is not None and config.interleave.parallel != "none"
    return parallel or count == 1, f"interleave: {_fields(config.interleave)}"


def _judge_shuffling(config: PipelineConfig, shards: ShardIndex) -> tuple[bool, str]:
    kind = config.shuffle.kind
    files = config.read == "shards" and not shards.schema.is_series
    rows = {
        "global": "one permutation of the whole split",
        "window": "chunks in random order, rows within a window",
        "lanes": "rows within each lane, and all lanes in every batch",
    }
    return kind in rows or (kind == "buffer" and files), rows.get(kind, f"shuffle: {kind}")


def _fields(settings: Settings | None) -> str:
    shown = settings and ", ".join(f"{key}: {value}" for key, value in settings)
    return f"{{{shown}}}" if shown else "absent"
