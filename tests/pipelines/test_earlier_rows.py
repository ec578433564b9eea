"""Rows of an earlier snapshot's shards are copied; bytes are always those of a fresh snapshot."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.lanes import slow_but_first
from tests.support.small_data import data_settings, flip_bit, picture, prepared, read_files
from tests.support.small_pipelines import PREPROCESS
from throughline.data.columns.index import read_index
from throughline.data.columns.stored import Destination
from throughline.data.shards.files import ShardFiles
from throughline.data.shards.index import ShardIndex, read_shard_index
from throughline.pipelines.write import snapshot_writer
from throughline.pipelines.write.earlier_rows import find_earlier_rows
from throughline.pipelines.write.rows import STATISTICS_OF
from throughline.pipelines.write.snapshot import write_snapshot
from throughline.plan.ops import CenterCrop, Decode, Resize
from throughline.settings import SnapshotSettings, SplitSettings
from throughline.shared.errors import CorruptShard, ObjectStoreFailed
from throughline.shared.layout import Layout
from throughline.shared.object_store import ObjectStore, open_store

pytestmark = pytest.mark.integration
COUNT = 24  # examples
OPS = PREPROCESS | {"part": PREPROCESS["photos"]}
Contents = dict[str, bytes]
FRESH: dict[str, tuple[Contents, Contents]] = {}  # made once of the same


def read_objects(store: ObjectStore, key: str) -> Contents:
    return {one.name: store.read(one.name) for one in store.list(key)}


class Data:
    """Examples in files or one array, and their snapshot, whose columns are at `url`."""

    def __init__(self, folder: Path, kind: str, *, url: str = "") -> None:
        self.folder, self.kind, self.source, self.url = folder, kind, folder / "source", url
        self.shards, self.earlier = folder / "shards", Layout(folder / "earlier")
        self.settings = SnapshotSettings(fraction=0.4 if kind == "part" else 1)

    def write_source(self) -> None:
        if self.kind == "arrays":
            self.source.mkdir()
            self.write_array(np.random.default_rng(0).integers(0, 256, (COUNT, 12, 10), np.uint8))
            return
        for number in range(COUNT):
            path = self.source / "ab"[number % 2] / f"{number:03d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            picture(number, size=(30 + number % 7, 24 + number % 5)).save(path)

    def write_array(self, images: np.ndarray) -> None:
        np.savez(self.source / "data.npz", x=images, y=np.arange(COUNT) % 4)

    def change_one(self, at: int = 7) -> None:
        """One file less; of an array, whose examples are known by their places, another image."""
        if self.kind == "arrays":
            images = np.load(self.source / "data.npz")["x"]
            images[at] = 255 - images[at]
            self.write_array(images)
        else:
            sorted(self.source.rglob("*.*"))[at].unlink()

    def write_shards(self) -> None:
        shutil.rmtree(self.folder / "manifest", ignore_errors=True)
        split = SplitSettings(validation=0.2, test=0)
        settings = data_settings(self.source, split=split)
        if self.kind == "arrays":
            settings = data_settings(self.source / "data.npz", "arrays", split=split)
        prepared(settings, self.folder)

    def destination(self, name: str, *, earlier: Layout | None = None) -> Destination:
        store = open_store(f"{self.url}/{name}") if self.url else None
        return Destination(folder=self.folder / name, store=store, earlier=earlier)

    @property
    def files(self) -> ShardFiles:
        return ShardFiles(folder=self.shards)

    def snapshot(self, ops=None) -> set[str]:
        """The names of the shards that are preprocessed; from now on this is the earlier one."""
        computed, real = set(), snapshot_writer.write_shard

        def write_shard(context, shard, start):
            computed.add(shard.name)
            return real(context, shard, start)

        index, ops = read_shard_index(self.shards), OPS[self.kind] if ops is None else ops
        out = self.destination("snapshot", earlier=self.earlier)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(snapshot_writer, "write_shard", write_shard)
            written = write_snapshot(index, self.files, out, preprocess=ops, settings=self.settings)
        read = index.with_repaired(written.index.repaired).shards
        left = sum(one.examples for one in read if one.name not in computed)
        assert written.copied == left
        objects = read_objects(out.store, written.index.key) if out.store else {}
        fresh = self.write_fresh(index, ops, written.index.key)
        assert (read_files(out.folder), objects) == fresh
        shutil.rmtree(self.earlier.root, ignore_errors=True)
        shutil.copytree(self.shards, self.earlier.shards)
        out.folder.rename(self.earlier.snapshot)
        return computed

    def write_fresh(self, index: ShardIndex, ops, key: str) -> tuple[Contents, Contents]:
        """The files and objects of a snapshot of these shards that knows no earlier one."""
        shards = sorted(read_files(self.shards).items())
        made_of = repr((shards, key, ops, self.settings, self.url != ""))
        if made_of not in FRESH:
            fresh = self.destination("fresh")
            made = write_snapshot(index, self.files, fresh, preprocess=ops, settings=self.settings)
            objects = read_objects(fresh.store, made.index.key) if fresh.store else {}
            FRESH[made_of] = read_files(fresh.folder), objects
            if fresh.store:
                fresh.store.delete(list(objects))
        return FRESH[made_of]

    def names(self) -> set[str]:
        return {one.name for one in read_shard_index(self.shards).shards}


@pytest.fixture(autouse=True)
def chunks_of_a_few_rows(monkeypatch):
    monkeypatch.setattr(snapshot_writer, "ROWS_BYTES", 360)


def make(folder: Path, kind: str, *, url: str = "") -> Data:
    """Data with its first snapshot."""
    made = Data(folder, kind, url=url)
    made.write_source()
    made.write_shards()
    assert made.snapshot() == made.names()
    return made


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A function that copies data of a kind, with its first snapshot, into a folder."""
    made: dict[str, Data] = {}

    def copy(folder: Path, kind: str) -> Data:
        if kind not in made:
            made[kind] = make(tmp_path_factory.mktemp(kind), kind)
        shutil.copytree(made[kind].folder, folder, dirs_exist_ok=True)
        return Data(folder, kind)

    return copy


@pytest.fixture
def data(copy, tmp_path) -> Data:
    return copy(tmp_path, "arrays")


@pytest.mark.parametrize("kind", slow_but_first(["arrays", "photos", "part"]))
def test_rows_of_equal_shards_are_copied_to_where_they_are_now(copy, tmp_path, kind):
    data = copy(tmp_path, kind)
    # Of shards that are not stored, or in part, statistics are computed again.
    again = data.snapshot()
    assert again < data.names() if kind == "part" else not again
    data.change_one()
    data.write_shards()
    changed = data.snapshot() - again
    # The new image of an array lies elsewhere.
    assert (kind != "part") <= len(changed) <= (2 if kind == "arrays" else 1)


def test_what_was_made_by_other_ops_is_not_copied(data):
    others = (Decode(), CenterCrop(height=6, width=5), Resize(height=12, width=10))  # of that shape
    assert data.snapshot(others) == data.names()


def test_what_was_made_with_another_file_or_of_another_dtype_is_not_copied(data):
    (value, *others) = read_index(data.earlier.snapshot).columns
    for columns, files, known in (
        ((value, *others), {}, True),
        ((value, *others), {"tokenizer.model": "1"}, False),
        ((replace(value, dtype="uint16"), *others), {}, False),
    ):
        out = Destination(folder=data.folder, earlier=data.earlier)
        assert bool(find_earlier_rows(out, "key", OPS["arrays"], columns, files)) == known


def swap_sides(content):
    """Extents of which the first has as many pixels in another shape."""
    extents = np.frombuffer(content, np.int64).reshape(-1, 4).copy()
    extents[0, 1:3] = extents[0, 2:0:-1]
    return extents.tobytes()


@pytest.mark.parametrize(
    ("kind", "path", "damage", "computed"),
    [
        ("arrays", "snapshot/train/image.bin", None, "train"),
        *slow_but_first([
            ("arrays", "snapshot/train/image.bin", lambda content: b"?" + content[1:], "one"),
            ("arrays", "shards/index.json", lambda content: content[:-9], "all"),
            ("unlike", "snapshot/train/image.extent.bin", swap_sides, "one"),
        ]),
    ],
    ids=["file", "byte", "index", "shape"],
)  # fmt: skip
def test_damaged_earlier_rows_are_computed_again(copy, tmp_path, kind, path, damage, computed):
    data = copy(tmp_path, kind)
    damaged = data.earlier.snapshot.parent / path
    if damage is None:
        damaged.unlink()
    else:
        damaged.write_bytes(damage(damaged.read_bytes()))
    again = data.snapshot()
    of_train = {name for name in data.names() if name.startswith(STATISTICS_OF)}
    expected = {"train": of_train, "all": data.names()}.get(computed)
    assert again == expected if expected else len(again) == 1


def test_a_damaged_shard_is_still_found(data):
    damaged = min(data.shards.glob("train*.tfrecord"))
    flip_bit(damaged, 60)
    with pytest.raises(CorruptShard, match=damaged.name):
        data.snapshot()
    assert not (data.folder / "snapshot").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["arrays", "part"])
def test_a_store_copies_the_objects_of_equal_shards(tmp_path, bucket_url, monkeypatch, kind):
    stored = make(tmp_path, kind, url=bucket_url)
    written, copied = [], []
    write, copy_object = ObjectStore.write, ObjectStore.copy

    def noting_write(store, name, data):
        written.append(f"{store.address('')}/{name}")
        write(store, name, data)

    def noting_copy(store, name, to):
        copied.append(to)
        copy_object(store, name, to)

    monkeypatch.setattr(ObjectStore, "write", noting_write)
    monkeypatch.setattr(ObjectStore, "copy", noting_copy)
    assert stored.snapshot() == stored.names(), "its objects have these names already"
    assert not copied
    stored.change_one()
    stored.write_shards()
    assert stored.snapshot() < stored.names()
    assert copied
    assert not {*copied} & {one.rpartition("/snapshot/")[2] for one in written}

    def refuse(store, name, to):
        raise ObjectStoreFailed(f"{name}: no permission (HTTP 403)")

    monkeypatch.setattr(ObjectStore, "copy", refuse)
    stored.change_one(8)
    stored.write_shards()
    assert stored.snapshot() == stored.names(), "where the store copies nothing"


@pytest.mark.slow
def test_of_repaired_shards_the_rows_that_are_left_are_copied(data):
    shutil.rmtree(data.earlier.root)
    data.settings = SnapshotSettings(on_corrupt="skip", max_corrupt_fraction=0.2)
    flip_bit(min(data.shards.glob("train*.tfrecord")), -10)
    assert data.snapshot() == data.names()
    assert not data.snapshot()
