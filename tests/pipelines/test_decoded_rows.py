"""A snapshot that stores a part of the rows: the others are decoded when they are read, and every
batch is that of a whole one.
"""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import tensorflow as tf

from tests.support.lanes import slow_but_first
from tests.support.small_data import flip_bit
from tests.support.small_pipelines import (
    GLOBAL,
    batches,
    digest_of_all,
    pipeline,
    prepare_snapshot,
    same,
)
from throughline.data.columns.index import column_path, count_stored, read_index, verify
from throughline.pipelines.read.decoded_rows import join_rows
from throughline.plan.augmentations import Brightness, Flip, RandomCrop, RandomResizedCrop
from throughline.plan.ops import CenterCrop
from throughline.plan.training_workers import TrainingWorker
from throughline.shared.errors import CorruptColumn, StaleSnapshot

pytestmark = pytest.mark.integration
IN_ORDER = {"postprocess": (), "with_keys": True, "in_order": True}


def reading(snapshot_of, kind, fraction, *, stored=None, **more):
    """What reads this fraction of a snapshot, which stores that or more."""
    data = snapshot_of(kind, fraction if stored is None else stored)
    config = {"augment": (Flip(), Brightness()), "shuffle": GLOBAL, **more}
    return pipeline({kind: data}, kind, read="snapshot", snapshot={"fraction": fraction}, **config)


@pytest.mark.parametrize(
    ("kind", "fraction"), slow_but_first([("arrays", 0.3), ("photos", 0.3), ("arrays", 0.0)])
)
def test_the_batches_are_those_of_a_whole_snapshot_from_any_step(snapshot_of, kind, fraction):
    expected = batches(reading(snapshot_of, kind, 1.0), epochs=2)
    parallel = reading(snapshot_of, kind, fraction, map={"parallel": 2}, prefetch=2)
    for step in (0, parallel.steps_per_epoch + 1):
        assert same(batches(parallel, first_step=step, epochs=2), expected[step:]), step


@pytest.mark.slow
def test_a_part_may_be_read_of_what_is_stored(snapshot_of):
    part = reading(snapshot_of, "arrays", 0.3, stored=1.0)
    assert part.reader.stored == count_stored(part.examples, 0.3)
    value = part.data.input_column.name
    assert part.reader.variables[value].shape[0] == part.reader.stored
    assert same(batches(part), batches(reading(snapshot_of, "arrays", 1.0)))


CROP = (Brightness(), RandomCrop(height=20, width=24))  # which a fetch cannot do


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "fraction", "config"),
    [
        ("photos", 0.3, {"sampling": "balanced"}),
        ("photos", 0.3, {"graph_rewrites": True, "map": {"parallel": "auto"}}),
        ("photos", 0.3, {"worker": TrainingWorker(index=1, count=2)}),
        ("unlike", 0.3, {"augment": CROP}),
        ("unlike", 0.0, {"augment": (CenterCrop(height=27, width=34),)}),
    ],
    ids=["by class", "rewritten", "half of each batch", "of unlike sizes", "none is stored"],
)
def test_draws_slices_and_images_of_unlike_sizes_are_those_of_a_whole_snapshot(
    snapshot_of, kind, fraction, config
):
    expected = batches(reading(snapshot_of, kind, 1.0, **config), epochs=2)
    assert same(batches(reading(snapshot_of, kind, fraction, **config), epochs=2), expected)


@pytest.mark.slow
@pytest.mark.parametrize("split", slow_but_first(["train", "validation", "test"]))
def test_every_split_has_the_same_examples_whatever_is_stored(snapshot_of, split):
    crop = RandomResizedCrop(height=20, width=24).in_evaluation()
    more = {"augment": (crop,), "split": split, **IN_ORDER}
    digest_of_all(
        {fraction: reading(snapshot_of, "unlike", fraction, **more) for fraction in (0.0, 0.3, 1.0)}
    )


def test_rows_keep_their_places_in_a_batch():
    seen = []

    def note(sign):
        def make(columns, rows, epoch):
            seen.append(rows.numpy().tolist())
            return {"image": tf.cast(sign * rows[:, None], tf.int32)}

        return make

    rows = tf.constant([5, 1, 9, 4, 0, 5], tf.int64)
    joined = join_rows(5, note(1), note(-1))({}, rows, tf.constant(0, tf.int64))
    assert joined["image"].numpy()[:, 0].tolist() == [-5, 1, -9, 4, 0, -5]
    assert seen == [[1, 4, 0], [5, 9, 5]]


@pytest.mark.parametrize("kind", slow_but_first(["unlike", "photos"]))
def test_values_of_the_first_rows_are_stored_and_all_labels_keys_and_statistics(snapshot_of, kind):
    whole, part, none = (snapshot_of(kind, fraction) for fraction in (1.0, 0.3, 0.0))
    for split, rows in part.snapshot.splits.items():
        stored = count_stored(rows.count, 0.3)
        assert rows.rows(part.input_column) == stored == part.find_rows(split, 0.3)
        assert 0 < stored < rows.count
        for name in ("label", "key"):
            np.testing.assert_array_equal(part.memmap(split, name), whole.memmap(split, name))
        value = part.input_column.name
        first = whole.memmap_first(split, value, stored)
        np.testing.assert_array_equal(part.memmap(split, value), first)
        path = column_path(none.snapshot_folder, split, value)
        assert (path.stat().st_size, none.find_rows(split, 0.0)) == (0, 0)
    assert part.snapshot.statistics == whole.snapshot.statistics
    assert part.snapshot.key == whole.snapshot.key
    for data in (part, none):
        verify(data.snapshot_folder, read_index(data.snapshot_folder))


def test_damage_of_a_part_is_found(snapshot_of, tmp_path):
    data = snapshot_of("unlike", 0.3)
    shutil.copytree(data.snapshot_folder, tmp_path / "snapshot")
    path = column_path(tmp_path / "snapshot", "train", "image")
    flip_bit(path, -100)
    with pytest.raises(CorruptColumn, match=r"image.bin: chunk of rows"):
        verify(tmp_path / "snapshot", data.snapshot)
    content = path.read_bytes()
    path.write_bytes(content[:-64])
    with pytest.raises(CorruptColumn, match=f"the index says {len(content)}"):
        read_index(tmp_path / "snapshot")


def test_what_is_read_has_to_be_stored(snapshot_of):
    said = r"stores \d+ of the \d+ rows.*run `dvc repro snapshot`"
    with pytest.raises(StaleSnapshot, match=said):
        batches(reading(snapshot_of, "arrays", 0.5, stored=0.3))


@pytest.mark.slow
def test_rows_of_repaired_shards_are_decoded_from_what_could_be_read(arrays, tmp_path):
    (tmp_path / "manifest").symlink_to(arrays / "manifest")
    shutil.copytree(arrays / "shards", tmp_path / "shards")
    flip_bit(min((tmp_path / "shards").glob("train*.tfrecord")), 60)
    skipping = {"on_corrupt": "skip", "max_corrupt_fraction": 0.5, "fraction": 0.3}
    data = prepare_snapshot(tmp_path, tmp_path / "snapshot", "arrays", **skipping)
    assert data.snapshot.repaired
    part = {"read": "snapshot", "shuffle": GLOBAL, "snapshot": {"fraction": 0.3}}
    digest_of_all(
        {
            "part": pipeline({"arrays": data}, **IN_ORDER, **part),
            "streamed": pipeline({"arrays": data}, **IN_ORDER),
        }
    )
