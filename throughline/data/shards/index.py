"""The set of shards: what is in each file, how to find the files of a split, and whether the set is
whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from throughline.data import encodings  # noqa: F401 - a schema names them
from throughline.data.shards.tfrecord import Compression
from throughline.plan.schema import Schema
from throughline.results.base import read_value, to_json
from throughline.shared.errors import CorruptShard, MissingInput
from throughline.shared.files import digest_json, write_json

INDEX = "index.json"


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One TFRecord file: its name, split, numbers of records and examples, size in bytes and BLAKE3
    digest.

    A record of a series holds many time steps, and these are what `examples` counts. `repaired`:
    what could be read of a damaged one (`repair.py`). `offsets_digest` is that of the index of
    an uncompressed one (`record_offsets.py`), and empty for a compressed or repaired one, which has
    none. `made_of` is the digest of its examples, their contents, keys, labels and sizes in order.
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
    """All shards of a dataset with the schema of their records."""

    schema: Schema
    classes: tuple[str, ...]
    data_digest: str
    shards: tuple[Shard, ...]

    def with_repaired(self, repaired: Sequence[Shard]) -> ShardIndex:
        """The same set, with these shards in the place of those of the same name; where records
        were lost, it is other data.
        """
        named = {shard.name: shard for shard in repaired}
        lost = [
            named[shard.name].digest
            for shard in self.shards
            if shard.name in named and named[shard.name].records < shard.records
        ]
        data = digest_json([self.data_digest, lost]) if lost else self.data_digest
        return replace(
            self,
            data_digest=data,
            shards=tuple(named.get(shard.name, shard) for shard in self.shards),
        )

    @property
    def digest(self) -> str:
        """Digest of the shards' contents; part of every snapshot key."""
        return digest_json([shard.digest for shard in self.shards])

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits, in the order of the shards."""
        return tuple(dict.fromkeys(shard.split for shard in self.shards))

    def for_split(self, split: str) -> tuple[Shard, ...]:
        """The shards of a split in order."""
        return tuple(shard for shard in self.shards if shard.split == split)

    def examples(self, split: str) -> int:
        """Number of examples in a split; of a series, of time steps."""
        return sum(shard.examples for shard in self.for_split(split))


def write_shard_index(folder: Path, index: ShardIndex) -> None:
    """Write the index, last of all: its presence means that all shards are complete."""
    write_json(folder / INDEX, to_json(index))


def read_shard_index(folder: Path) -> ShardIndex:
    """Read the index, and check that the folder holds no shard that it does not list.

    Raises:
      MissingInput: there is no complete set of shards.
      CorruptShard: a shard is foreign.
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
