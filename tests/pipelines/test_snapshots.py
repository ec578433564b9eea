"""A snapshot is of its shards and ops, survives interruptions, and is on disk when it says so.

Rows of an earlier snapshot's shards are copied; bytes are always those of a fresh snapshot.
"""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.support.lanes import slow_but_first
from tests.support.prepared import snapshot
from tests.support.prepared_files import index_of
from tests.support.small_data import data_settings, flip_bit, picture, prepared, read_files
from tests.support.small_pipelines import PREPROCESS, open_snapshot, pipeline, prepare_snapshot
from throughline.data.columns.index import read_index, verify
from throughline.data.columns.stored import Destination
from throughline.data.shards.files import ShardFiles
from throughline.data.shards.index import Shard, read_shard_index
from throughline.pipelines.read.prepared_data import compute_snapshot_key
from throughline.pipelines.write import snapshot_writer
from throughline.pipelines.write.earlier_rows import find_earlier_rows
from throughline.pipelines.write.rows import STATISTICS_OF, ShardRows, join_shapes
from throughline.pipelines.write.snapshot import write_snapshot
from throughline.plan.augmentations import Flip
from throughline.plan.ops import CenterCrop, Decode, Op, Pad, Resize
from throughline.results.base import read_value
from throughline.settings import SnapshotSettings, SplitSettings
from throughline.shared.errors import CorruptShard, ImpossiblePlan, ObjectStoreFailed, StaleSnapshot
from throughline.shared.files import write_json
from throughline.shared.layout import Layout
from throughline.shared.object_store import ObjectStore, open_store

pytestmark = pytest.mark.integration

SHARD = Shard(
    name="one", split="train", records=1, examples=1, bytes=1, digest="one", compression="none"
)
INDEX = index_of(SHARD, shape=(8, 8, 1))
OPS = (Decode(), Resize(height=4, width=5), Pad(pixels=1))


def test_other_shards_ops_or_versions_have_another_key(monkeypatch):
    before = compute_snapshot_key(INDEX, OPS)
    others = [
        (replace(INDEX, shards=(replace(SHARD, digest="other"),)), OPS),
        (index_of(SHARD, shape=(8, 4, 2)), OPS),
        (INDEX, OPS[:2]),
        (INDEX, (OPS[0], OPS[2], OPS[1])),
        (INDEX, (*OPS[:2], Pad(pixels=2))),
    ]
    keys = {before, *(compute_snapshot_key(shards, ops) for shards, ops in others)}
    with monkeypatch.context() as patched:
        patched.setattr(Resize, "version", 2)
        keys.add(compute_snapshot_key(INDEX, OPS))
    installed = "throughline.pipelines.read.prepared_data.installed_versions"
    monkeypatch.setattr(installed, lambda names: dict.fromkeys(names, "0"))
    assert len({*keys, compute_snapshot_key(INDEX, OPS)}) == len(others) + 3


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


@pytest.mark.parametrize(
    ("kind", "ops", "said"),
    [
        ("arrays", (Halve(),), "its result is float32, but a snapshot stores uint8"),
        ("photos", (Halve(),), "its result is float32, but a snapshot stores uint8"),  # ragged
        ("photos", (Resize(height=8, width=8), Gray()), r"\(8, 8, 1\).* snapshot stores .*3"),
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
    resumed = sum(one.examples for one in index.shards if one.name in kept)
    assert (written.resumed, written.copied) == (resumed, 0)
    write("fresh", after)
    assert read_files(tmp_path / "snapshot") == read_files(tmp_path / "fresh")


def test_a_snapshot_is_the_same_in_blocks_of_any_size(arrays, stored, tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot_writer, "ROWS_BYTES", 1000)  # a few images
    index = prepare_snapshot(arrays, tmp_path / "snapshot", "arrays").snapshot
    whole = stored["arrays"]
    assert len(index.splits["train"].chunks) > len(whole.snapshot.splits["train"].chunks)
    found, expected = read_files(tmp_path / "snapshot"), read_files(whole.snapshot_folder)
    assert found.pop("index.json") != expected.pop("index.json") and found == expected


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
    image, extent = data.snapshot.columns[:2]
    assert (image.shape, extent.name) == ((None, None, 3), "image.extent")
    starts_and_shapes = data.memmap("train", extent.name)
    assert len({tuple(shape) for shape in starts_and_shapes[:, 1:].tolist()}) > 10
    assert data.memmap("train", "image").size == data.snapshot.splits["train"].bytes(image)
    verify(data.snapshot_folder, data.snapshot)


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
        pipeline(data, "unlike", augment=(Flip(),))


COUNT = 24  # examples
MADE: dict[str, "Data"] = {}  # once per kind
FRESH: dict[str, list[dict]] = {}  # files and objects, made once of the same


class Data:
    """Examples in files or one array, and their snapshot, whose columns are at `url`."""

    def __init__(self, folder: Path, kind: str, *, url: str = "") -> None:
        self.folder, self.kind, self.url = folder, kind, url
        self.source = folder / ("data.npz" if kind == "arrays" else "photos")
        self.shards, self.earlier = folder / "shards", Layout(folder / "earlier")
        self.settings = SnapshotSettings(fraction=0.4 if kind == "part" else 1)

    def write_source(self) -> None:
        if self.kind == "arrays":
            self.write_array(np.random.default_rng(0).integers(0, 256, (COUNT, 12, 10), np.uint8))
        else:
            for number in range(COUNT):
                path = self.source / "ab"[number % 2] / f"{number:03d}.jpg"
                path.parent.mkdir(parents=True, exist_ok=True)
                picture(number, size=(30 + number % 7, 24 + number % 5)).save(path)
        self.write_shards()

    def write_array(self, images: np.ndarray) -> None:
        np.savez(self.source, x=images, y=np.arange(COUNT) % 4)

    def change_one(self, at: int = 7) -> None:
        """One file less; of an array, whose examples are known by their places, another image."""
        if self.kind == "arrays":
            images = np.load(self.source)["x"]
            images[at] = 255 - images[at]
            self.write_array(images)
        else:
            sorted(self.source.rglob("*.*"))[at].unlink()
        self.write_shards()

    def write_shards(self) -> None:
        shutil.rmtree(self.folder / "manifest", ignore_errors=True)
        split = SplitSettings(validation=0.2, test=0)
        source = "arrays" if self.kind == "arrays" else "image_folder"
        prepared(data_settings(self.source, source, split=split), self.folder)

    def write(self, name: str, ops, earlier: Layout | None = None):
        """Write a snapshot of the shards; also returns its files and its objects."""
        store = open_store(f"{self.url}/{name}") if self.url else None
        out = Destination(folder=self.folder / name, store=store, earlier=earlier)
        index, files = read_shard_index(self.shards), ShardFiles(folder=self.shards)
        written = write_snapshot(index, files, out, preprocess=ops, settings=self.settings)
        listed = store.list(written.index.key) if store else ()
        objects = {one.name: store.read(one.name) for one in listed if store}
        return written, read_files(out.folder), objects

    def snapshot(self) -> set[str]:
        """The names of the shards that are preprocessed; from now on this is the earlier one."""
        computed, real = set(), snapshot_writer.write_shard

        def write_shard(context, shard, start):
            computed.add(shard.name)
            return real(context, shard, start)

        ops = PREPROCESS["photos" if self.kind == "part" else self.kind]
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(snapshot_writer, "write_shard", write_shard)
            written, *contents = self.write("snapshot", ops, earlier=self.earlier)
        read = read_shard_index(self.shards).with_repaired(written.index.repaired).shards
        assert written.copied == sum(one.examples for one in read if one.name not in computed)
        made_of = repr((sorted(read_files(self.shards).items()), ops, self.settings, self.url))
        if made_of not in FRESH:
            _, *FRESH[made_of] = self.write("fresh", ops)
            shutil.rmtree(self.folder / "fresh")
        assert contents == FRESH[made_of], "the files and objects of one that knows no earlier one"
        shutil.rmtree(self.earlier.root, ignore_errors=True)
        shutil.copytree(self.shards, self.earlier.shards)
        (self.folder / "snapshot").rename(self.earlier.snapshot)
        return computed

    def names(self) -> set[str]:
        return {one.name for one in read_shard_index(self.shards).shards}


@pytest.fixture
def few_rows_a_chunk(monkeypatch):
    monkeypatch.setattr(snapshot_writer, "ROWS_BYTES", 360)


def make(folder: Path, kind: str, *, url: str = "") -> Data:
    """Data with its first snapshot."""
    made = Data(folder, kind, url=url)
    made.write_source()
    assert made.snapshot() == made.names()
    return made


@pytest.fixture
def copy(tmp_path, tmp_path_factory, few_rows_a_chunk):
    """A function that copies data of a kind, with its first snapshot, into the test's folder."""

    def copy(kind: str = "arrays") -> Data:
        if kind not in MADE:
            MADE[kind] = make(tmp_path_factory.mktemp(kind), kind)
        shutil.copytree(MADE[kind].folder, tmp_path, dirs_exist_ok=True)
        return Data(tmp_path, kind)

    return copy


@pytest.mark.parametrize("kind", slow_but_first(["arrays", "photos", "part"]))
def test_rows_of_equal_shards_are_copied_to_where_they_are_now(copy, kind):
    data = copy(kind)
    # Of shards that are not stored, or in part, statistics are computed again.
    again = data.snapshot()
    assert again < data.names() if kind == "part" else not again
    data.change_one()
    changed = data.snapshot() - again
    # The new image of an array lies elsewhere.
    assert (kind != "part") <= len(changed) <= (2 if kind == "arrays" else 1)


def test_what_was_made_by_other_ops_with_another_file_or_of_another_dtype_is_not_copied(copy):
    data, ops = copy(), PREPROCESS["arrays"]
    others = (Decode(), CenterCrop(height=6, width=5), Resize(height=12, width=10))  # of that shape
    (value, *more) = read_index(data.earlier.snapshot).columns
    for made_by, columns, files, known in (
        (ops, (value, *more), {}, True),
        (others, (value, *more), {}, False),
        (ops, (value, *more), {"tokenizer.model": "1"}, False),
        (ops, (replace(value, dtype="uint16"), *more), {}, False),
    ):
        out = Destination(folder=data.folder, earlier=data.earlier)
        assert bool(find_earlier_rows(out, "key", made_by, columns, files)) == known


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
def test_damaged_earlier_rows_are_computed_again(copy, kind, path, damage, computed):
    data = copy(kind)
    damaged = data.earlier.snapshot.parent / path
    if damage is None:
        damaged.unlink()
    else:
        damaged.write_bytes(damage(damaged.read_bytes()))
    again = data.snapshot()
    of_train = {name for name in data.names() if name.startswith(STATISTICS_OF)}
    expected = {"train": of_train, "all": data.names()}.get(computed)
    assert again == expected if expected else len(again) == 1


def test_a_damaged_shard_is_still_found(copy):
    data = copy()
    damaged = min(data.shards.glob("train*.tfrecord"))
    flip_bit(damaged, 60)
    with pytest.raises(CorruptShard, match=damaged.name):
        data.snapshot()
    assert not (data.folder / "snapshot").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("few_rows_a_chunk")
@pytest.mark.parametrize("kind", ["arrays", "part"])
def test_a_store_copies_the_objects_of_equal_shards(tmp_path, bucket_url, monkeypatch, kind):
    stored = make(tmp_path, kind, url=bucket_url)
    names: dict[str, list] = {"write": [], "copy": []}

    def note(method, place):
        real = getattr(ObjectStore, method)

        def noting(store, *arguments):
            names[method].append(f"{store.address('')}/{arguments[place]}")
            real(store, *arguments)

        monkeypatch.setattr(ObjectStore, method, noting)

    note("write", 0)
    note("copy", 1)
    assert stored.snapshot() == stored.names(), "its objects have these names already"
    assert not names["copy"]
    stored.change_one()
    assert stored.snapshot() < stored.names()
    assert names["copy"] and not {*names["copy"]} & {*names["write"]}

    def refuse(store, name, to):
        raise ObjectStoreFailed(f"{name}: no permission (HTTP 403)")

    monkeypatch.setattr(ObjectStore, "copy", refuse)
    stored.change_one(8)
    assert stored.snapshot() == stored.names(), "where the store copies nothing"


@pytest.mark.slow
def test_of_repaired_shards_the_rows_that_are_left_are_copied(copy):
    data = copy()
    shutil.rmtree(data.earlier.root)
    data.settings = SnapshotSettings(on_corrupt="skip", max_corrupt_fraction=0.2)
    flip_bit(min(data.shards.glob("train*.tfrecord")), -10)
    assert data.snapshot() == data.names()
    assert not data.snapshot()
