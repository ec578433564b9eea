"""Orders and batches by length as functions of (seed, epoch, step), and one epoch after another."""

import doctest
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.support.lanes import slow_but_first
from tests.support.small_pipelines import CONFIGS, are_permutations, batches, pipeline, same
from throughline.pipelines.input_pipeline import split_by_epochs
from throughline.pipelines.order import length_batches, packed_batches, samplers
from throughline.pipelines.order.epoch_order import EpochOrder
from throughline.pipelines.order.length_batches import LengthBatches, make_buckets, sizes_for_tokens
from throughline.pipelines.order.packed_batches import NO_DOCUMENT, PackedBatches, plan_packs
from throughline.plan.augmentations import Brightness, Flip
from throughline.plan.training_workers import TrainingWorker
from throughline.settings import ShuffleSettings
from throughline.shared.errors import ImpossiblePlan

pytestmark = pytest.mark.integration

SEEDS = st.integers(0, 1000)


def positions(count):
    return tf.range(count, dtype=tf.int64)


def epochs(count, epoch):
    return tf.fill([count], tf.constant(epoch, tf.int64))


@pytest.mark.parametrize("module", [samplers, length_batches, packed_batches])
def test_the_worked_examples_are_true(module):
    done = doctest.testmod(module)
    assert done.failed == 0 and done.attempted >= 2


@settings(max_examples=20)
@given(count=st.integers(1, 3000), window=st.integers(1, 4000), seed=SEEDS, epoch=SEEDS)
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
@given(lanes=st.integers(2, 12), each=st.integers(1, 4), more=st.integers(0, 400), seed=SEEDS)
def test_every_batch_has_as_many_rows_of_each_lane_and_none_comes_twice(lanes, each, more, seed):
    count, batch_size = lanes + more, lanes * each
    order = {"count": count, "lanes": lanes, "batch_size": batch_size, "seed": seed}
    places, epoch = positions(count - count % lanes), tf.constant(2, tf.int64)
    rows = samplers.lane_shuffle(places, **order, epoch=epoch).numpy()
    assert len(set(rows)) == len(rows)
    begins = np.arange(lanes) * count // lanes
    for start in range(0, len(rows), batch_size):
        of_batch = np.searchsorted(begins, rows[start : start + batch_size], side="right") - 1
        assert len(set(np.bincount(of_batch, minlength=lanes))) == 1


def lane_order(count, index=0, *, of=1):
    shuffle, worker = ShuffleSettings(kind="lanes", lanes=4), TrainingWorker(index=index, count=of)
    return EpochOrder(count=count, batch_size=16, shuffle=shuffle, seed=5, worker=worker)


def rows_by_step(order, epochs=2):
    """The rows of every step."""
    steps = positions(epochs * order.steps_per_epoch)
    sizes = order.size(steps).numpy()
    return [rows[:size] for rows, size in zip(order.rows(steps).numpy(), sizes, strict=True)]


@pytest.mark.parametrize(("count", "processes"), [(64, 2), (101, 4)])
def test_processes_read_their_own_regions_and_together_what_one_reads(count, processes):
    shared = [lane_order(count, index, of=processes) for index in range(processes)]
    regions = [each.region for each in shared]
    assert [row for region in regions for row in range(*region)] == list(range(count))
    steps = zip(*map(rows_by_step, shared), strict=True)
    for slices, whole in zip(steps, rows_by_step(lane_order(count)), strict=True):
        assert np.concatenate(slices).tolist() == whole.tolist()
        for (first, stop), rows in zip(regions, slices, strict=True):
            assert ((first <= rows) & (rows < stop)).all()


def test_what_is_left_out_differs_from_epoch_to_epoch():
    def by_length(worker):
        return in_buckets([1] * 102 + [10], [1, 10], [4, 4], worker=worker)

    workers = [TrainingWorker(index=index, count=4) for index in range(4)]
    for orders in ([lane_order(103)], [by_length(worker) for worker in workers]):
        every = [np.concatenate(rows_by_step(each, 8)).reshape(8, -1) for each in orders]
        left = {frozenset(range(103)) - {*rows} for rows in np.hstack(every).tolist()}
        assert {len(rows) for rows in left} == {3} and len(left) > 4
    assert not any(102 in rows for rows in left), "a long one shares its batch with short ones"


def in_buckets(lengths, boundaries, sizes, *, worker=TrainingWorker(), shuffled=True):  # noqa: B008
    buckets = make_buckets(np.asarray(lengths), boundaries, sizes, workers=worker.count)
    return LengthBatches(buckets=buckets, seed=5, worker=worker, shuffled=shuffled)


def packed(lengths, room, *, size=2, worker=TrainingWorker(), shuffled=True):  # noqa: B008
    plan = plan_packs(np.asarray(lengths), room)
    order = EpochOrder(
        count=plan.count_rows(worker.count),
        batch_size=size,
        shuffle=ShuffleSettings(kind="global" if shuffled else "none"),
        seed=5,
        worker=worker,
    )
    return PackedBatches(plan=plan, order=order, segments=plan.most_segments)


def rows_of(order, epoch):
    """The rows of each step of an epoch, or the documents of packed rows, without what fills up."""
    found = rows_by_step(order, epoch + 1)[epoch * order.steps_per_epoch :]
    if isinstance(order, LengthBatches):
        return [rows.tolist() for rows in found]
    return [[[one for one in row if one != NO_DOCUMENT] for row in rows] for rows in found]


def of_workers(make, count, epoch):
    """The rows of each step of an epoch for each of so many workers."""
    return [rows_of(make(TrainingWorker(index=one, count=count)), epoch) for one in range(count)]


@pytest.mark.parametrize(
    ("make", "arguments", "first", "second"),
    [
        (in_buckets, ([3, 9, 4, 1, 12, 2, 2, 7, 16, 5, 4, 8], [4, 8, 16], [2, 2, 2]),
         [[3, 2], [1], [11, 7], [9], [8, 4], [10, 0], [5, 6]],
         [[0, 10], [2, 5], [9, 7], [6, 3], [1], [8, 4], [11]]),
        (packed, ([3, 9, 4, 1, 8, 2, 2, 7, 10, 5, 4, 3], 10),
         [[[1, 3], [9, 10]], [[4, 5], [8]], [[7, 11], [2, 0, 6]]],
         [[[7, 11], [10, 0, 5]], [[9, 2], [4, 6]], [[1, 3], [8]]]),
    ],
)  # fmt: skip
def test_the_batches_of_two_epochs_are_pinned_wherever_they_are_entered(
    make, arguments, first, second
):
    order = make(*arguments)
    steps = positions(2 * order.steps_per_epoch)
    assert (rows_of(order, 0), rows_of(order, 1)) == (first, second)
    if make == in_buckets:
        assert order.length(steps[:7]).numpy().tolist() == [4, 16, 8, 8, 16, 4, 4]
    alone = [order.rows(steps[step : step + 1])[0] for step in range(len(steps))]
    assert np.array_equal(alone, order.rows(steps))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bucket", "pack"])
@settings(max_examples=30)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=100),
    boundaries=st.sets(st.integers(1, 39), max_size=4).map(lambda some: [*sorted(some), 40]),
    each=st.integers(1, 4),
    workers=st.integers(1, 4),
    epoch=st.integers(0, 3),
    shuffled=st.booleans(),
)
def test_every_example_comes_once_in_an_epoch(
    kind, lengths, boundaries, each, workers, epoch, shuffled
):
    def make(worker):
        more, size = {"worker": worker, "shuffled": shuffled}, each * workers
        if kind == "pack":
            return packed(lengths, 40, size=size, **more)
        order = in_buckets(lengths, boundaries, [size] * len(boundaries), **more)
        steps = positions(order.steps_per_epoch) + epoch * order.steps_per_epoch
        for rows, length in zip(rows_of(order, epoch), order.length(steps).numpy(), strict=True):
            fitting = [one for one in boundaries if one >= max(lengths[row] for row in rows)]
            assert length in fitting[: 1 if workers == 1 else None], "hosts share what is left"
        return order

    assume(kind == "pack" or len(lengths) >= workers)
    shares = of_workers(make, workers, epoch)
    for parts in zip(*shares, strict=True):
        assert len({len(rows) for rows in parts}) == 1 and parts[0], "equal slices"
    rows = [row for share in shares for step in share for row in step]
    if kind == "pack":
        assert all(sum(lengths[one] for one in row) <= 40 for row in rows)
        assert sorted(one for row in rows for one in row) == list(range(len(lengths)))
    else:
        assert len(rows) == len({*rows}) == len(lengths) // workers * workers


def test_batches_of_so_many_tokens_hold_more_of_what_is_short():
    assert sizes_for_tokens(8192, [64, 128, 512]) == [128, 64, 16]
    assert sizes_for_tokens(1000, [64, 300], workers=2) == [14, 2]
    with pytest.raises(ImpossiblePlan, match="at least 1,024, or cut the documents"):
        sizes_for_tokens(1000, [64, 512], workers=2)


@pytest.mark.parametrize("count", slow_but_first([4, 2]))
def test_joined_slices_are_one_process_batches_whatever_their_number(count):
    lengths, boundaries = np.random.default_rng(0).integers(1, 40, 203), [8, 16, 40]
    sizes = sizes_for_tokens(400, boundaries, workers=4)
    buckets = make_buckets(lengths, boundaries, sizes, workers=4)

    def of(worker):
        worker = replace(worker, batch_multiple=4)
        return LengthBatches(buckets=buckets, seed=5, worker=worker, shuffled=True)

    (alone,) = of_workers(of, 1, 1)
    assert sum(map(len, alone)) == 200 and {len(rows) % 4 for rows in alone} == {0}
    slices = zip(*of_workers(of, count, 1), strict=True)
    assert [[row for part in step for row in part] for step in slices] == alone


def one_by_one(lengths, room):
    """What is left of each row by best-fit decreasing as it is defined, a document at a time."""
    free = []
    for length in sorted(lengths, reverse=True):
        fitting = [row for row, left in enumerate(free) if left >= length]
        if fitting:
            free[min(fitting, key=lambda row: free[row])] -= length
        else:
            free.append(room - length)
    return free


@settings(max_examples=60)
@given(lengths=st.lists(st.integers(0, 30), min_size=1, max_size=80), room=st.integers(30, 50))
def test_lengths_dealt_at_once_fill_rows_as_documents_dealt_one_by_one(lengths, room):
    plan = plan_packs(np.array(lengths), room)
    held = [max(1, length) for length in lengths]
    rows = np.split(plan.lengths, plan.starts[1:-1])
    assert sorted(room - row.sum() for row in rows) == sorted(one_by_one(held, room))
    assert plan.most_segments == max(map(len, rows))
    slots = plan.documents[plan.firsts[plan.lengths] + plan.ranks]
    assert sorted(slots) == list(range(len(lengths))), "each has one slot of its length"
    assert [held[document] for document in slots] == plan.lengths.tolist()


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        ({}, ["", "read:shuffled shards → shuffle[auto] → map:parse+decode+flip → batch[16]", ""]),
        ({"read": "files", "prefetch": 2},
         ["read:files", "shuffle[auto] → map:load+decode+flip → batch[16]", "prefetch[2]"]),
        ({"cache": {"after": "decode"}, "prefetch": "auto"},
         ["read:shuffled shards → map:parse+decode → cache:memory",
          "shuffle[auto] → map:flip → batch[16]", "prefetch[auto]"]),
    ],
    ids=["shards", "files", "cached shards"],
)  # fmt: skip
def test_sources_and_caches_are_opened_once_for_all_epochs(stored, config, parts):
    plan = pipeline(stored, augment=(Flip(),), postprocess=(), **config).plan
    assert [" → ".join(map(str, part)) for part in split_by_epochs(plan)] == parts


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
