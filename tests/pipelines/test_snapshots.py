"""A snapshot is of its shards and ops, survives interruptions, and is on disk when it says so.

Rows of an earlier snapshot's shards are copied; bytes are always those of a fresh snapshot.
"""

import functools
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np
import pytest
import tensorflow as tf

from tests.support.lanes import slow_but_first
from tests.support.prepared import snapshot
from tests.support.prepared_files import index_of
from tests.support.small_data import data_settings, flip_bit, prepared, read_files
from tests.support.small_pipelines import PREPROCESS, prepare_snapshot
from throughline.data.columns.index import read_index, verify
from throughline.data.columns.stored import Destination
from throughline.data.shards.files import ShardFiles
from throughline.data.shards.index import Shard, read_shard_index
from throughline.pipelines.read.prepared_data import compute_snapshot_key
from throughline.pipelines.write import snapshot_writer
from throughline.pipelines.write.earlier_rows import find_earlier_rows
from throughline.pipelines.write.rows import STATISTICS_OF, ShardRows, join_shapes
from throughline.pipelines.write.snapshot import write_snapshot
from throughline.plan.ops import CenterCrop, Decode, Op, Pad, Resize
from throughline.results.base import read_value
from throughline.settings import SnapshotSettings, SplitSettings
from throughline.shared.errors import CorruptShard, ImpossiblePlan, ObjectStoreFailed
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


def test_a_snapshot_is_the_same_in_blocks_of_any_size(arrays, stored, tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot_writer, "ROWS_BYTES", 1000)  # a few images
    index = prepare_snapshot(arrays, tmp_path / "snapshot", "arrays").snapshot
    whole = stored["arrays"]
    assert len(index.splits["train"].chunks) > len(whole.snapshot.splits["train"].chunks)
    found, expected = read_files(tmp_path / "snapshot"), read_files(whole.snapshot_folder)
    assert found.pop("index.json") != expected.pop("index.json") and found == expected


def test_rows_have_reached_the_disk_before_a_note_says_they_are_done(arrays, tmp_path, monkeypatch):
    flushed, notes, real = Counter(), Counter(), snapshot_writer.write_json

    def fsync(descriptor):
        flushed[Path(f"/proc/self/fd/{descriptor}").readlink().parts[-2:]] += 1

    def write_json(path, value):
        if path.name.startswith(".done-"):
            split = path.name.removeprefix(".done-").partition("-")[0]
            notes[split] += 1
            columns = [flushed[split, f"{name}.bin"] for name in ("image", "label", "key")]
            assert min(columns) >= notes[split]
        real(path, value)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(snapshot_writer, "write_json", write_json)
    shards = prepare_snapshot(arrays, tmp_path / "snapshot", "arrays").shards
    assert notes == {split: len(shards.for_split(split)) for split in shards.splits}


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
    parts = [np.arange(rank * rows, dtype=np.int64).reshape(rows, rank) for rows in (400, 600, 0)]
    shapes = join_shapes(parts, rank)
    assert (shapes.nbytes, shapes.shape) == (1000 * rank * 8, (1000, rank))
    for rows in (ShardRows(chunks=(), moments=(), shapes=shapes), ShardRows(chunks=(), moments=())):
        write_json(tmp_path / "note.json", rows)
        again = read_value(ShardRows, tmp_path / "note.json", "snapshot").shapes
        assert again.dtype == np.int64
        np.testing.assert_array_equal(again.reshape(-1, rank), rows.shapes.reshape(-1, rank))


@contextmanager
def preprocessed(interrupted: int = 0) -> Iterator[list[str]]:
    """The names of the shards that are preprocessed meanwhile, which ends at the n-th of them."""
    names, real = [], snapshot_writer.write_shard

    def write_shard(context, shard, start):
        names.append(shard.name)
        if len(names) == interrupted:
            raise KeyboardInterrupt
        return real(context, shard, start)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(snapshot_writer, "write_shard", write_shard)
        yield names


class Data:
    """Photos, their shards, and an earlier snapshot of them; columns are in files or at `url`."""

    def __init__(self, folder: Path, kind: str, *, url: str = "") -> None:
        self.folder, self.kind, self.url = folder, kind, url
        self.shards, self.earlier = folder / "shards", Layout(folder / "earlier")
        self.settings = SnapshotSettings(fraction=0.4 if kind == "part" else 1)
        self.ops = PREPROCESS["photos" if kind == "part" else kind]

    def write_shards(self) -> Self:
        shutil.rmtree(self.folder / "manifest", ignore_errors=True)
        split = SplitSettings(validation=0.2, test=0)
        prepared(data_settings(self.folder / "photos", split=split), self.folder)
        return self

    def drop_photo(self, at: int = 7) -> None:
        sorted(self.folder.glob("photos/**/*.jpg"))[at].unlink()
        self.write_shards()

    def write(self, name: str = "snapshot", earlier: Layout | None = None):
        """Write a snapshot of the shards; also returns its files and its objects."""
        store = open_store(f"{self.url}/{name}") if self.url else None
        out = Destination(folder=self.folder / name, store=store, earlier=earlier)
        index, files = read_shard_index(self.shards), ShardFiles(folder=self.shards)
        written = write_snapshot(index, files, out, preprocess=self.ops, settings=self.settings)
        listed = store.list(written.index.key) if store else ()
        objects = {one.name: store.read(one.name) for one in listed if store}
        return written, read_files(out.folder), objects

    def snapshot(self) -> set[str]:
        """The names of the shards that are preprocessed; from now on this is the earlier one."""
        with preprocessed() as computed:
            written, *contents = self.write(earlier=self.earlier)
        read = read_shard_index(self.shards).with_repaired(written.index.repaired).shards
        assert written.copied == sum(one.examples for one in read if one.name not in computed)
        _, *fresh = self.write("fresh")
        assert contents == fresh, "the files and objects of one that knows no earlier one"
        for folder in (self.folder / "fresh", self.earlier.root):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.shards, self.earlier.shards)
        (self.folder / "snapshot").rename(self.earlier.snapshot)
        return {*computed}

    def names(self) -> set[str]:
        return {one.name for one in read_shard_index(self.shards).shards}


@pytest.fixture
def few_rows_a_chunk(monkeypatch):
    monkeypatch.setattr(snapshot_writer, "ROWS_BYTES", 2500)


@pytest.fixture(scope="module")
def shards_of(photo_folder, tmp_path_factory) -> Path:
    """A folder of photos and their shards."""
    folder = tmp_path_factory.mktemp("shards")
    shutil.copytree(photo_folder, folder / "photos")
    return Data(folder, "photos").write_shards().folder


@pytest.fixture
def copy(shards_of, tmp_path, few_rows_a_chunk) -> Callable[..., Data]:
    """A function that copies these data into the test's folder."""
    shutil.copytree(shards_of, tmp_path, dirs_exist_ok=True)
    return functools.partial(Data, tmp_path)


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    slow_but_first([("photos", 0.3, 0.5), ("photos", 1.0, 1.0), ("unlike", 1.0, 1.0)]),
)
def test_an_interrupted_snapshot_goes_on_unless_it_was_of_another_fraction(
    copy, kind, before, after
):
    data = copy(kind)
    data.settings = SnapshotSettings(fraction=before)
    with preprocessed(interrupted=3), pytest.raises(KeyboardInterrupt):
        data.write()
    assert not (data.folder / "snapshot").exists()
    notes = data.folder.glob("snapshot.*.partial/.done-*")
    done = {note.name.removeprefix(".done-").removesuffix(".json") for note in notes}
    assert 0 < len(done) < len(data.names())
    kept = done if before == after else set()
    data.settings = SnapshotSettings(fraction=after)
    with preprocessed() as names:
        written, *contents = data.write()
    assert sorted(names) == sorted(data.names() - kept)
    shards = read_shard_index(data.shards).shards
    resumed = sum(one.examples for one in shards if one.name in kept)
    assert (written.resumed, written.copied) == (resumed, 0)
    assert data.write("fresh")[1:] == tuple(contents)


@pytest.mark.parametrize("kind", slow_but_first(["photos", "unlike", "part"]))
def test_rows_of_equal_shards_are_copied_to_where_they_are_now(copy, kind):
    data = copy(kind)
    assert data.snapshot() == data.names()
    # Of shards that are not stored, or in part, statistics are computed again.
    again = data.snapshot()
    assert again < data.names() if kind == "part" else not again
    data.drop_photo()
    assert (kind != "part") <= len(data.snapshot() - again) <= 1


def test_what_was_made_by_other_ops_with_another_file_or_of_another_dtype_is_not_copied(copy):
    data = copy("photos")
    data.snapshot()
    of_that_shape = (*data.ops[:2], Resize(height=18, width=16), CenterCrop(height=16, width=18))
    (value, *more) = read_index(data.earlier.snapshot).columns
    out = Destination(folder=data.folder, earlier=data.earlier)
    for made_by, dtype, files, known in (
        (data.ops, value.dtype, {}, True),
        (of_that_shape, value.dtype, {}, False),
        (data.ops, value.dtype, {"tokenizer.model": "1"}, False),
        (data.ops, "uint16", {}, False),
    ):
        columns = (replace(value, dtype=dtype), *more)
        assert bool(find_earlier_rows(out, "key", made_by, columns, files)) == known


def swap_sides(content):
    """Extents of which the first has as many pixels in another shape."""
    extents = np.frombuffer(content, np.int64).reshape(-1, 4).copy()
    extents[0, 1:3] = extents[0, 2:0:-1]
    return extents.tobytes()


@pytest.mark.parametrize(
    ("kind", "path", "damage", "computed"),
    [
        ("photos", "snapshot/train/image.bin", None, "of train"),
        *slow_but_first([
            ("photos", "snapshot/train/image.bin", lambda content: b"?" + content[1:], "one"),
            ("photos", "shards/index.json", lambda content: content[:-9], "all"),
            ("unlike", "snapshot/train/image.extent.bin", swap_sides, "one"),
        ]),
    ],
    ids=["file", "byte", "index", "shape"],
)  # fmt: skip
def test_damaged_earlier_rows_are_computed_again(copy, kind, path, damage, computed):
    data = copy(kind)
    data.snapshot()
    damaged = data.earlier.snapshot.parent / path
    content = damaged.read_bytes()
    damaged.unlink()
    if damage:
        damaged.write_bytes(damage(content))
    again = data.snapshot()
    of_train = {name for name in data.names() if name.startswith(STATISTICS_OF)}
    expected = {"of train": of_train, "all": data.names()}.get(computed)
    assert again == expected if expected else len(again) == 1


def test_a_damaged_shard_is_still_found(copy):
    data = copy("photos")
    data.snapshot()
    damaged = min(data.shards.glob("train*.tfrecord"))
    flip_bit(damaged, 60)
    with pytest.raises(CorruptShard, match=damaged.name):
        data.snapshot()
    assert not (data.folder / "snapshot").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["photos", "part"])
def test_a_store_copies_the_objects_of_equal_shards(copy, bucket_url, monkeypatch, kind):
    data, copied, real = copy(kind, url=bucket_url), [], ObjectStore.copy

    def note(store, name, to):
        copied.append(to)
        real(store, name, to)

    def refuse(store, name, to):
        raise ObjectStoreFailed(f"{name}: no permission (HTTP 403)")

    monkeypatch.setattr(ObjectStore, "copy", note)
    for _ in range(2):
        assert data.snapshot() == data.names(), "its objects have these names already"
    assert not copied
    data.drop_photo()
    assert data.snapshot() < data.names() and copied
    monkeypatch.setattr(ObjectStore, "copy", refuse)
    data.drop_photo(8)
    assert data.snapshot() == data.names(), "where the store copies nothing"


@pytest.mark.slow
def test_of_repaired_shards_the_rows_that_are_left_are_copied(copy):
    data = copy("photos")
    data.settings = SnapshotSettings(on_corrupt="skip", max_corrupt_fraction=0.2)
    flip_bit(min(data.shards.glob("train*.tfrecord")), -10)
    assert data.snapshot() == data.names()
    assert not data.snapshot()
