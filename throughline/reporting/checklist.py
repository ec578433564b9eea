"""The production checklist: what the field's guides ask of an input pipeline, each point passed or
failed, with its evidence.
"""

from __future__ import annotations

from collections.abc import Sequence

from throughline.data.shards.index import ShardIndex
from throughline.results.comparison import ChecklistItem, MeasuredRow
from throughline.results.profiling import GOOD_UTILIZATION_PCT
from throughline.settings import PipelineConfig, Settings

GOOD_SHARD_MIB = (100, 200)
# From here on the size of shards matters; smaller data has few files whatever their size.
LARGE_MIB = 1024


def run_checklist(
    config: PipelineConfig, shards: ShardIndex, row: MeasuredRow
) -> list[ChecklistItem]:
    """Go through the points for one configuration: its fields, the index of the shards, its row of
    the report.
    """
    train = shards.for_split("train", "none") or shards.shards
    total = sum(shard.bytes for shard in train) / 2**20
    each = total / max(1, len(train))
    encoding, compression = shards.schema.input.encoding, train[0].compression if train else "none"
    reads_snapshot = config.read == "snapshot"
    in_any_order = reads_snapshot or config.read == "indexed_shards"
    readers = config.interleave.parallel if config.interleave else "none"
    shuffles_files = config.read in ("shards", "gzip_shards") and not shards.schema.is_series
    return [
        ChecklistItem(
            name="stored as TFRecord, compressed where it pays",
            passed=bool(train)
            and not (encoding.compressed and compression == "gzip")
            and config.read != "files",
            evidence=(
                f"{len(train)} shards of {encoding.name} records, compression {compression}; read:"
                f" {config.read}"
            ),
        ),
        ChecklistItem(
            name="shards of 100 to 200 MiB",
            passed=GOOD_SHARD_MIB[0] <= each <= GOOD_SHARD_MIB[1] or total < LARGE_MIB,
            evidence=f"{each:,.1f} MiB on average, {total:,.0f} MiB in all"
            + (", too little to matter" if total < LARGE_MIB else ""),
        ),
        ChecklistItem(
            name="several shards read at once",
            passed=in_any_order or readers != "none" or len(train) == 1,
            evidence=(
                f"{'rows of mapped columns' if reads_snapshot else 'records of all shards'}, any of"
                " them at any time"
                if in_any_order
                else f"interleave: {_fields(config.interleave)}"
            ),
        ),
        ChecklistItem(
            name="shuffled twice: files and examples",
            passed=config.shuffle.kind in ("global", "window")
            or (config.shuffle.kind == "buffer" and shuffles_files),
            evidence={
                "global": "one permutation of the whole split",
                "window": "chunks in random order, rows within a window",
            }.get(config.shuffle.kind, f"shuffle: {config.shuffle.kind}"),
        ),
        ChecklistItem(
            name="maps in parallel, or on whole batches",
            passed=config.map.parallel != "none"
            or config.vectorize
            or config.snapshot_on == "device",
            evidence=(
                f"map.parallel: {config.map.parallel}, vectorize:"
                f" {str(config.vectorize or reads_snapshot).lower()}"
            ),
        ),
        ChecklistItem(
            name="deterministic work done once",
            passed=reads_snapshot or config.cache is not None,
            evidence="snapshot" if reads_snapshot else f"cache: {_fields(config.cache)}",
        ),
        ChecklistItem(
            name="prefetch last",
            passed=config.prefetch != "none" or config.snapshot_on == "device",
            evidence=(
                "the train step gathers its batch itself"
                if config.snapshot_on == "device"
                else f"prefetch: {config.prefetch}"
            ),
        ),
        ChecklistItem(
            name=f"accelerator used above {GOOD_UTILIZATION_PCT:.0f} %",
            passed=100 - row.stall_pct > GOOD_UTILIZATION_PCT,
            evidence="{:.0f} % of a real step is the model's own ({:.0f} to {:.0f} %)".format(
                *(100 - pct for pct in (row.stall_pct, row.stall_pct_high, row.stall_pct_low))
            ),
        ),
        ChecklistItem(
            name="deterministic",
            passed=config.deterministic,
            evidence=(
                f"deterministic: {str(config.deterministic).lower()}; order and augmentation"
                " follow from the seed"
            ),
        ),
    ]


def failed(points: Sequence[ChecklistItem]) -> list[str]:
    """Names of the points that failed."""
    return [point.name for point in points if not point.passed]


def _fields(settings: Settings | None) -> str:
    """A section of a configuration as the page shows it."""
    shown = settings and ", ".join(f"{key}: {value}" for key, value in settings)
    return f"{{{shown}}}" if shown else "absent"
