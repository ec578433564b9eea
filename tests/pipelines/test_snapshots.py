"""A snapshot is of its shards and ops, survives interruptions, and is on disk when it says so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import tensorflow as tf
from small_pipelines import PREPROCESS

from throughline.data.columns.stored import Destination
from throughline.data.shards.index import read_shard_index
from throughline.pipelines.read.prepared_data import open_prepared_data
from throughline.pipelines.write.snapshot import snapshot, write_snapshot
from throughline.plan.ops import Decode, Op, Resize
from throughline.shared.errors import ImpossiblePlan, StaleSnapshot


def test_a_snapshot_of_other_preprocessing_is_never_read(stored, photos):
    with pytest.raises(StaleSnapshot):
        open_prepared_data(
            manifest=photos / "manifest",
            shards=photos / "shards",
            snapshot=photos / "snapshot",
            preprocess=(Decode(), Resize(height=9, width=9)),
        )


def test_a_changed_op_version_makes_a_snapshot_stale(stored, photos, monkeypatch):
    monkeypatch.setattr(Resize, "version", 2)
    with pytest.raises(StaleSnapshot):
        open_prepared_data(
            manifest=photos / "manifest",
            shards=photos / "shards",
            snapshot=photos / "snapshot",
            preprocess=PREPROCESS["photos"],
        )


class Halve(Op):
    """An op of one's own that forgets to return whole numbers."""

    name = "halve"

    def compute(self, element, draw):
        return {**element, "image": tf.cast(element["image"], tf.float32) / 512}


@pytest.mark.parametrize("kind", ["arrays", "photos"])
def test_what_an_op_returns_is_not_cut_to_whole_numbers(stored, request, tmp_path, kind):
    shards = request.getfixturevalue(kind) / "shards"
    with pytest.raises(ImpossiblePlan, match="its result is float32, and a snapshot stores uint8"):
        snapshot(
            read_shard_index(shards), shards, tmp_path / "snapshot", preprocess=(Decode(), Halve())
        )


@pytest.mark.integration
def test_a_snapshot_goes_on_after_an_interruption(stored, photos, tmp_path, monkeypatch):
    index = read_shard_index(photos / "shards")
    calls = []

    def stop_at_the_third(*arguments, **values):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*arguments, **values)

    import throughline.pipelines.write.snapshot_writer as stage

    real = stage.write_rows
    monkeypatch.setattr(stage, "write_rows", stop_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        snapshot(index, photos / "shards", tmp_path / "snapshot", preprocess=PREPROCESS["photos"])
    assert not (tmp_path / "snapshot").exists()
    finished = len(list(tmp_path.glob("snapshot.*.partial/.done-*")))
    shards = sum(len(index.for_split(split)) for split in index.splits)
    assert 0 < finished < shards
    calls[:] = [None] * 10
    snapshot(index, photos / "shards", tmp_path / "snapshot", preprocess=PREPROCESS["photos"])
    assert len(calls) == 10 + shards - finished
    for path in [*(photos / "snapshot").rglob("*.bin"), photos / "snapshot" / "index.json"]:
        assert (
            path.read_bytes()
            == (tmp_path / "snapshot" / path.relative_to(photos / "snapshot")).read_bytes()
        )


def test_a_snapshot_is_the_same_however_many_rows_are_made_together(
    arrays, stored, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        "throughline.pipelines.write.snapshot_writer.ROWS_BYTES", 1000
    )  # a few images
    index = snapshot(
        read_shard_index(arrays / "shards"),
        arrays / "shards",
        tmp_path / "snapshot",
        preprocess=(Decode(),),
    )
    assert len(index.splits["train"].chunks) > len(stored["arrays"].snapshot.splits["train"].chunks)
    for path in (arrays / "snapshot").rglob("*.bin"):
        assert (
            path.read_bytes()
            == (tmp_path / "snapshot" / path.relative_to(arrays / "snapshot")).read_bytes()
        )


def test_rows_have_reached_the_disk_before_a_note_says_that_they_are_done(
    arrays, tmp_path, monkeypatch
):
    import throughline.pipelines.write.snapshot_writer as stage

    flushed, notes, late = [], [], []
    real_fsync, real_write = os.fsync, stage.write_json

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
    monkeypatch.setattr(stage, "write_json", write_json)
    index = read_shard_index(arrays / "shards")
    snapshot(index, arrays / "shards", tmp_path / "snapshot", preprocess=(Decode(),))
    assert len(notes) == sum(len(index.for_split(split)) for split in index.splits) and not late


def test_an_interrupted_snapshot_goes_on_with_the_same_files_of_own_ops_alone(
    stored, arrays, tmp_path, monkeypatch
):
    def stop(*arguments, **values):
        raise KeyboardInterrupt

    monkeypatch.setattr("throughline.pipelines.write.snapshot_writer.write_rows", stop)

    def left_by(table):
        out = Destination(folder=tmp_path / "snapshot", needs={"files": {"table.npy": table}})
        shards = read_shard_index(arrays / "shards")
        with pytest.raises(KeyboardInterrupt):
            write_snapshot(shards, arrays / "shards", out, preprocess=PREPROCESS["arrays"])
        (left,) = tmp_path.glob("snapshot.*.partial")
        return left

    assert left_by("one") == left_by("one") != left_by("other")
