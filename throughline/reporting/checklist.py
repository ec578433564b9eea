"""The production checklist: what guides ask of an input pipeline, each point with evidence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from throughline.data.shards.index import Shard, ShardIndex
from throughline.results.comparison import ChecklistItem, Row
from throughline.results.profiling import GOOD_UTILIZATION_PCT
from throughline.settings import PipelineConfig, Settings

GOOD_SHARD_MIB = (100, 200)
# From here on the size of shards matters; smaller data has few files anyway.
LARGE_MIB = 1024


@dataclass(frozen=True)
class Subject:
    config: PipelineConfig
    shards: ShardIndex
    row: Row

    @cached_property
    def train(self) -> Sequence[Shard]:
        return self.shards.for_split("train") or self.shards.shards

    @property
    def reads_snapshot(self) -> bool:
        return self.config.read == "snapshot"

    @property
    def in_any_order(self) -> bool:
        """Whether it can read any row at any time."""
        return self.reads_snapshot or self.config.read == "indexed_shards"


Judged = tuple[bool, str]
Point = Callable[[Subject], Judged]
POINTS: dict[str, Point] = {}


def run_checklist(config: PipelineConfig, shards: ShardIndex, row: Row) -> list[ChecklistItem]:
    subject = Subject(config, shards, row)
    judged = {name: judge(subject) for name, judge in POINTS.items()}
    return [
        ChecklistItem(name=name, passed=passed, evidence=evidence)
        for name, (passed, evidence) in judged.items()
    ]


def point(name: str) -> Callable[[Point], Point]:
    """Add the decorated function to the checklist as `name`."""

    def add(judge: Point) -> Point:
        POINTS[name] = judge
        return judge

    return add


@point("stored as TFRecord, compressed where it pays")
def _stored(it: Subject) -> Judged:
    encoding = it.shards.schema.input.encoding
    compression = it.train[0].compression if it.train else "none"
    packed_twice = encoding.compressed and compression == "gzip"
    return bool(it.train) and not packed_twice and it.config.read != "files", (
        f"{len(it.train)} shards of {encoding.name} records, compression {compression}; read:"
        f" {it.config.read}"
    )


@point("shards of 100 to 200 MiB")
def _shard_size(it: Subject) -> Judged:
    total = sum(shard.bytes for shard in it.train) / 2**20
    each = total / max(1, len(it.train))
    little = total < LARGE_MIB
    return little or GOOD_SHARD_MIB[0] <= each <= GOOD_SHARD_MIB[1], (
        f"{each:,.1f} MiB on average, {total:,.0f} MiB in all"
        + (", too little to matter" if little else "")
    )


@point("several shards read at once")
def _readers(it: Subject) -> Judged:
    if it.in_any_order:
        rows = "rows of mapped columns" if it.reads_snapshot else "records of all shards"
        return True, f"{rows}, any of them at any time"
    parallel = it.config.interleave is not None and it.config.interleave.parallel != "none"
    return parallel or len(it.train) == 1, f"interleave: {_fields(it.config.interleave)}"


@point("shuffled twice: files and examples")
def _shuffled(it: Subject) -> Judged:
    kind = it.config.shuffle.kind
    files = it.config.read == "shards" and not it.shards.schema.is_series
    rows = {
        "global": "one permutation of the whole split",
        "window": "chunks in random order, rows within a window",
        "lanes": "rows within each lane, and all lanes in every batch",
    }
    return kind in rows or (kind == "buffer" and files), rows.get(kind, f"shuffle: {kind}")


@point("maps in parallel, or on whole batches")
def _mapped(it: Subject) -> Judged:
    parallel = it.config.map.parallel
    if it.reads_snapshot:
        return True, f"map.parallel: {parallel}, on whole batches"
    vectorized = it.config.vectorize
    return parallel != "none" or vectorized, (
        f"map.parallel: {parallel}, vectorize: {str(vectorized).lower()}"
    )


@point("deterministic work done once")
def _done_once(it: Subject) -> Judged:
    if it.reads_snapshot:
        fraction = it.config.snapshot.fraction
        return fraction == 1, "snapshot" + f" of {fraction:.0%}" * (fraction < 1)
    return it.config.cache is not None, f"cache: {_fields(it.config.cache)}"


@point("prefetch last")
def _prefetched(it: Subject) -> Judged:
    if it.config.snapshot_on == "device":
        return True, "the train step gathers its batch itself"
    return it.config.prefetch != "none", f"prefetch: {it.config.prefetch}"


@point(f"accelerator used above {GOOD_UTILIZATION_PCT:.0f} %")
def _used(it: Subject) -> Judged:
    stalls = it.row.stall_pct, it.row.stall_pct_high, it.row.stall_pct_low
    used, low, high = (100 - stall for stall in stalls)
    return used > GOOD_UTILIZATION_PCT, (
        f"{used:.0f} % of a real step is the model's own ({low:.0f} to {high:.0f} %)"
    )


@point("deterministic")
def _deterministic(it: Subject) -> Judged:
    return it.config.deterministic, (
        f"deterministic: {str(it.config.deterministic).lower()}; order and augmentation follow from"
        " the seed"
    )


def _fields(settings: Settings | None) -> str:
    shown = settings and ", ".join(f"{key}: {value}" for key, value in settings)
    return f"{{{shown}}}" if shown else "absent"
