"""Uncompressed shards in any order: the same batches as the snapshot's, from any step, on any
number of workers.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from lanes import mostly, slow_but_first
from small_pipelines import PRESETS, batches, pipeline, same

from throughline.assembly.inputs import explain_read_errors
from throughline.measurement.draws import check_epoch
from throughline.pipelines.order.epoch_order import EpochOrder
from throughline.pipelines.read.indexed_shard_reader import IndexedShardReader
from throughline.pipelines.read.snapshot_reader import SnapshotReader
from throughline.plan.augmentations import Brightness, Flip, RandomCrop
from throughline.plan.plan import make_plan
from throughline.plan.training_workers import TrainingWorker
from throughline.settings import PipelineConfig, ShuffleSettings
from throughline.shared.errors import CorruptShard, MissingInput

pytestmark = pytest.mark.integration

AUGMENT = (Flip(), Brightness())
GLOBAL = {"kind": "global"}
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


@pytest.mark.parametrize("kind", slow_but_first(["arrays", "photos"]))
@pytest.mark.parametrize("name", mostly(list(CONFIGS), quick=("whole batches",)))
def test_the_batches_are_those_of_the_snapshot(stored, kind, name):
    snapshot = pipeline(stored, kind, augment=AUGMENT, read="snapshot", shuffle=GLOBAL)
    found = indexed(stored, kind, **CONFIGS[name])
    assert isinstance(snapshot.reader, SnapshotReader)
    assert snapshot.reader.order == found.indexed_shards.order
    assert found.plan.seekable and not found.plan.reads_snapshot
    assert same(batches(found, epochs=3), batches(snapshot, epochs=3))


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        {"shuffle": {"kind": "none"}},
        {"shuffle": {"kind": "window", "size": 32}},
        {"shuffle": GLOBAL, "sampling": "balanced"},
        {"shuffle": GLOBAL, "sampling": {"0": 5}},
    ],
)
def test_every_order_and_sampling_is_that_of_the_snapshot(stored, config):
    snapshot = pipeline(stored, augment=AUGMENT, read="snapshot", **config)
    found = indexed(stored, vectorize=True, **config)
    assert same(batches(found, epochs=2), batches(snapshot, epochs=2))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["whole batches", "in parallel"])
def test_starting_at_any_step_gives_the_same_rest(stored, name):
    pipe = indexed(stored, **CONFIGS[name])
    whole = batches(pipe, epochs=2)
    for step in (1, pipe.steps_per_epoch, pipe.steps_per_epoch + 3):
        assert same(whole[step:], batches(pipe, first_step=step, epochs=2)), step
        assert pipe.dataset(first_step=step, epochs=2).cardinality() == len(whole) - step


@pytest.mark.integration
@pytest.mark.parametrize("name", ["whole batches", "one by one"])
def test_every_iteration_is_the_next_epoch_where_that_is_asked_for(stored, name):
    expected = batches(indexed(stored, **CONFIGS[name]), epochs=2)
    dataset = indexed(stored, **CONFIGS[name]).epoch_by_epoch()
    found = [(image.numpy(), label.numpy()) for image, label in [*dataset, *dataset]]
    assert same(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "workers", "batch_size"), [("whole batches", 2, 14), ("one by one", 3, 9)]
)
def test_workers_get_the_slices_that_they_get_of_the_snapshot(stored, name, workers, batch_size):
    def of(index, **config):
        made = pipeline(
            stored, worker=TrainingWorker(index=index, count=workers), augment=AUGMENT, **config
        )
        plan = make_plan(PipelineConfig(**config), replace(made.plan.spec, batch_size=batch_size))
        return batches(replace(made, plan=plan), epochs=2)

    for index in range(workers):
        records = of(index, read="indexed_shards", shuffle=GLOBAL, **CONFIGS[name])
        assert same(records, of(index, read="snapshot", shuffle=GLOBAL))


def test_photos_of_variable_size_are_cropped_one_by_one(stored):
    crop = (RandomCrop(height=9, width=11), Flip())
    snapshot = pipeline(stored, "photos", augment=crop, read="snapshot", shuffle=GLOBAL)
    found = indexed(stored, "photos", augment=crop, vectorize=True)
    assert same(batches(found), batches(snapshot))


def test_an_epoch_draws_every_example_once(stored):
    draws, rows = check_epoch(indexed(stored, **CONFIGS["whole batches"]))
    assert (draws.distinct, draws.most_often) == (draws.examples, 1)
    assert sorted(rows.tolist()) == list(range(draws.examples))


def test_a_plan_prints_in_which_order_records_are_read(stored):
    assert str(indexed(stored, **CONFIGS["ahead"]).plan) == (
        "read:indexed_shards[global shuffle,16] → map:parse+decode+flip+brightness+rescale →"
        " prefetch[2]"
    )
    assert str(pipeline(stored, "photos", **PRESETS["shards_global"]).plan).startswith(
        "read:indexed_shards[global shuffle][cores] → map:parse+decode+"
    )


def test_hosts_share_the_order_of_an_epoch():
    workers = [
        EpochOrder(
            count=10,
            batch_size=4,
            shuffle=ShuffleSettings(kind="global"),
            seed=5,
            worker=TrainingWorker(index=index, count=2),
        )
        for index in range(2)
    ]
    assert {(order.examples, order.steps_per_epoch) for order in workers} == {(10, 3)}
    steps = tf.range(3, 6, dtype=tf.int64)  # the second epoch
    parts = [
        [
            order.trim(rows, step).numpy().tolist()
            for rows, step in zip(order.rows(steps), steps, strict=True)
        ]
        for order in workers
    ]
    assert [list(map(len, part)) for part in parts] == [[2, 2, 1], [2, 2, 1]]
    assert sorted(row for part in parts for rows in part for row in rows) == list(range(10))


def test_a_damaged_record_is_named_by_its_shard(stored, arrays, tmp_path):
    folder = tmp_path / "shards"
    folder.mkdir()
    for path in (arrays / "shards").glob("*"):
        (folder / path.name).symlink_to(path)
    data = replace(stored["arrays"], shards_folder=folder)
    shard = data.shards.for_split("train")[0]
    content = bytearray((folder / shard.name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / shard.name).unlink()
    (folder / shard.name).write_bytes(content)
    damaged = indexed({"arrays": data}, vectorize=True)
    with (
        pytest.raises(CorruptShard, match=rf"{shard.name}: record \d+ at byte \d+: the checksum"),
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
