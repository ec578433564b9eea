"""Any record of uncompressed shards can be read at any time, and an index that is not its shard's
is refused.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.small_data import flip_bit
from throughline.data.shards.files import REPAIRED, ShardFiles
from throughline.data.shards.index import Shard, read_shard_index
from throughline.data.shards.record_offsets import (
    RecordTable,
    open_records,
    read_offsets,
    write_offsets,
)
from throughline.data.shards.tfrecord import frame, read_records
from throughline.shared.errors import CorruptShard, MissingInput
from throughline.shared.files import digest_file

SIZES = ((3, 0, 500), (7,), (1, 2))


@pytest.fixture
def shards(tmp_path) -> list[tuple[Path, Shard]]:
    """Three uncompressed shards of records of several sizes, with their indexes."""
    found = []
    for number, sizes in enumerate(SIZES):
        path = tmp_path / f"train-{number}.tfrecord"
        framed = [frame(bytes([number]) * size) for size in sizes]
        path.write_bytes(b"".join(part for parts in framed for part in parts))
        found.append((path, shard_at(path, len(sizes))))
    return found


def shard_at(path, records: int) -> Shard:
    return Shard(
        name=path.name,
        split="train",
        records=records,
        examples=records,
        bytes=path.stat().st_size,
        digest=digest_file(path),
        compression="none",
        offsets_digest=write_offsets(path),
    )


def open_all(shards) -> RecordTable:
    return open_records(ShardFiles(folder=shards[0][0].parent), [shard for _, shard in shards])


def test_records_are_read_by_their_numbers_in_any_order(shards):
    table = open_all(shards)
    everything = [record for path, _ in shards for record in read_records(path, compression="none")]
    assert len(table) == len(everything) == 6
    order = np.array([5, 0, 3, 3, 2, 1, 4])
    assert table.read(order).tolist() == [everything[number] for number in order]
    assert table.read(np.array([], np.int64)).tolist() == []


def test_the_shard_stage_writes_the_index_of_uncompressed_shards_alone(arrays):
    index = read_shard_index(arrays / "shards")
    plain = [shard for shard in index.shards if shard.compression == "none"]
    assert {path.name for path in (arrays / "shards").glob("*.npy")} == {
        shard.name.replace(".tfrecord", ".offsets.npy") for shard in plain
    }
    assert all(not shard.offsets_digest for shard in index.shards if shard not in plain)
    table = open_records(ShardFiles(folder=arrays / "shards"), plain)
    assert len(table) == 200


def test_an_index_that_is_not_its_shards_is_refused(shards):
    (first, shard), (other, _), _ = shards
    files = ShardFiles(folder=first.parent)
    index = first.with_suffix(".offsets.npy")
    shutil.copy(other.with_suffix(".offsets.npy"), index)
    with pytest.raises(CorruptShard, match=r"train-0\.offsets\.npy is not the index that was"):
        read_offsets(files, shard)
    deceived = replace(shard, offsets_digest=digest_file(index))
    with pytest.raises(CorruptShard, match=r"is of 1 records in 23 bytes, train-0\.tfrecord has 3"):
        read_offsets(files, deceived)
    index.unlink()
    with pytest.raises(MissingInput, match=r"train-0\.offsets\.npy is missing; run"):
        read_offsets(files, shard)


def test_the_edges_of_a_repaired_shard_are_looked_for(shards):
    path, shard = shards[0]
    files = ShardFiles(folder=path.parent, snapshot_folder=path.parent / "snapshot")
    expected = read_offsets(files, shard)
    (path.parent / "snapshot" / REPAIRED).mkdir(parents=True)
    path = path.rename(path.parent.joinpath("snapshot", REPAIRED, path.name))
    assert read_offsets(files, replace(shard, repaired=True)).tolist() == expected.tolist()
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptShard, match="record 2 at byte 35: the file ends within the record"):
        read_offsets(files, replace(shard, repaired=True))


def test_a_record_that_changed_since_is_not_delivered(shards):
    flip_bit(shards[0][0], 100)
    table = open_all(shards)
    assert table.read(np.array([0, 1, 3])).tolist() == [b"\0\0\0", b"", b"\1" * 7]
    with pytest.raises(ValueError, match=r"train-0\.tfrecord: record at byte 35: the checksum of"):
        table.read(np.array([2]))


def test_a_shard_in_place_of_another_of_the_same_size_is_noticed(shards):
    path, _ = shards[0]
    parts = [part for size in (500, 0, 3) for part in frame(bytes(size))]
    path.write_bytes(b"".join(parts))
    with pytest.raises(ValueError, match="no record of this length begins there"):
        open_all(shards).read(np.array([0]))
