"""A snapshot is of its shards and ops, survives interruptions, and is on disk when it says so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import tensorflow as tf

from tests.support.small_data import read_files
from tests.support.small_pipelines import PREPROCESS, open_snapshot, prepare_snapshot
from throughline.data.columns.stored import Destination
from throughline.data.shards.files import ShardFiles
from throughline.data.shards.index import read_shard_index
from throughline.pipelines.write import snapshot_writer
from throughline.pipelines.write.snapshot import snapshot, write_snapshot
from throughline.plan.ops import Decode, Op, Resize
from throughline.shared.errors import ImpossiblePlan, StaleSnapshot


def test_a_snapshot_of_other_preprocessing_is_never_read(stored, photos, monkeypatch):
    monkeypatch.setattr(Resize, "version", 2)
    with pytest.raises(StaleSnapshot):
        open_snapshot(photos, photos / "snapshot", "photos")


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


class Gray(Op):
    """An op of one's own that forgets to say that it leaves one channel of three."""

    name = "gray"

    def compute(self, element, draw):
        return {**element, "image": element["image"][..., :1]}


@pytest.mark.parametrize("kind", ["photos", "unlike"])
def test_images_of_other_channels_than_are_stored_are_refused(stored, request, tmp_path, kind):
    shards = request.getfixturevalue("photos") / "shards"
    ops = (Decode(), *([Resize(height=8, width=8)] * (kind == "photos")), Gray())
    with pytest.raises(ImpossiblePlan, match=r"shape \(.*1\).*, and a snapshot stores .*3"):
        snapshot(read_shard_index(shards), shards, tmp_path / "snapshot", preprocess=ops)


def interrupt_at_the_third(monkeypatch):
    """Interrupt the next snapshot at its third shard; returns the names of those that are begun."""
    real, seen = snapshot_writer.write_shard, []

    def write_shard(context, shard, start):
        seen.append(shard.name)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return real(context, shard, start)

    monkeypatch.setattr(snapshot_writer, "write_shard", write_shard)
    return seen


@pytest.mark.integration
@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [("photos", 1.0, 1.0), ("unlike", 1.0, 1.0), ("photos", 0.3, 0.5)],
    ids=["one size", "unlike sizes", "another fraction"],
)
def test_an_interrupted_snapshot_goes_on_unless_it_was_of_another_fraction(
    photos, tmp_path, monkeypatch, kind, before, after
):
    seen = interrupt_at_the_third(monkeypatch)
    monkeypatch.setattr(snapshot_writer, "ROWS_BYTES", 5000)  # a few images
    with pytest.raises(KeyboardInterrupt):
        prepare_snapshot(photos, tmp_path / "snapshot", kind, fraction=before)
    assert not (tmp_path / "snapshot").exists()
    began, finished = len(seen), len(list(tmp_path.glob("snapshot.*.partial/.done-*")))
    data = prepare_snapshot(photos, tmp_path / "snapshot", kind, fraction=after)
    shards = sum(len(data.shards.for_split(split)) for split in data.shards.splits)
    assert 0 < finished < shards
    assert len(seen) - began == shards - (finished if before == after else 0)
    prepare_snapshot(photos, tmp_path / "fresh", kind, fraction=after)
    assert read_files(tmp_path / "snapshot") == read_files(tmp_path / "fresh")


def test_what_an_interrupted_run_has_done_is_counted(photos, tmp_path, monkeypatch):
    shards, files = read_shard_index(photos / "shards"), ShardFiles(folder=photos / "shards")
    out = Destination(folder=tmp_path / "snapshot")
    interrupt_at_the_third(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        write_snapshot(shards, files, out, preprocess=PREPROCESS["photos"])
    notes = list(tmp_path.glob("snapshot.*.partial/.done-*"))
    names = {note.name.removeprefix(".done-").removesuffix(".json") for note in notes}
    written = write_snapshot(shards, files, out, preprocess=PREPROCESS["photos"])
    done = sum(shard.examples for shard in shards.shards if shard.name in names)
    assert (written.resumed, written.copied) == (done, 0)
    assert done > 0


def test_a_snapshot_is_the_same_however_many_rows_are_made_together(
    arrays, stored, tmp_path, monkeypatch
):
    monkeypatch.setattr(snapshot_writer, "ROWS_BYTES", 1000)  # a few images
    index = prepare_snapshot(arrays, tmp_path / "snapshot", "arrays").snapshot
    whole = stored["arrays"]
    assert len(index.splits["train"].chunks) > len(whole.snapshot.splits["train"].chunks)
    for path in whole.snapshot_folder.rglob("*.bin"):
        again = tmp_path / "snapshot" / path.relative_to(whole.snapshot_folder)
        assert path.read_bytes() == again.read_bytes()


def test_rows_have_reached_the_disk_before_a_note_says_that_they_are_done(
    arrays, tmp_path, monkeypatch
):
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
