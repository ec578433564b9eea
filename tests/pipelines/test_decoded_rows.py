"""A snapshot that stores a part of the rows: the others are decoded when they are read, and every
batch is that of a whole one. So it is of uncompressed shards that are read in any order.
"""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest

from tests.support.lanes import slow_but_first
from tests.support.small_data import flip_bit
from tests.support.small_pipelines import (
    GLOBAL,
    PRESETS,
    batches,
    digest_of_all,
    pipeline,
    same,
)
from throughline.data.columns.index import column_path, count_stored, read_index, verify
from throughline.pipelines.read.snapshot_reader import SnapshotReader
from throughline.plan.augmentations import Brightness, Flip, RandomCrop, RandomResizedCrop
from throughline.plan.ops import CenterCrop
from throughline.plan.training_workers import TrainingWorker
from throughline.shared.errors import CorruptColumn, MissingInput, StaleSnapshot

pytestmark = pytest.mark.integration
IN_ORDER = {"postprocess": (), "with_keys": True, "in_order": True}


def reading(snapshot_of, kind, *, fraction=1.0, stored=None, **more):
    """What reads this fraction of a snapshot, which stores that or more, or its shards."""
    data = snapshot_of(kind, fraction if stored is None else stored)
    config = {"augment": (Flip(), Brightness()), "shuffle": GLOBAL, "read": "snapshot", **more}
    part = {"snapshot": {"fraction": fraction}} if config["read"] == "snapshot" else {}
    return pipeline({kind: data}, kind, **part, **config)


CROP = (Brightness(), RandomCrop(height=20, width=24))  # which a fetch cannot do
PART, NOTHING = {"fraction": 0.3}, {"fraction": 0.0}
LANES = {"kind": "lanes", "lanes": 4}
INDEXED = {"read": "indexed_shards", "vectorize": True}
LATER = [
    ("arrays", NOTHING | {"map": {"parallel": 2}, "prefetch": 2}, {}),
    ("arrays", PART | {"stored": 1.0}, {}),  # a part may be read of what is stored
    ("photos", PART, {"sampling": "balanced"}),
    ("photos", PART | {"graph_rewrites": True, "map": {"parallel": "auto"}}, {}),
    ("photos", PART, {"worker": TrainingWorker(index=1, count=2)}),
    ("unlike", PART, {"augment": CROP}),
    ("unlike", NOTHING, {"augment": (CenterCrop(height=27, width=34),)}),
    ("photos", {"read": "indexed_shards", "map": {"parallel": 2}}, {}),
    ("arrays", INDEXED | {"graph_rewrites": True, "map": {"parallel": "auto"}}, {}),
    ("arrays", INDEXED, {"shuffle": LANES}),
    ("arrays", INDEXED, {"shuffle": {"kind": "window", "size": 32}}),
    ("arrays", INDEXED, {"sampling": "balanced"}),
    ("arrays", INDEXED, {"worker": TrainingWorker(index=2, count=3), "batch_size": 9}),
]


@pytest.mark.parametrize(
    ("kind", "config", "both"),
    [
        ("arrays", PART | {"map": {"parallel": 2}, "prefetch": 2}, {}),
        ("arrays", INDEXED | {"prefetch": 2}, {}),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in LATER),
    ],
)
def test_the_batches_are_those_of_a_whole_snapshot_from_any_step(snapshot_of, kind, config, both):
    """Of a part of the rows, and of uncompressed shards in any order."""
    whole, found = (reading(snapshot_of, kind, **more, **both) for more in ({}, config))
    assert isinstance(whole.reader, SnapshotReader) and found.plan.seekable
    if "fraction" in config:
        assert found.reader.stored == count_stored(found.examples, config["fraction"])
    else:
        assert not found.plan.reads_snapshot
        assert "sampling" in both or whole.reader.order == found.indexed_shards.order
    expected = batches(whole, epochs=2)
    for step in (0, found.steps_per_epoch + 1):
        assert same(batches(found, first_step=step, epochs=2), expected[step:]), step
        assert found.dataset(first_step=step, epochs=2).cardinality() == len(expected) - step


@pytest.mark.slow
@pytest.mark.parametrize("split", slow_but_first(["train", "validation", "test"]))
def test_every_split_has_the_same_examples_whatever_is_stored(snapshot_of, split):
    crop = RandomResizedCrop(height=20, width=24).in_evaluation()
    more = {"augment": (crop,), "split": split, **IN_ORDER}
    digest_of_all(
        {
            fraction: reading(snapshot_of, "unlike", fraction=fraction, **more)
            for fraction in (0.0, 0.3, 1.0)
        }
    )


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
        batches(reading(snapshot_of, "arrays", fraction=0.5, stored=0.3))


def test_a_plan_prints_in_which_order_records_are_read(snapshot_of):
    assert str(reading(snapshot_of, "arrays", **INDEXED, prefetch=2).plan) == (
        "read:indexed_shards[global shuffle,16] → map:parse+decode+flip+brightness+rescale →"
        " prefetch[2]"
    )
    assert str(reading(snapshot_of, "arrays", **PRESETS["shards_global"]).plan).startswith(
        "read:indexed_shards[global shuffle,16][cores] → map:parse+decode+"
    )
    assert "4 lanes" in str(reading(snapshot_of, "arrays", shuffle=LANES).plan)


def test_without_uncompressed_shards_it_is_said(snapshot_of):
    data = snapshot_of("arrays")
    packed = tuple(replace(shard, compression="gzip") for shard in data.shards.shards)
    unindexed = replace(data, shards=replace(data.shards, shards=packed))
    reader = reading(lambda *_: unindexed, "arrays", **INDEXED).indexed_shards
    with pytest.raises(MissingInput, match=r"holds no uncompressed shards; set shard\.compression"):
        np.asarray(reader.table)
