"""Rows of shards that an earlier snapshot was made of are copied, and bytes are always those of a
fresh snapshot.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import SPLIT, data_settings, picture
from lanes import slow_but_first
from texts import params_of, write_texts

from throughline.data.columns.index import read_index
from throughline.data.columns.stored import Destination
from throughline.data.ingest import ingest
from throughline.data.shards.index import read_shard_index
from throughline.data.shards.writing import shard
from throughline.pipelines.write import snapshot_writer
from throughline.pipelines.write.earlier_rows import find_earlier_snapshot
from throughline.pipelines.write.rows import STATISTICS_OF
from throughline.pipelines.write.snapshot import snapshot, write_snapshot
from throughline.plan.ops import CenterCrop, Decode, Resize
from throughline.settings import DataSettings, ShardSettings, SnapshotSettings
from throughline.shared.errors import CorruptShard
from throughline.shared.layout import Layout

pytestmark = pytest.mark.integration

SMALL = (Decode(), CenterCrop(height=20, width=24), Resize(height=16, width=18))
OPS = {
    "photos": SMALL,
    "unlike": (Decode(),),
    "part": SMALL,
    "arrays": (Decode(),),
    "texts": params_of({}).preprocess,
}


def read_files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


class Data:
    """Examples in files or in one array, their shards and snapshot."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder, self.kind, self.source = folder, kind, folder / "source"
        self.shards, self.earlier = folder / "shards", Layout(folder / "earlier")
        self.settings = SnapshotSettings(fraction=0.4 if kind == "part" else 1)
        if kind == "texts":
            write_texts(self.source, 60)
        elif kind == "arrays":
            self.source.mkdir()
            self.write_array(np.random.default_rng(0).integers(0, 256, (60, 12, 10), np.uint8))
        for number in range(60) if kind in {"photos", "unlike", "part"} else ():
            path = self.source / "ab"[number % 2] / f"{number:03d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            picture(number, size=(30 + number % 7, 24 + number % 5)).save(path)

    def write_array(self, images: np.ndarray) -> None:
        np.savez(self.source / "data.npz", x=images, y=np.arange(60) % 4)

    def change_one(self) -> None:
        """One file less; of an array, whose examples are known by their places, another image."""
        if self.kind == "arrays":
            images = np.load(self.source / "data.npz")["x"]
            images[7] = 255 - images[7]
            self.write_array(images)
        else:
            sorted(self.source.rglob("*.*"))[7].unlink()

    def write_shards(self) -> None:
        shutil.rmtree(self.folder / "manifest", ignore_errors=True)
        settings = {
            "texts": lambda: data_settings(self.source, "text_folder"),
            "arrays": lambda: DataSettings(
                source="arrays", path=str(self.source / "data.npz"), split=SPLIT
            ),
        }.get(self.kind, lambda: data_settings(self.source))()
        manifest = ingest(settings, self.folder / "manifest")
        manifest = replace(manifest, folder=self.folder / "manifest")
        shard(manifest, self.shards, settings=ShardSettings(min_shards=3, writers=2))

    def snapshot(self, ops=None) -> set[str]:
        """The names of the shards that are preprocessed; all rows are as in a fresh snapshot, and
        this one is the earlier one from now on.
        """
        computed, real = set(), snapshot_writer.write_shard

        def write_shard(context, shard, start):
            computed.add(shard.name)
            return real(context, shard, start)

        index, ops = read_shard_index(self.shards), OPS[self.kind] if ops is None else ops
        out = Destination(folder=self.folder / "snapshot", earlier=self.earlier)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(snapshot_writer, "write_shard", write_shard)
            written = write_snapshot(
                index, self.shards, out, preprocess=ops, settings=self.settings
            )
        read = index.with_repaired(written.index.repaired).shards
        left = sum(one.examples for one in read if one.name not in computed)
        assert written.copied == left
        fresh = self.folder / "fresh"
        snapshot(index, self.shards, fresh, preprocess=ops, settings=self.settings)
        assert read_files(out.folder) == read_files(fresh)
        shutil.rmtree(self.earlier.root, ignore_errors=True)
        shutil.copytree(self.shards, self.earlier.shards)
        out.folder.rename(self.earlier.snapshot)
        return computed

    def names(self) -> set[str]:
        return {one.name for one in read_shard_index(self.shards).shards}


@pytest.fixture(autouse=True)
def chunks_of_a_few_rows(monkeypatch):
    monkeypatch.setattr(snapshot_writer, "ROWS_BYTES", 3000)


@pytest.fixture(params=slow_but_first(OPS))
def data(request, tmp_path) -> Data:
    made = Data(tmp_path, request.param)
    made.write_shards()
    return made


@pytest.fixture
def photos(tmp_path) -> Data:
    made = Data(tmp_path, "photos")
    made.write_shards()
    return made


def test_rows_of_equal_shards_are_copied_to_where_they_are_now(data):
    assert data.snapshot() == data.names()
    # Of shards that are not stored, or in part, statistics are computed again.
    again = data.snapshot()
    assert again < data.names() if data.kind == "part" else not again
    data.change_one()
    data.write_shards()
    changed = data.snapshot() - again
    # The new image of an array lies elsewhere.
    assert (data.kind != "part") <= len(changed) <= (2 if data.kind == "arrays" else 1)


def test_what_was_made_by_other_ops_is_not_copied(photos):
    photos.snapshot()
    assert photos.snapshot((Decode(), Resize(height=16, width=18))) == photos.names()


def test_what_was_made_with_another_file_or_of_another_dtype_is_not_copied(photos):
    photos.snapshot()
    (value, *others) = read_index(photos.earlier.snapshot).columns
    for columns, files, known in (
        ((value, *others), {}, True),
        ((value, *others), {"tokenizer.model": "1"}, False),
        ((replace(value, dtype="uint16"), *others), {}, False),
    ):
        found = find_earlier_snapshot(photos.earlier, SMALL, columns, files)
        assert (found is not None) == known


@pytest.mark.slow
def test_what_was_made_by_another_version_of_an_op_is_not_copied(photos, monkeypatch):
    photos.snapshot()
    monkeypatch.setattr(Resize, "version", 2)
    assert photos.snapshot() == photos.names()


@pytest.mark.parametrize(
    "damage",
    slow_but_first(["byte", "end", "file", "index", "shards_index", "extent", "shape"]),
)
def test_damaged_earlier_rows_are_computed_again(tmp_path, damage):
    data = Data(tmp_path, "unlike" if damage in {"extent", "shape"} else "photos")
    data.write_shards()
    data.snapshot()
    train = data.earlier.snapshot / "train"
    column = train / ("image.extent.bin" if damage in {"extent", "shape"} else "image.bin")
    index = (data.earlier.shards if damage == "shards_index" else train.parent) / "index.json"
    if damage == "byte":
        column.write_bytes(b"?" + column.read_bytes()[1:])
    elif damage == "shape":
        extents = np.fromfile(column, np.int64).reshape(-1, 4)
        extents[0, 1:3] = extents[0, 2:0:-1]  # as many pixels in another shape
        column.write_bytes(extents.tobytes())
    elif damage in {"end", "extent"}:
        column.write_bytes(column.read_bytes()[:-1])
    elif damage == "file":
        column.unlink()
    else:
        index.write_text(index.read_text()[:-9])
    computed = data.snapshot()
    of_train = {name for name in data.names() if name.startswith(STATISTICS_OF)}
    expected = {"file": of_train, "extent": of_train}
    if damage in {"byte", "end", "shape"}:
        assert len(computed) == 1
    else:
        assert computed == expected.get(damage, data.names())


def test_a_damaged_shard_is_still_found(photos):
    photos.snapshot()
    damaged = min(photos.shards.glob("train*.tfrecord"))
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    with pytest.raises(CorruptShard, match=damaged.name):
        photos.snapshot()
    assert not (photos.folder / "snapshot").exists()


def test_columns_that_were_put_into_a_store_are_not_missed(photos):
    photos.snapshot()
    for column in photos.earlier.snapshot.glob("*/*.bin"):
        column.unlink()
    assert photos.snapshot() == photos.names()


@pytest.mark.slow
def test_of_repaired_shards_the_rows_that_are_left_are_copied(photos):
    photos.settings = SnapshotSettings(on_corrupt="skip", max_corrupt_fraction=0.2)
    damaged = min(photos.shards.glob("train*.tfrecord"))
    content = bytearray(damaged.read_bytes())
    content[-10] ^= 1
    damaged.write_bytes(content)
    assert photos.snapshot() == photos.names()
    assert not photos.snapshot()
