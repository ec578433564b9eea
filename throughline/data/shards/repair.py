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
    """Return what is wrong with each damaged shard, by its name; reads all local files.

    A damaged file that was fetched from a store is removed; it will be fetched again.
    """
    damaged: dict[str, list[str]] = {}
    for shard in shards.shards:
        if files.is_stored(shard):
            files.drop_if_damaged(shard)
        else:
            damaged[shard.name] = files.find_damage(shard)
    return {name: problems for name, problems in damaged.items() if problems}


def repair_shards(
    shards: ShardIndex, files: ShardFiles, damage: Damage, out: Path, *, max_lost_fraction: float
) -> tuple[Shard, ...]:
    """Write the usable records of damaged shards into `out`/repaired.

    Raises:
      CorruptShard: more than `max_lost_fraction` of all examples are lost; a block of a series is
        lost, whose steps must not have gaps; or a file is readable, but is not the indexed one.
    """
    repaired: list[Shard] = []
    problems, lost = damage.problems, 0
    for shard in shards.shards:
        if shard.name not in problems:
            continue
        missing = shard.records - _count_usable(files, shard, damage)
        if missing and shards.schema.is_series:
            raise CorruptShard(
                f"{problems[shard.name][0]}; a time series must not have gaps:"
                f" {files.fix_hint(shard)}"
            )
        lost += missing
        repaired.append(_write_repaired(shard, missing, files, out, damage))
    total = sum(shards.examples(split) for split in shards.splits)
    if lost > max_lost_fraction * total:
        raise CorruptShard(
            f"{files.folder}: {lost} of {total} examples cannot be read, {lost / total:.2%};"
            f" snapshot.max_corrupt_fraction allows {max_lost_fraction:.2%};"
            f" {rebuild_hint(files.folder, 'shard')}"
        )
    return tuple(repaired)


def _write_repaired(
    shard: Shard, missing: int, files: ShardFiles, out: Path, damage: Damage
) -> Shard:
    path = out / REPAIRED / shard.name
    frames = (
        part for record in _usable_records(files, shard, damage, []) for part in frame(record)
    )
    digest = write_frames(path, frames, compression=shard.compression)
    counts = {"records": shard.records - missing, "examples": shard.examples - missing}
    return replace(shard, **counts, bytes=path.stat().st_size, digest=digest, repaired=True)


def _count_usable(files: ShardFiles, shard: Shard, damage: Damage) -> int:
    damaged: list[str] = []
    problems = damage.problems.get(shard.name, ())
    count = sum(1 for _ in _usable_records(files, shard, damage, damaged))
    if problems and not damaged and count >= shard.records:
        raise CorruptShard(f"{problems[0]}; {files.fix_hint(shard)}")
    return count


def _usable_records(
    files: ShardFiles, shard: Shard, damage: Damage, damaged: list[str]
) -> Iterator[bytes]:
    path = files.path(shard)
    for record in read_records(path, compression=shard.compression, damaged=damaged):
        if not damage.unusable or digest_blake3(record) not in damage.unusable:
            yield record
