"""Uncompressed shards in any order: the same batches as the snapshot's, from any step, on any
number of workers.
"""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest

from tests.support.small_data import flip_bit
from tests.support.small_pipelines import GLOBAL, PRESETS, batches, pipeline, same
from throughline.assembly.inputs import explain_read_errors
from throughline.pipelines.read.indexed_shard_reader import IndexedShardReader
from throughline.pipelines.read.snapshot_reader import SnapshotReader
from throughline.plan.augmentations import Brightness, Flip, RandomCrop
from throughline.plan.training_workers import TrainingWorker
from throughline.shared.errors import CorruptShard, MissingInput

pytestmark = pytest.mark.integration

AUGMENT = (Flip(), Brightness())
CONFIGS = {
    "whole batches": {"vectorize": True},
    "one by one": {},
    "in parallel": {"map": {"parallel": 2}, "prefetch": 2},
    "ahead": {"vectorize": True, "prefetch": 2},
    "rewritten": {"graph_rewrites": True, "map": {"parallel": "auto"}},
}


def indexed(stored, kind="arrays", shuffle=GLOBAL, **more):
    options = {"augment": AUGMENT, **more}
    return pipeline(stored, kind, read="indexed_shards", shuffle=shuffle, **options)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("arrays", "whole batches"),
        ("photos", "whole batches"),
        ("photos", "one by one"),
        ("arrays", "in parallel"),
        ("arrays", "rewritten"),
    ],
)
def test_the_batches_are_those_of_the_snapshot_from_any_step(stored, kind, name):
    snapshot = pipeline(stored, kind, augment=AUGMENT, read="snapshot", shuffle=GLOBAL)
    found = indexed(stored, kind, **CONFIGS[name])
    assert isinstance(snapshot.reader, SnapshotReader)
    assert snapshot.reader.order == found.indexed_shards.order
    assert found.plan.seekable and not found.plan.reads_snapshot
    expected = batches(snapshot, epochs=2)
    assert same(batches(found, epochs=2), expected)
    for step in (1, found.steps_per_epoch):
        assert same(batches(found, first_step=step, epochs=2), expected[step:]), step
        assert found.dataset(first_step=step, epochs=2).cardinality() == len(expected) - step


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        {"shuffle": {"kind": "window", "size": 32}},
        {"shuffle": GLOBAL, "sampling": "balanced"},
    ],
)
def test_every_order_and_sampling_is_that_of_the_snapshot(stored, config):
    snapshot = pipeline(stored, augment=AUGMENT, read="snapshot", **config)
    found = indexed(stored, vectorize=True, **config)
    assert same(batches(found, epochs=2), batches(snapshot, epochs=2))


def test_every_iteration_is_the_next_epoch_where_that_is_asked_for(stored):
    pipe = indexed(stored, vectorize=True)
    dataset = pipe.epoch_by_epoch()
    assert same([*dataset, *dataset], batches(pipe, epochs=2))


@pytest.mark.slow
def test_workers_get_the_slices_that_they_get_of_the_snapshot(stored):
    for index in (0, 2):
        worker = TrainingWorker(index=index, count=3)
        found, expected = (
            batches(
                pipeline(
                    stored, augment=AUGMENT, worker=worker, batch_size=9, read=read, shuffle=GLOBAL
                ),
                epochs=2,
            )
            for read in ("indexed_shards", "snapshot")
        )
        assert same(found, expected)


def test_photos_of_variable_size_are_cropped_one_by_one(stored):
    crop = (RandomCrop(height=9, width=11), Flip())
    snapshot = pipeline(stored, "photos", augment=crop, read="snapshot", shuffle=GLOBAL)
    found = indexed(stored, "photos", augment=crop, vectorize=True)
    assert same(batches(found), batches(snapshot))


def test_a_plan_prints_in_which_order_records_are_read(stored):
    assert str(indexed(stored, **CONFIGS["ahead"]).plan) == (
        "read:indexed_shards[global shuffle,16] → map:parse+decode+flip+brightness+rescale →"
        " prefetch[2]"
    )
    assert str(pipeline(stored, "photos", **PRESETS["shards_global"]).plan).startswith(
        "read:indexed_shards[global shuffle][cores] → map:parse+decode+"
    )


def test_a_damaged_record_is_named_by_its_shard(stored, arrays, tmp_path):
    shutil.copytree(arrays / "shards", tmp_path / "shards")
    data = replace(stored["arrays"], shards_folder=tmp_path / "shards")
    shard = data.shards.for_split("train")[0]
    flip_bit(tmp_path / "shards" / shard.name, 60)
    damaged = indexed({"arrays": data}, vectorize=True)
    with (
        pytest.raises(CorruptShard, match=rf"{shard.name}: record 0 at byte 0: the checksum"),
        explain_read_errors(data),
    ):
        batches(damaged)


def test_without_uncompressed_shards_it_is_said(stored):
    data = stored["arrays"]
    packed = tuple(replace(shard, compression="gzip") for shard in data.shards.shards)
    reader = indexed(
        {"arrays": replace(data, shards=replace(data.shards, shards=packed))}
    ).indexed_shards
    assert isinstance(reader, IndexedShardReader)
    with pytest.raises(MissingInput, match=r"holds no uncompressed shards; set shard\.compression"):
        np.asarray(reader.table)
