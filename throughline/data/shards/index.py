"""The index of a set of shards: the content of each file, and the files of each split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from throughline.data import encodings  # noqa: F401 - schemas name them
from throughline.data.shards.tfrecord import Compression
from throughline.plan.schema import Schema
from throughline.results.base import read_value, to_json
from throughline.shared.errors import CorruptShard, MissingInput
from throughline.shared.files import digest_json, write_json

INDEX = "index.json"


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One TFRecord file.

    Attributes:
      examples: number of examples; for a series, of time steps, of which a record holds many.
      digest: BLAKE3 digest of the file.
      repaired: whether it holds the readable records of a damaged shard (`repair.py`).
      offsets_digest: digest of the offsets of an uncompressed shard (`record_offsets.py`); empty if
        compressed or repaired, since there are no offsets then.
      made_of: digest of its examples' contents, keys, labels, sizes and columns, in order.
    """

    name: str
    split: str
    records: int
    examples: int
    bytes: int
    digest: str
    compression: Compression
    repaired: bool = False
    offsets_digest: str = ""
    made_of: str = ""


@dataclass(frozen=True, kw_only=True)
class ShardIndex:
    """All shards of a dataset; `cuts` are the time steps of a series that follow a gap."""

    schema: Schema
    classes: tuple[str, ...]
    data_digest: str
    shards: tuple[Shard, ...]
    cuts: tuple[int, ...] = ()

    def with_repaired(self, repaired: Sequence[Shard]) -> ShardIndex:
        """Return the set with repaired shards in place of the damaged ones.

        The data digest changes if records were lost.
        """
        named = {shard.name: shard for shard in repaired}
        shards = tuple(named.get(shard.name, shard) for shard in self.shards)
        pairs = zip(shards, self.shards, strict=True)
        lost = [one.digest for one, damaged in pairs if one.records < damaged.records]
        data = digest_json([self.data_digest, lost]) if lost else self.data_digest
        return replace(self, data_digest=data, shards=shards)

    @property
    def digest(self) -> str:
        """Digest of the shards' contents; part of every snapshot key."""
        return digest_json([shard.digest for shard in self.shards])

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(shard.split for shard in self.shards))

    def for_split(self, split: str) -> tuple[Shard, ...]:
        return tuple(shard for shard in self.shards if shard.split == split)

    def examples(self, split: str) -> int:
        """Return the number of examples in a split; for a series, of time steps."""
        return sum(shard.examples for shard in self.for_split(split))


def write_shard_index(folder: Path, index: ShardIndex) -> None:
    """Write the index, last of all: its presence means that all shards are complete."""
    write_json(folder / INDEX, to_json(index))


def read_shard_index(folder: Path) -> ShardIndex:
    """Read the index, and check that it lists every shard in the folder.

    Raises MissingInput or DamagedFile without a usable index, and CorruptShard.
    """
    if not (folder / INDEX).exists():
        raise MissingInput(f"{folder} holds no complete set of shards; run `dvc repro shard`")
    index = read_value(ShardIndex, folder / INDEX, "shard")
    listed = {shard.name for shard in index.shards}
    unexpected = sorted(path.name for path in folder.glob("*.tfrecord*") if path.name not in listed)
    if unexpected:
        raise CorruptShard(
            f"{folder / unexpected[0]} is not in the index; remove it, or run `dvc repro --force"
            " shard`"
        )
    return index
