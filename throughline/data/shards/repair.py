"""Rewrites damaged shards without the records that cannot be read.

Every configuration then sees the same examples. The new files are in repaired/ of the snapshot.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from throughline.data.shards.files import REPAIRED, ShardFiles
from throughline.data.shards.index import Shard, ShardIndex
from throughline.data.shards.tfrecord import frame, read_records, write_frames
from throughline.shared.errors import CorruptShard, rebuild_hint
from throughline.shared.files import digest_blake3


@dataclass(frozen=True, kw_only=True)
class Damage:
    """Problems of shards, by name, and of records that cannot be decoded, by digest."""

    problems: Mapping[str, Sequence[str]]
    unusable: Mapping[str, str] = field(default_factory=dict)


def find_damaged_shards(shards: ShardIndex, files: ShardFiles) -> dict[str, list[str]]:
    """Return the problems of each damaged shard, by its name; reads all local files.

    A damaged file that was fetched from a store is removed; it will be fetched again.
    """
    damaged: dict[str, list[str]] = {}
    for shard in shards.shards:
        if files.is_stored(shard):
            files.drop_if_damaged(shard)
        elif problems := files.find_damage(shard):
            damaged[shard.name] = problems
    return damaged


def repair_shards(
    shards: ShardIndex, files: ShardFiles, damage: Damage, out: Path, *, max_lost_fraction: float
) -> tuple[Shard, ...]:
    """Write the usable records of damaged shards into `out`/repaired.

    Raises CorruptShard if more than `max_lost_fraction` of all examples are lost, or a block of a
    series, whose steps must not have gaps; or if a file is readable, but is not the indexed one.
    """
    repaired: list[Shard] = []
    lost = 0
    for shard in shards.shards:
        if shard.name not in damage.problems:
            continue
        problem, unreadable = damage.problems[shard.name][0], list[str]()
        usable = sum(1 for _ in _usable_records(files, shard, damage, unreadable))
        missing = shard.records - usable
        if missing <= 0 and not unreadable:
            raise CorruptShard(f"{problem}; {files.fix_hint(shard)}")
        if missing and shards.schema.is_series:
            raise CorruptShard(
                f"{problem}; a time series must not have gaps: {files.fix_hint(shard)}"
            )
        lost += missing
        path = out / REPAIRED / shard.name
        records = _usable_records(files, shard, damage, [])
        frames = (part for record in records for part in frame(record))
        digest = write_frames(path, frames, compression=shard.compression)
        counts = {"records": usable, "examples": shard.examples - missing}
        size = path.stat().st_size
        repaired.append(replace(shard, **counts, bytes=size, digest=digest, repaired=True))
    total = sum(shards.examples(split) for split in shards.splits)
    if lost > max_lost_fraction * total:
        raise CorruptShard(
            f"{files.folder}: {lost} of {total} examples cannot be read, {lost / total:.2%};"
            f" snapshot.max_corrupt_fraction allows {max_lost_fraction:.2%};"
            f" {rebuild_hint(files.folder, 'shard')}"
        )
    return tuple(repaired)


def _usable_records(
    files: ShardFiles, shard: Shard, damage: Damage, unreadable: list[str]
) -> Iterator[bytes]:
    path = files.path(shard)
    for record in read_records(path, compression=shard.compression, damaged=unreadable):
        if not damage.unusable or digest_blake3(record) not in damage.unusable:
            yield record
