"""Offsets of the records in uncompressed shards, by which records can be read in any order.

`SHARD.offsets.npy` has the edges of a shard's frames (records + 1,) int64 [bytes]. Its digest is in
the shards' index.json. A record's own length and checksum show whether it is the right one.
"""

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from throughline.data.shards.files import ShardFiles, offsets_path
from throughline.data.shards.index import Shard
from throughline.data.shards.tfrecord import find_edges, map_file, read_frame
from throughline.shared.errors import CorruptShard, MissingInput
from throughline.shared.files import atomic_file, digest_file


def write_offsets(shard: Path) -> str:
    """Write the offsets of an existing shard, and return the digest of their file."""
    edges, problem = find_edges(map_file(shard))
    if problem:
        raise CorruptShard(f"{shard}: {problem}; run `dvc repro --force shard`")
    path = offsets_path(shard)
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        np.save(file, edges, allow_pickle=False)
    return digest_file(path)


def read_offsets(files: ShardFiles, shard: Shard) -> np.ndarray:
    """Return the edges of a shard's records, (records + 1,) int64 [bytes].

    A repaired shard has no file of offsets; its edges are searched for. Raises MissingInput or
    CorruptShard if there are no offsets, or those of another shard.
    """
    if shard.repaired:
        path = files.path(shard)
        edges, problem = find_edges(map_file(path))
        if problem:
            raise CorruptShard(f"{path}: {problem}; {files.fix_hint(shard)}")
        return edges
    index = offsets_path(files.folder / shard.name)
    if not index.exists():
        raise MissingInput(f"{index} is missing; run `dvc repro --force shard`")
    if digest_file(index) != shard.offsets_digest:
        raise CorruptShard(
            f"{index} was not written with {shard.name}: its digest differs from that in"
            " index.json; run `dvc repro --force shard`"
        )
    edges = np.load(index, allow_pickle=False)
    if len(edges) != shard.records + 1 or edges[-1] != shard.bytes:
        raise CorruptShard(
            f"{index} lists {len(edges) - 1:,} records in {edges[-1]:,} bytes, but {shard.name} has"
            f" {shard.records:,} in {shard.bytes:,}; run `dvc repro --force shard`"
        )
    return edges


@dataclass(frozen=True, kw_only=True)
class RecordTable:
    """The records of several shards, numbered one after another.

    `firsts` (shards,) int64 has the number of each shard's first record. `edges` (records +
    shards,) int64 has the edges of all frames; a shard has one more edge than records.
    """

    paths: tuple[Path, ...]
    files: tuple[mmap.mmap | bytes, ...]
    firsts: np.ndarray
    edges: np.ndarray

    def __len__(self) -> int:
        return len(self.edges) - len(self.files)

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Return the records with these numbers (n,) int64, as an array of bytes (n,).

        Raises ValueError if a record has changed since the offsets were written.
        """
        shards = np.searchsorted(self.firsts, rows, side="right") - 1
        starts, stops = self.edges[rows + shards].tolist(), self.edges[rows + shards + 1].tolist()
        records = np.empty(len(rows), object)
        frames = zip(shards.tolist(), starts, stops, strict=True)
        for number, (shard, start, stop) in enumerate(frames):
            record, problem = read_frame(self.files[shard], start, stop)
            if problem:
                raise ValueError(f"{self.paths[shard]}: record at byte {start}: {problem}")
            records[number] = record
        return records


def open_records(files: ShardFiles, shards: Sequence[Shard]) -> RecordTable:
    """Map shards, in order, and read their offsets; shards in a store are fetched first.

    Raises as `read_offsets` and `ShardFiles.path` do.
    """
    edges = [read_offsets(files, shard) for shard in shards]
    paths = tuple(files.paths(shards))
    return RecordTable(
        paths=paths,
        files=tuple(map(map_file, paths)),
        firsts=np.cumsum([0, *(len(each) - 1 for each in edges[:-1])]),
        edges=np.concatenate(edges),
    )
