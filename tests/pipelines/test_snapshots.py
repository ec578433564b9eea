"""A snapshot is of its shards and ops, survives interruptions, and is on disk when it says so."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.support.lanes import slow_but_first
from tests.support.prepared import snapshot
from tests.support.prepared_files import index_of
from tests.support.small_data import read_files
from tests.support.small_pipelines import PREPROCESS, open_snapshot, pipeline, prepare_snapshot
from throughline.data.columns.index import map_column, read_index, verify
from throughline.data.columns.stored import Destination
from throughline.data.shards.files import ShardFiles
from throughline.data.shards.index import Shard, read_shard_index
from throughline.pipelines.read.prepared_data import compute_snapshot_key
from throughline.pipelines.write import snapshot_writer
from throughline.pipelines.write.rows import ShardRows, join_shapes
from throughline.pipelines.write.snapshot import write_snapshot
from throughline.plan.augmentations import Flip
from throughline.plan.ops import Decode, Op, Pad, Resize
from throughline.results.base import read_value
from throughline.settings import SnapshotSettings
from throughline.shared.errors import ImpossiblePlan, StaleSnapshot
from throughline.shared.files import write_json

pytestmark = pytest.mark.integration

SHARD = Shard(
    name="train-00000-of-00001.tfrecord",
    split="train",
    **dict.fromkeys(("records", "examples", "bytes"), 1),
    digest="one",
    compression="none",
)
INDEX = index_of(SHARD, shape=(8, 8, 1))
OPS = (Decode(), Resize(height=4, width=5), Pad(pixels=1))


def test_other_shards_ops_or_versions_have_another_key(monkeypatch):
    before = compute_snapshot_key(INDEX, OPS)
    for shards, ops in (
        (replace(INDEX, shards=(replace(SHARD, digest="other"),)), OPS),
        (index_of(SHARD, shape=(8, 4, 2)), OPS),
        (INDEX, OPS[:2]),
        (INDEX, (OPS[0], OPS[2], OPS[1])),
        (INDEX, (*OPS[:2], Pad(pixels=2))),
    ):
        assert compute_snapshot_key(shards, ops) != before, (shards, ops)
    monkeypatch.setattr(Resize, "version", 2)
    changed = compute_snapshot_key(INDEX, OPS)
    monkeypatch.undo()
    installed = "throughline.pipelines.read.prepared_data.installed_versions"
    monkeypatch.setattr(installed, lambda names: dict.fromkeys(names, "0"))
    assert len({before, changed, compute_snapshot_key(INDEX, OPS)}) == 3


def test_a_snapshot_of_other_preprocessing_is_never_read(stored, arrays):
    with pytest.raises(StaleSnapshot):
        open_snapshot(arrays, stored["arrays"].snapshot_folder, "photos")


class Halve(Op):
    """An op of one's own that forgets to return whole numbers."""

    def compute(self, element, draw):
        return {**element, "image": tf.cast(element["image"], tf.float32) / 512}


class Gray(Op):
    """An op of one's own that forgets to say that it leaves one channel of three."""

    def compute(self, element, draw):
        return {**element, "image": element["image"][..., :1]}


FLOATS = "its result is float32, but a snapshot stores uint8"
CHANNELS = r"\(8, 8, 1\).* snapshot stores .*3"


@pytest.mark.parametrize(
    ("kind", "ops", "said"),
    [
        ("arrays", (Halve(),), FLOATS),
        ("photos", (Halve(),), FLOATS),  # of unlike sizes
        ("photos", (Resize(height=8, width=8), Gray()), CHANNELS),
        ("photos", (Gray(),), "results do not have the 3 channels that a snapshot"),
    ],
)
def test_what_an_op_returns_is_not_cut_to_whole_numbers(request, tmp_path, kind, ops, said):
    shards, ops = request.getfixturevalue(kind) / "shards", (Decode(), *ops)
    with pytest.raises(ImpossiblePlan, match=said):
        snapshot(read_shard_index(shards), shards, tmp_path / "snapshot", preprocess=ops)


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    slow_but_first([("arrays", 0.3, 0.5), ("arrays", 1.0, 1.0), ("unlike", 1.0, 1.0)]),
)
def test_an_interrupted_snapshot_goes_on_unless_it_was_of_another_fraction(
    request, tmp_path, monkeypatch, kind, before, after
):
    folder = request.getfixturevalue("arrays" if kind == "arrays" else "photos") / "shards"
    index, files = read_shard_index(folder), ShardFiles(folder=folder)

    def write(name, fraction):
        settings, out = SnapshotSettings(fraction=fraction), Destination(folder=tmp_path / name)
        return write_snapshot(index, files, out, preprocess=PREPROCESS[kind], settings=settings)

    real, seen = snapshot_writer.write_shard, []

    def write_shard(context, shard, start):
        seen.append(shard.name)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return real(context, shard, start)

    monkeypatch.setattr(snapshot_writer, "write_shard", write_shard)
    monkeypatch.setattr(snapshot_writer, "ROWS_BYTES", 1000 if kind == "arrays" else 5000)
    with pytest.raises(KeyboardInterrupt):
        write("snapshot", before)
    assert not (tmp_path / "snapshot").exists()
    began, notes = len(seen), tmp_path.glob("snapshot.*.partial/.done-*")
    done = {note.name.removeprefix(".done-").removesuffix(".json") for note in notes}
    assert 0 < len(done) < len(index.shards)
    kept = done if before == after else set()
    written = write("snapshot", after)
    assert len(seen) - began == len(index.shards) - len(kept)
    assert written.resumed == sum(one.examples for one in index.shards if one.name in kept)
    assert written.copied == 0
    write("fresh", after)
    assert read_files(tmp_path / "snapshot") == read_files(tmp_path / "fresh")


def test_a_snapshot_is_the_same_in_blocks_of_any_size(arrays, stored, tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot_writer, "ROWS_BYTES", 1000)  # a few images
    index = prepare_snapshot(arrays, tmp_path / "snapshot", "arrays").snapshot
    whole = stored["arrays"]
    assert len(index.splits["train"].chunks) > len(whole.snapshot.splits["train"].chunks)
    for path in whole.snapshot_folder.rglob("*.bin"):
        again = tmp_path / "snapshot" / path.relative_to(whole.snapshot_folder)
        assert path.read_bytes() == again.read_bytes()


def test_rows_have_reached_the_disk_before_a_note_says_they_are_done(arrays, tmp_path, monkeypatch):
    flushed, notes, late = [], [], []
    real_fsync, real_write = os.fsync, snapshot_writer.write_json

    def fsync(descriptor):
        real_fsync(descriptor)
        flushed.append(Path(f"/proc/self/fd/{descriptor}").readlink())

    def write_json(path, value):
        if path.name.startswith(".done-"):
            notes.append(path.name.removeprefix(".done-").partition("-")[0])
            columns = [
                sum(one.parts[-2:] == (notes[-1], f"{name}.bin") for one in flushed)
                for name in ("image", "label", "key")
            ]
            late.extend([path] if min(columns) < notes.count(notes[-1]) else [])
        real_write(path, value)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(snapshot_writer, "write_json", write_json)
    shards = prepare_snapshot(arrays, tmp_path / "snapshot", "arrays").shards
    assert len(notes) == sum(len(shards.for_split(split)) for split in shards.splits) and not late


def test_the_snapshot_holds_every_image_in_its_own_size(snapshot_of):
    data = snapshot_of("unlike")
    index, folder = data.snapshot, data.snapshot_folder
    image, extent = index.columns[:2]
    assert (image.shape, extent.name) == ((None, None, 3), "image.extent")
    count = index.splits["train"].count
    starts_and_shapes = map_column(folder, "train", extent, count)
    assert len({tuple(shape) for shape in starts_and_shapes[:, 1:].tolist()}) > 10
    assert map_column(folder, "train", image, count).size == index.splits["train"].bytes(image)
    verify(folder, read_index(folder))


@pytest.mark.parametrize("rank", [1, 3])
def test_shapes_take_a_few_bytes_a_row_and_are_read_from_a_note_as_they_were(tmp_path, rank):
    parts = [np.arange(rank * rows, dtype=np.int64).reshape(rows, rank) for rows in (400, 600)]
    rows = ShardRows(chunks=(), moments=(), shapes=join_shapes(parts, rank))
    assert rows.shapes.nbytes == 1000 * rank * 8
    write_json(tmp_path / "note.json", rows)
    again = read_value(ShardRows, tmp_path / "note.json", "snapshot").shapes
    assert again.dtype == np.int64 and np.array_equal(again, rows.shapes)
    write_json(tmp_path / "none.json", ShardRows(chunks=(), moments=()))
    none = read_value(ShardRows, tmp_path / "none.json", "snapshot").shapes
    assert join_shapes([none.reshape(-1, rank)], rank).shape == (0, rank)


def test_images_of_unlike_sizes_are_not_batched(snapshot_of):
    data = {"unlike": snapshot_of("unlike")}
    with pytest.raises(ImpossiblePlan, match=r"images differ in size.*random_crop"):
        pipeline(data, "unlike", augment=(Flip(),), read="snapshot", shuffle={"kind": "global"})
