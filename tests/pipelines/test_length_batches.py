"""Batches by length, or packed, are pure functions of (seed, epoch, step)."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.support.lanes import slow_but_first
from throughline.pipelines.order.length_batches import LengthBatches, make_buckets, sizes_for_tokens
from throughline.pipelines.order.packed_batches import NO_DOCUMENT, PackedBatches, plan_packs
from throughline.plan.training_workers import TrainingWorker
from throughline.shared.errors import ImpossiblePlan

pytestmark = pytest.mark.integration

LENGTHS = {
    "bucket": np.array([3, 9, 4, 1, 12, 2, 2, 7, 16, 5, 4, 8]),
    "pack": np.array([3, 9, 4, 1, 8, 2, 2, 7, 10, 5, 4, 3]),
}
PINNED = {
    "bucket": (
        [[3, 2], [1], [11, 7], [9], [8, 4], [10, 0], [5, 6]],
        [[0, 10], [2, 5], [9, 7], [6, 3], [1], [8, 4], [11]],
    ),
    "pack": (
        [[[1, 3], [9, 10]], [[4, 5], [8]], [[7, 11], [2, 0, 6]]],
        [[[7, 11], [10, 0, 5]], [[9, 2], [4, 6]], [[1, 3], [8]]],
    ),
}


def in_buckets(lengths, boundaries, sizes, *, worker=TrainingWorker(), shuffled=True):  # noqa: B008
    buckets = make_buckets(np.asarray(lengths), boundaries, sizes, workers=worker.count)
    return LengthBatches(buckets=buckets, seed=5, worker=worker, shuffled=shuffled)


def packed(lengths, room, *, size=2, worker=TrainingWorker(), shuffled=True):  # noqa: B008
    plan = plan_packs(np.asarray(lengths), room)
    more = {"segments": plan.most_segments, "seed": 5, "worker": worker, "shuffled": shuffled}
    return PackedBatches(plan=plan, batch_size=size, **more)


def of_workers(make, count, epoch):
    """The rows of each step of an epoch for each of so many workers."""
    made = [make(TrainingWorker(index=index, count=count)) for index in range(count)]
    return [rows_of(batches, epoch) for batches in made]


def steps_of(batches, *epochs):
    steps = batches.steps_per_epoch
    return tf.range(epochs[0] * steps, (epochs[-1] + 1) * steps, dtype=tf.int64)


def rows_of(batches, epoch):
    """The rows of each step of an epoch, or the documents of packed rows, without what fills up."""
    steps = steps_of(batches, epoch)
    both = zip(batches.rows(steps).numpy(), batches.size(steps).numpy(), strict=True)
    found = [rows[:size].tolist() for rows, size in both]
    if isinstance(batches, LengthBatches):
        return found
    return [[[one for one in row if one != NO_DOCUMENT] for row in rows] for rows in found]


MAKERS = {
    "bucket": lambda lengths: in_buckets(lengths, [4, 8, 16], [2, 2, 2]),
    "pack": lambda lengths: packed(lengths, 10),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_the_batches_of_two_epochs_are_pinned_wherever_they_are_entered(kind):
    batches = MAKERS[kind](LENGTHS[kind])
    assert (rows_of(batches, 0), rows_of(batches, 1)) == PINNED[kind]
    if kind == "bucket":
        assert batches.length(steps_of(batches, 0)).numpy().tolist() == [4, 16, 8, 8, 16, 4, 4]
    together = batches.rows(steps_of(batches, 0, 1)).numpy()
    for step in (1, batches.steps_per_epoch, 2 * batches.steps_per_epoch - 1):
        assert np.array_equal(batches.rows(tf.constant([step], tf.int64))[0], together[step])


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKERS)
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
        batches = in_buckets(lengths, boundaries, [size] * len(boundaries), **more)
        longest = batches.length(steps_of(batches, epoch)).numpy()
        for rows, length in zip(rows_of(batches, epoch), longest, strict=True):
            fitting = [one for one in boundaries if one >= max(lengths[row] for row in rows)]
            assert length in fitting[: 1 if workers == 1 else None], "hosts share what is left"
        return batches

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


@pytest.mark.slow
def test_what_hosts_cannot_share_is_of_the_largest_bucket_and_changes():
    def make(worker):
        return in_buckets([1] * 21 + [10], [1, 10], [4, 4], worker=worker)

    left_out = set()
    for epoch in range(6):
        drawn = {row for share in of_workers(make, 4, epoch) for rows in share for row in rows}
        left_out |= set(range(22)) - drawn
        assert len(drawn) == 20 and 21 in drawn, "the long one shares its batch with short ones"
    assert len(left_out) > 4


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

    def of(index, count):
        worker = TrainingWorker(index=index, count=count, batch_multiple=4)
        batches = LengthBatches(buckets=buckets, seed=5, worker=worker, shuffled=True)
        return rows_of(batches, 1)

    alone = of(0, 1)
    assert sum(map(len, alone)) == 200 and {len(rows) % 4 for rows in alone} == {0}
    slices = zip(*[of(index, count) for index in range(count)], strict=True)
    assert [[row for part in step for row in part] for step in slices] == alone


def packs_of(plan):
    """The documents' lengths of each row."""
    return [part.tolist() for part in np.split(plan.lengths, plan.starts[1:-1])]


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


@settings(max_examples=50)
@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=80), room=st.integers(30, 50))
def test_lengths_dealt_at_once_fill_rows_as_documents_dealt_one_by_one(lengths, room):
    plan = plan_packs(np.array(lengths), room)
    assert sorted(room - sum(row) for row in packs_of(plan)) == sorted(one_by_one(lengths, room))


@settings(max_examples=30)
@given(lengths=st.lists(st.integers(0, 20), min_size=1, max_size=60))
def test_every_document_has_one_slot_of_its_length(lengths):
    plan = plan_packs(np.array(lengths), 20)
    slots = plan.documents[plan.firsts[plan.lengths] + plan.ranks]
    assert sorted(slots.tolist()) == list(range(len(lengths)))
    assert [max(1, lengths[document]) for document in slots] == plan.lengths.tolist()
    assert all(sum(row) <= 20 for row in packs_of(plan))
    assert plan.most_segments == max(map(len, packs_of(plan)))
