"""Sharding, and the repair of damaged shards."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.prepared_files import index_of, write_shard
from tests.support.small_data import flip_bit, prepared, read_files
from throughline.data.encodings.arrays import array_feature
from throughline.data.manifest import read_manifest
from throughline.data.shards import file_parts, writing
from throughline.data.shards.file_parts import FilePart, read_parts
from throughline.data.shards.files import REPAIRED, ShardFiles
from throughline.data.shards.index import Shard, read_shard_index
from throughline.data.shards.repair import Damage, find_damaged_shards, repair_shards
from throughline.data.shards.tfrecord import read_records
from throughline.data.shards.writing import shard
from throughline.plan.schema import Schema
from throughline.settings import DataSettings, ShardSettings
from throughline.shared.errors import CorruptShard, DamagedFile, DataNotFound, MissingInput
from throughline.shared.files import digest_blake3


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_shards_are_the_same_by_any_writers_and_blocks(arrays, tmp_path, monkeypatch, compression):
    manifest = read_manifest(arrays / "manifest")
    for writers, block in ((1, writing.BLOCK_BYTES), (3, writing.BLOCK_BYTES), (1, 1000)):
        monkeypatch.setattr(writing, "BLOCK_BYTES", block)  # 1000: a few records
        settings = ShardSettings(min_shards=4, writers=writers, compression=compression)
        shard(manifest, tmp_path / f"{writers} {block}", settings=settings)
    one, *others = (read_files(folder) for folder in tmp_path.iterdir())
    assert others == [one, one]


@pytest.fixture
def interrupted(arrays, tmp_path, monkeypatch):
    """A manifest, and what writes shards of one; its first run was interrupted at its end."""
    manifest = read_manifest(arrays / "manifest")

    def write(manifest, folder="shards"):
        shard(manifest, tmp_path / folder, settings=ShardSettings(min_shards=4, writers=1))
        return read_files(tmp_path / folder)

    with monkeypatch.context() as stopped, pytest.raises(KeyboardInterrupt):
        stopped.setattr(
            writing, "write_shard_index", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        write(manifest)
    assert not (tmp_path / "shards").exists()
    return manifest, write


def test_finished_shards_are_not_written_again_after_an_interruption(interrupted, tmp_path):
    manifest, write = interrupted
    (partial,) = tmp_path.glob("shards.*.partial")
    first, second, *_ = sorted(partial.glob("*.tfrecord"))
    os.utime(first, (1, 1))
    second.unlink()
    assert write(manifest) == write(manifest, "fresh")
    assert (tmp_path / "shards" / first.name).stat().st_mtime == 1


def test_an_interrupted_run_does_not_go_on_with_other_data(interrupted):
    manifest, write = interrupted
    labels = 3 - manifest.examples["label"]
    relabeled = replace(manifest, examples=manifest.examples.assign(label=labels))
    assert write(relabeled) == write(relabeled, "fresh")


def test_a_file_that_vanished_or_changed_since_ingest_is_named(photo_settings, tmp_path):
    folder = prepared(photo_settings, tmp_path)
    manifest = read_manifest(folder / "manifest")
    manifest.examples.loc[0, "uri"] = str(tmp_path / "gone.jpg")
    with pytest.raises(DataNotFound, match=r"gone\.jpg"):
        shard(manifest, tmp_path / "again", settings=ShardSettings(writers=1))
    changed = tmp_path / "changed.jpg"
    changed.write_bytes(b"\xff\xd8 another photo")
    manifest.examples.loc[0, "uri"] = str(changed)
    with pytest.raises(DataNotFound, match=r"changed\.jpg .* has another size than at ingest"):
        shard(manifest, tmp_path / "again", settings=ShardSettings(writers=3))
    assert not (tmp_path / "again").exists()


def test_texts_that_changed_since_ingest_are_named(tmp_path):
    lines = "".join(f"text {number},{'ab'[number % 2]}\n" for number in range(40))
    (tmp_path / "table.csv").write_text(f"text,label\n{lines}")
    settings = DataSettings(source="text_table", path=str(tmp_path / "table.csv"))
    folder = prepared(settings, tmp_path)
    texts = folder / "manifest" / "documents.bin"
    texts.write_bytes(texts.read_bytes()[::-1])
    manifest = read_manifest(folder / "manifest")
    with pytest.raises(DamagedFile, match=r"documents\.bin has other contents than ingest wrote"):
        shard(manifest, tmp_path / "again", settings=ShardSettings(writers=1))


def test_a_set_with_missing_foreign_or_short_members_is_refused(arrays, tmp_path):
    manifest = read_manifest(arrays / "manifest")
    index = shard(manifest, tmp_path / "shards", settings=ShardSettings(min_shards=2, writers=1))
    files = ShardFiles(folder=tmp_path / "shards")
    path = files.path(index.shards[0])
    data = path.read_bytes()
    for other in (data[:-1], data + b"\0"):
        path.write_bytes(other)
        with pytest.raises(CorruptShard, match=f"bytes, not {len(data)};"):
            files.check(index)
    path.unlink()
    with pytest.raises(CorruptShard, match="is missing"):
        files.check(index, sizes=False)
    for other in index.shards[1:]:
        files.path(other).unlink()
    with pytest.raises(MissingInput, match=r"only the index.*set storage.url"):
        files.check(index)
    path.write_bytes(data)
    listed = tmp_path / "shards" / "index.json"
    text = listed.read_text()
    listed.write_text(text.replace('"records"', '"rows"'))
    said = r"index.json was written by another version .*records.*; run `dvc repro shard`"
    with pytest.raises(MissingInput, match=said):
        read_shard_index(tmp_path / "shards")
    listed.write_text(text)
    (tmp_path / "shards" / "train-00009-of-00009.tfrecord").write_bytes(data)
    with pytest.raises(CorruptShard, match="is not in the index"):
        read_shard_index(tmp_path / "shards")
    with pytest.raises(MissingInput):
        read_shard_index(tmp_path / "nowhere")


def test_files_of_a_slow_disk_are_read_by_several_threads_at_once(tmp_path, monkeypatch):
    paths = [tmp_path / name for name in "abc"]
    for path in paths:
        path.write_bytes(b"content")
    meeting, seen = threading.Barrier(2), threading.local()

    def pread(descriptor, size, start, *, real=os.pread):
        if getattr(seen, "first", False):  # by which a thread has learned that the disk is slow
            meeting.wait(timeout=60)
        seen.first = True
        return real(descriptor, size, start)

    monkeypatch.setattr(os, "pread", pread)
    parts = [FilePart(example_id=path.name, uri=str(path), offset=-1, bytes=7) for path in paths]
    monkeypatch.setattr(file_parts, "SLOW_READ_S", -1.0)
    with ThreadPoolExecutor(2) as threads:
        contents = list(threads.map(lambda _: list(read_parts(parts)), range(2)))
    assert contents == [[b"content"] * 3] * 2


RECORDS = [b"first", b"second", b"third", b"fourth"]
SECOND_AT = 12 + len(b"first") + 4  # a record has 12 bytes before and 4 after its data


def files_in(folder) -> ShardFiles:
    """Of shards in a folder, with what is repaired in its `out`."""
    return ShardFiles(folder=folder, snapshot_folder=folder / "out")


@pytest.fixture
def plain(tmp_path) -> Shard:
    """An uncompressed shard of four records, of which the second one's data is damaged."""
    shard = write_shard(tmp_path / "train-0.tfrecord", RECORDS)
    flip_bit(tmp_path / shard.name, SECOND_AT + 12)
    return shard


def repair(shards, folder: Path, *, most=1.0, schema=None, **unusable: str) -> list[Shard]:
    """Write damaged shards again, with what of them can be used."""
    index = index_of(*shards, shape=(5,))
    index = replace(index, schema=schema or index.schema)
    problems = find_damaged_shards(index, files_in(folder))
    problems |= {shard.name: ["no image"] for shard in index.shards if unusable}
    damage = Damage(problems=problems, unusable=unusable)
    return repair_shards(index, files_in(folder), damage, folder / "out", max_lost_fraction=most)


def test_damaged_shards_are_found_and_what_can_be_read_is_written_and_counted(tmp_path, plain):
    whole = write_shard(tmp_path / "train-1.tfrecord", RECORDS)
    problems = find_damaged_shards(index_of(plain, whole, shape=(5,)), files_in(tmp_path))
    said = f"record 1 at byte {SECOND_AT}: the checksum of the data does not match"
    assert problems == {plain.name: [f"{tmp_path / plain.name}: {said}"]}
    (repaired,) = repair([plain], tmp_path, most=0.25)
    path = files_in(tmp_path).path(repaired)
    assert path == tmp_path / "out" / REPAIRED / plain.name
    assert files_in(tmp_path).path(plain) == tmp_path / plain.name
    assert list(read_records(path, compression="none")) == [b"first", b"third", b"fourth"]
    assert (repaired.records, repaired.examples, repaired.repaired) == (3, 3, True)


def test_records_that_cannot_be_decoded_are_left_out_by_their_digests(tmp_path):
    shard = write_shard(tmp_path / "train-0.tfrecord.gz", RECORDS, compression="gzip")
    (repaired,) = repair([shard], tmp_path, **{digest_blake3(b"second"): "no"})
    path = files_in(tmp_path).path(repaired)
    assert list(read_records(path, compression="gzip")) == [RECORDS[0], *RECORDS[2:]]


def test_what_must_not_be_repaired_is_refused(tmp_path, plain):
    said = r"1 of 4 examples cannot be read, 25\.00%; .* allows 24\.00%; .*dvc repro"
    with pytest.raises(CorruptShard, match=said):
        repair([plain], tmp_path, most=0.24)
    series = Schema(features=(array_feature("series", (1,), "float32"),))
    with pytest.raises(CorruptShard, match="a time series must not have gaps"):
        repair([plain], tmp_path, schema=series)
    whole = write_shard(tmp_path / "train-0.tfrecord", RECORDS)
    whole = replace(whole, digest="of another file")
    with pytest.raises(CorruptShard, match=r"4 readable records, but its digest does not match"):
        repair([whole], tmp_path)
