"""Damaged shards are found and rewritten without what cannot be read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.small_data import flip_bit
from throughline.data.encodings.arrays import array_feature, pixels_feature
from throughline.data.encodings.labels import labeled
from throughline.data.shards.files import REPAIRED, ShardFiles
from throughline.data.shards.index import Shard, ShardIndex
from throughline.data.shards.repair import Damage, find_damaged_shards, repair_shards
from throughline.data.shards.tfrecord import frame, read_records, shard_name, write_frames
from throughline.plan.schema import Schema
from throughline.shared.errors import CorruptShard
from throughline.shared.files import digest_blake3

RECORDS = [b"first", b"second", b"third", b"fourth"]
SECOND_AT = 12 + len(b"first") + 4  # a record has 12 bytes before and 4 after its data


def write_shard(folder: Path, number: int = 0, compression="none") -> Shard:
    name = shard_name("train", number, 2, compression)
    frames = (part for record in RECORDS for part in frame(record))
    digest = write_frames(folder / name, frames, compression=compression)
    return Shard(
        name=name,
        split="train",
        records=len(RECORDS),
        examples=len(RECORDS),
        bytes=(folder / name).stat().st_size,
        digest=digest,
        compression=compression,
    )


def index_of(*shards: Shard) -> ShardIndex:
    schema = labeled(pixels_feature((5,)))
    return ShardIndex(schema=schema, classes=("a", "b"), data_digest="d", shards=shards)


def files_in(folder) -> ShardFiles:
    """Of shards in a folder, with what is repaired in its `out`."""
    return ShardFiles(folder=folder, snapshot_folder=folder / "out")


@pytest.fixture
def plain(tmp_path) -> Shard:
    """An uncompressed shard of four records, of which the second one's data is damaged."""
    shard = write_shard(tmp_path)
    flip_bit(tmp_path / shard.name, SECOND_AT + 12)
    return shard


def repair(index: ShardIndex, folder: Path, *, most: float = 1.0, **unusable: str) -> list[Shard]:
    """Write the damaged shards of an index again, with what of them can be used."""
    problems = find_damaged_shards(index, files_in(folder))
    problems |= {shard.name: ["no image"] for shard in index.shards if unusable}
    damage = Damage(problems=problems, unusable=unusable)
    return repair_shards(index, files_in(folder), damage, folder / "out", max_lost_fraction=most)


def test_damaged_shards_are_found_and_what_can_be_read_is_written_and_counted(tmp_path, plain):
    whole = write_shard(tmp_path, 1)
    problems = find_damaged_shards(index_of(plain, whole), files_in(tmp_path))
    said = f"record 1 at byte {SECOND_AT}: the checksum of the data does not match"
    assert problems == {plain.name: [f"{tmp_path / plain.name}: {said}"]}
    (repaired,) = repair(index_of(plain), tmp_path, most=0.25)
    path = files_in(tmp_path).path(repaired)
    assert path == tmp_path / "out" / REPAIRED / plain.name
    assert files_in(tmp_path).path(plain) == tmp_path / plain.name
    assert list(read_records(path, compression="none")) == [b"first", b"third", b"fourth"]
    assert (repaired.records, repaired.examples, repaired.repaired) == (3, 3, True)


def test_records_that_cannot_be_decoded_are_left_out_by_their_digests(tmp_path):
    shard = write_shard(tmp_path, compression="gzip")
    (repaired,) = repair(index_of(shard), tmp_path, **{digest_blake3(b"second"): "no"})
    path = files_in(tmp_path).path(repaired)
    assert list(read_records(path, compression="gzip")) == [RECORDS[0], *RECORDS[2:]]


def test_what_must_not_be_repaired_is_refused(tmp_path, plain):
    said = r"1 of 4 examples cannot be read, 25\.00%; .* allows 24\.00%; .*dvc repro"
    with pytest.raises(CorruptShard, match=said):
        repair(index_of(plain), tmp_path, most=0.24)
    series = Schema(features=(array_feature("series", (1,), "float32"),))
    with pytest.raises(CorruptShard, match="a time series must not have gaps"):
        repair(replace(index_of(plain), schema=series), tmp_path)
    whole = replace(write_shard(tmp_path), digest="of another file")
    with pytest.raises(CorruptShard, match=r"4 readable records, but its digest does not match"):
        repair(index_of(whole), tmp_path)
