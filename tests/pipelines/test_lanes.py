"""A shuffle of lanes: every batch takes as many rows of each part, and a process reads its own
parts alone.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.project import SMALL
from tests.support.small_pipelines import batches, pipeline, same
from throughline.config.params import check
from throughline.pipelines.order.epoch_order import EpochOrder
from throughline.pipelines.order.samplers import lane_shuffle
from throughline.plan.augmentations import Brightness, Flip
from throughline.plan.training_workers import TrainingWorker
from throughline.settings import ShuffleSettings
from throughline.shared.errors import ImpossiblePlan, InvalidParams

LANES = {"kind": "lanes", "lanes": 4}


@settings(max_examples=20, deadline=None)
@given(
    lanes=st.integers(2, 12),
    each=st.integers(1, 4),
    more=st.integers(0, 400),
    seed=st.integers(0, 1000),
)
def test_every_batch_has_as_many_rows_of_each_lane_and_none_comes_twice(lanes, each, more, seed):
    count, batch_size = lanes + more, lanes * each
    positions = tf.range(count - count % lanes, dtype=tf.int64)
    rows = lane_shuffle(
        positions,
        count=count,
        lanes=lanes,
        batch_size=batch_size,
        seed=seed,
        epoch=tf.constant(2, tf.int64),
    ).numpy()
    assert len(set(rows)) == len(rows)
    begins = np.arange(lanes) * count // lanes
    for start in range(0, len(rows), batch_size):
        of_batch = np.searchsorted(begins, rows[start : start + batch_size], side="right")
        assert len(set(np.bincount(of_batch, minlength=lanes + 1)[1:])) == 1


def order(count, index=0, *, of=1, lanes=4):
    return EpochOrder(
        count=count,
        batch_size=16,
        shuffle=ShuffleSettings(kind="lanes", lanes=lanes),
        seed=5,
        worker=TrainingWorker(index=index, count=of),
    )


def rows_by_step(order, epochs=2):
    """The rows of every step."""
    steps = tf.range(epochs * order.steps_per_epoch, dtype=tf.int64)
    sizes = order.size(steps).numpy()
    return [rows[:size] for rows, size in zip(order.rows(steps).numpy(), sizes, strict=True)]


@pytest.mark.parametrize("count", [64, 101])
@pytest.mark.parametrize("processes", [1, 2, 4])
def test_processes_read_their_own_regions_and_together_what_one_reads(count, processes):
    shared = [order(count, index, of=processes) for index in range(processes)]
    regions = [each.region for each in shared]
    assert [row for region in regions for row in range(*region)] == list(range(count))
    of_each = [rows_by_step(each) for each in shared]
    for slices, whole in zip(zip(*of_each, strict=True), rows_by_step(order(count)), strict=True):
        assert np.concatenate(slices).tolist() == whole.tolist()
        for (first, stop), rows in zip(regions, slices, strict=True):
            assert ((first <= rows) & (rows < stop)).all()


def test_what_is_left_out_differs_from_epoch_to_epoch():
    each, epochs = order(103), 8
    assert each.examples == 100
    rows = np.concatenate(rows_by_step(each, epochs)).reshape(epochs, each.examples)
    left = {frozenset(range(103)) - set(of_epoch.tolist()) for of_epoch in rows}
    assert all(len(rows) == 3 for rows in left) and len(left) > 4


@pytest.mark.integration
def test_the_snapshot_and_indexed_shards_give_the_same_batches_from_any_step(stored):
    snapshot, records = (
        pipeline(stored, augment=(Flip(), Brightness()), read=read, shuffle=LANES)
        for read in ("snapshot", "indexed_shards")
    )
    whole = batches(snapshot, epochs=2)
    assert same(batches(records, epochs=2), whole)
    for step in (1, snapshot.steps_per_epoch):
        assert same(batches(snapshot, first_step=step, epochs=2), whole[step:]), step
    assert "4 lanes" in str(snapshot.plan)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"read": "snapshot", "shuffle": {"kind": "lanes"}}, "how many parts are there"),
        (
            {"read": "snapshot", "shuffle": {"kind": "global", "lanes": 4}},
            "`kind: global` has none",
        ),
        ({"read": "shards", "shuffle": LANES}, "a permutation within lanes needs random access"),
        ({"read": "snapshot", "shuffle": {**LANES, "lanes": 5}}, "32, is no multiple of 5"),
        (
            {"read": "snapshot", "shuffle": LANES, "sampling": "balanced"},
            "sampling by class reorders the whole split",
        ),
    ],
)
def test_what_lanes_cannot_do_is_said_before_anything_runs(config, message):
    with pytest.raises(InvalidParams, match=message):
        check({**SMALL, "pipelines": {"own": config}})


def test_lanes_are_not_divided_among_processes():
    with pytest.raises(ImpossiblePlan, match=r"4 are no multiple of 3, .* use 6"):
        TrainingWorker(count=3).check(100, 12, lanes=4)
    with pytest.raises(ImpossiblePlan, match="fewer examples than 4"):
        TrainingWorker().check(0, 16, lanes=4)
