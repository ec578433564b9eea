"""Shards of an earlier set, taken again where they were made of the same examples."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from throughline.data.shards.index import INDEX, ShardIndex
from throughline.data.shards.tfrecord import Compression
from throughline.plan.schema import Schema
from throughline.results.base import read_value
from throughline.shared.errors import UserError
from throughline.shared.files import copy_whole


@dataclass(frozen=True, kw_only=True)
class EarlierShard:
    """Where a shard of an earlier set is, and the digest of its bytes."""

    path: Path
    digest: str


def find_earlier_shards(
    folder: Path | None, schema: Schema, compression: Compression
) -> Mapping[str, EarlierShard]:
    """The shards of a set of examples of this schema and compression, which the same program has
    written, by what they were made of; none where there is no such set.
    """
    if folder is None:
        return {}
    with suppress(UserError, OSError):
        index = read_value(ShardIndex, folder / INDEX, "shard")
        return {
            shard.made_of: EarlierShard(path=folder / shard.name, digest=shard.digest)
            for shard in (index.shards if index.schema == schema else ())
            if shard.compression == compression
        }
    return {}


def take_shard(earlier: EarlierShard | None, path: Path) -> str:
    """Copy an earlier shard to where it belongs in a new set, if it is whole; returns its digest,
    or nothing.
    """
    taken = earlier is not None and copy_whole(earlier.path, path, digest=earlier.digest)
    return earlier.digest if earlier is not None and taken else ""
