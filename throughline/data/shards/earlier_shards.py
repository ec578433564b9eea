"""Reuses shards of an earlier set that were made of the same examples."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from throughline.data.shards.files import is_put
from throughline.data.shards.index import INDEX, Shard, ShardIndex
from throughline.data.shards.record_offsets import offsets_path
from throughline.data.shards.tfrecord import Compression
from throughline.plan.schema import Schema
from throughline.results.base import read_value
from throughline.shared.errors import UserError
from throughline.shared.files import copy_whole
from throughline.shared.object_store import ObjectStore


@dataclass(frozen=True, kw_only=True)
class EarlierShard:
    folder: Path
    shard: Shard


def find_earlier_shards(
    folder: Path | None, schema: Schema, compression: Compression
) -> Mapping[str, EarlierShard]:
    """Return an earlier set's shards of this schema and compression, by what they were made of."""
    if folder is None:
        return {}
    with suppress(UserError, OSError):
        index = read_value(ShardIndex, folder / INDEX, "shard")
        return {
            shard.made_of: EarlierShard(folder=folder, shard=shard)
            for shard in (index.shards if index.schema == schema else ())
            if shard.compression == compression
        }
    return {}


def take_shard(earlier: EarlierShard | None, path: Path) -> str:
    """Copy an earlier shard into a new set, if it is whole; return its digest, or ""."""
    if earlier is None:
        return ""
    source, digest = earlier.folder / earlier.shard.name, earlier.shard.digest
    return digest if copy_whole(source, path, digest=digest) else ""


def take_stored_shard(earlier: EarlierShard | None, path: Path, store: ObjectStore) -> Shard | None:
    """Return an earlier shard for a new set, if the store has it; copy its offsets."""
    if earlier is None or not is_put(store, earlier.shard):
        return None
    source, digest = earlier.folder / earlier.shard.name, earlier.shard.offsets_digest
    if digest and not copy_whole(offsets_path(source), offsets_path(path), digest=digest):
        return None
    return earlier.shard
