"""Samplers as functions on indices, and one epoch after another."""

import doctest

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.lanes import slow_but_first
from tests.support.small_pipelines import CONFIGS, are_permutations, batches, pipeline, same
from throughline.data.encodings.images import image_feature
from throughline.data.encodings.labels import labeled
from throughline.pipelines.input_pipeline import split_by_epochs
from throughline.pipelines.order import length_batches, packed_batches, samplers
from throughline.pipelines.order.epoch_order import EpochOrder
from throughline.plan.augmentations import Brightness, Flip
from throughline.plan.ops import Decode, Resize
from throughline.plan.plan import InputSpec, make_plan
from throughline.plan.training_workers import TrainingWorker
from throughline.settings import PipelineConfig, ShuffleSettings

pytestmark = pytest.mark.integration


def positions(count):
    return tf.range(count, dtype=tf.int64)


def epochs(count, epoch):
    return tf.fill([count], tf.constant(epoch, tf.int64))


@pytest.mark.parametrize("module", [samplers, length_batches, packed_batches])
def test_the_worked_examples_are_true(module):
    done = doctest.testmod(module)
    assert done.failed == 0 and done.attempted >= 2


@settings(max_examples=20)
@given(
    count=st.integers(1, 3000),
    window=st.integers(1, 4000),
    seed=st.integers(0, 1000),
    epoch=st.integers(0, 1000),
)
def test_shuffling_within_windows_is_a_bijection(count, window, seed, epoch):
    order = {"count": count, "window": min(window, count), "seed": seed}
    rows = samplers.window_shuffle(positions(count), **order, epoch=epochs(count, epoch))
    assert sorted(rows.numpy()) == list(range(count))


def test_a_window_reads_few_chunks():
    count, window = 64_000, 4000
    order = {"count": count, "window": window, "seed": 1}
    rows = samplers.window_shuffle(positions(count), **order, epoch=epochs(count, 2)).numpy()
    for start in range(0, count, window):
        chunks = np.unique(rows[start : start + window] // (window // 16))
        assert len(chunks) <= 2 * 17, "sixteen chunks, each at most across two of these boundaries"
    assert np.corrcoef(rows[:-1], rows[1:])[0, 1] < 0.8


@settings(max_examples=10)
@given(labels=st.lists(st.integers(0, 4), min_size=20, max_size=400), seed=st.integers(0, 99))
def test_classes_are_drawn_by_quota_and_their_examples_evenly(labels, seed):
    labels = np.asarray([*labels, *range(5)])
    index = samplers.index_by_class(labels, np.asarray([1.0, 1.0, 2.0, 0.0, 1.0]))
    count = len(labels)
    places, epoch = positions(count)[None], epochs(1, 1)[None]
    rows = samplers.sample_by_class(places, index=index, seed=seed, epoch=epoch).numpy()[0]
    drawn = np.bincount(labels[rows], minlength=5)
    assert np.all(abs(drawn - count * np.asarray([0.2, 0.2, 0.4, 0, 0.2])) <= 1)
    assert drawn[3] == 0, "what has no weight is not drawn"
    for label in (0, 1, 2, 4):  # whatever its quota
        times = np.bincount(rows, minlength=count)[labels == label]
        assert times.max() - times.min() <= 1, "none is drawn again before all were drawn once"


@pytest.mark.parametrize("count", [10, 54119])
def test_the_shuffle_is_a_good_one(count):
    """Places are uniform, neighbors uncorrelated; with the cipher's usual 4 rounds 54119 fails."""
    times = 2000 if count < 1000 else 40
    places, epoch = positions(count)[None], tf.range(times, dtype=tf.int64)[:, None]
    orders = samplers.permute(tf.tile(places, [times, 1]), count=count, seed=0, epoch=epoch).numpy()
    assert (np.sort(orders, axis=1) == np.arange(count)).all()
    bins = min(10, count)
    table = np.zeros((bins, bins))
    for order in orders:
        np.add.at(table, (np.arange(count) * bins // count, order * bins // count), 1)
    freedom = (bins - 1) ** 2
    chi_square = ((table - table.mean()) ** 2 / table.mean()).sum()
    assert chi_square < freedom + 5 * np.sqrt(2 * freedom)
    correlation = np.mean([np.corrcoef(order[:-1], order[1:])[0, 1] for order in orders])
    assert abs(correlation + 1 / (count - 1)) < 5 / np.sqrt(times * count)


@settings(max_examples=10)
@given(
    lanes=st.integers(2, 12),
    each=st.integers(1, 4),
    more=st.integers(0, 400),
    seed=st.integers(0, 1000),
)
def test_every_batch_has_as_many_rows_of_each_lane_and_none_comes_twice(lanes, each, more, seed):
    count, batch_size = lanes + more, lanes * each
    positions = tf.range(count - count % lanes, dtype=tf.int64)
    order = {"count": count, "lanes": lanes, "batch_size": batch_size, "seed": seed}
    rows = samplers.lane_shuffle(positions, **order, epoch=tf.constant(2, tf.int64)).numpy()
    assert len(set(rows)) == len(rows)
    begins = np.arange(lanes) * count // lanes
    for start in range(0, len(rows), batch_size):
        of_batch = np.searchsorted(begins, rows[start : start + batch_size], side="right")
        assert len(set(np.bincount(of_batch, minlength=lanes + 1)[1:])) == 1


def lane_order(count, index=0, *, of=1, lanes=4):
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


@pytest.mark.parametrize(("count", "processes"), [(64, 2), (101, 4)])
def test_processes_read_their_own_regions_and_together_what_one_reads(count, processes):
    shared = [lane_order(count, index, of=processes) for index in range(processes)]
    regions = [each.region for each in shared]
    assert [row for region in regions for row in range(*region)] == list(range(count))
    of_each = [rows_by_step(each) for each in shared]
    alone = rows_by_step(lane_order(count))
    for slices, whole in zip(zip(*of_each, strict=True), alone, strict=True):
        assert np.concatenate(slices).tolist() == whole.tolist()
        for (first, stop), rows in zip(regions, slices, strict=True):
            assert ((first <= rows) & (rows < stop)).all()


def test_what_is_left_out_differs_from_epoch_to_epoch():
    each, epochs = lane_order(103), 8
    assert each.examples == 100
    rows = np.concatenate(rows_by_step(each, epochs)).reshape(epochs, each.examples)
    left = {frozenset(range(103)) - set(of_epoch.tolist()) for of_epoch in rows}
    assert all(len(rows) == 3 for rows in left) and len(left) > 4


SPEC = InputSpec(
    schema=labeled(image_feature()),
    preprocess=(Decode(), Resize(height=8, width=8)),
    augment=(Flip(),),
    postprocess=(),
    batch_size=4,
)


@pytest.mark.parametrize(
    ("config", "once", "per_epoch", "after"),
    [
        ({}, "", "read:shuffled shards → shuffle[auto] → map:parse+decode+resize+flip → batch[4]",
         ""),
        ({"read": "files", "prefetch": 2}, "read:files",
         "shuffle[auto] → map:load+decode+resize+flip → batch[4]", "prefetch[2]"),
        ({"cache": {"after": "decode"}, "prefetch": "auto"},
         "read:shuffled shards → map:parse+decode → cache:memory",
         "shuffle[auto] → map:resize+flip → batch[4]", "prefetch[auto]"),
        ({"read": "files", "cache": {}}, "read:files → map:load+decode+resize → cache:memory",
         "shuffle[auto] → map:flip → batch[4]", ""),
    ],
    ids=["shards", "files", "cached shards", "cached files"],
)  # fmt: skip
def test_sources_and_caches_are_opened_once_for_all_epochs(config, once, per_epoch, after):
    parts = split_by_epochs(make_plan(PipelineConfig.model_validate(config), SPEC))
    assert [" → ".join(map(str, part)) for part in parts] == [once, per_epoch, after]


# Each begins its epochs in another way: with and without what is opened once, a cache, and an epoch
# that is opened early.
STREAMS = ["cache_memory", "naive", "shards_global", "save_load", "unordered", "balanced_stream"]
GATHERED = ["snapshot", "snapshot_window", "snapshot_part", "device_resident", "balanced"]


@pytest.mark.parametrize("name", [*slow_but_first(STREAMS), *slow_but_first(GATHERED)])
def test_every_epoch_is_another_permutation_and_any_can_be_started_from(stored, name):
    pipe = pipeline(stored, augment=(Flip(), Brightness()), with_keys=True, **CONFIGS[name])
    whole, steps = batches(pipe, epochs=2), pipe.steps_per_epoch
    if name not in {"balanced", "balanced_stream"}:
        assert are_permutations(pipe, whole)
    rest = batches(pipe, first_step=steps + 3, epochs=2)
    first = steps + 3 if pipe.plan.seekable else steps  # a stream begins with the epoch of a step
    assert len(rest) == len(whole) - first
    if pipe.plan.deterministic:
        assert same(rest, whole[first:])
    if name in GATHERED:
        assert pipe.plan.seekable and pipe.plan.deterministic
        gather = tf.function(pipe.gather_fn())
        assert same([gather(tf.constant(step, tf.int64)) for step in range(len(whole))], whole)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["naive", "snapshot", "cache_memory", "shards_global"])
def test_every_iteration_is_the_next_epoch_where_that_is_asked_for(stored, name):
    pipe = pipeline(stored, augment=(Flip(),), **CONFIGS[name])
    dataset = pipe.epoch_by_epoch()
    assert same([*dataset, *dataset.repeat(2)], batches(pipe, epochs=3))
