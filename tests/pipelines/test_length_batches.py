"""Batches by length are pure functions of (seed, epoch, step): every example once, on any number of
workers, from any step on, and no example is padded further than it must be.
"""

from __future__ import annotations

import doctest

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from throughline.pipelines.order import length_batches
from throughline.pipelines.order.length_batches import LengthBatches, make_buckets, sizes_for_tokens
from throughline.plan.training_workers import TrainingWorker
from throughline.shared.errors import ImpossiblePlan

pytestmark = pytest.mark.integration

PINNED = (
    [[3, 2], [1], [11, 7], [9], [8, 4], [10, 0], [5, 6]],
    [[0, 10], [2, 5], [9, 7], [6, 3], [1], [8, 4], [11]],
)
PINNED_LENGTHS = [4, 16, 8, 8, 16, 4, 4]
LENGTHS = np.array([3, 9, 4, 1, 12, 2, 2, 7, 16, 5, 4, 8])


def batches_of(lengths, boundaries, sizes, *, worker=TrainingWorker(), shuffled=True):  # noqa: B008
    buckets = make_buckets(np.asarray(lengths), boundaries, sizes, workers=worker.count)
    return LengthBatches(buckets=buckets, seed=5, worker=worker, shuffled=shuffled)


def steps_of(batches, epoch):
    return tf.range(
        epoch * batches.steps_per_epoch, (epoch + 1) * batches.steps_per_epoch, dtype=tf.int64
    )


def rows_of(batches, epoch):
    """The rows of each step of an epoch, without what only fills up."""
    steps = steps_of(batches, epoch)
    return [
        rows[:size].tolist()
        for rows, size in zip(batches.rows(steps).numpy(), batches.size(steps).numpy(), strict=True)
    ]


def test_the_worked_examples_are_true():
    done = doctest.testmod(length_batches)
    assert done.failed == 0 and done.attempted >= 2


def test_the_batches_of_two_epochs_are_pinned():
    batches = batches_of(LENGTHS, [4, 8, 16], [2, 2, 2])
    assert rows_of(batches, 0) == PINNED[0]
    assert rows_of(batches, 1) == PINNED[1]
    assert batches.length(steps_of(batches, 0)).numpy().tolist() == PINNED_LENGTHS


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=120),
    boundaries=st.sets(st.integers(1, 39), max_size=4),
    size=st.integers(1, 5),
    workers=st.integers(1, 4),
    epoch=st.integers(0, 3),
    shuffled=st.booleans(),
)
def test_every_example_comes_once_in_an_epoch(lengths, boundaries, size, workers, epoch, shuffled):
    assume(len(lengths) >= workers)
    boundaries = [*sorted(boundaries), 40]
    shares = []
    for index in range(workers):
        batches = batches_of(
            lengths,
            boundaries,
            [size * workers] * len(boundaries),
            worker=TrainingWorker(index=index, count=workers),
            shuffled=shuffled,
        )
        shares.append(rows_of(batches, epoch))
        longest = batches.length(steps_of(batches, epoch)).numpy()
        for rows, length in zip(shares[-1], longest, strict=True):
            assert rows and max(lengths[row] for row in rows) <= length
    for parts in zip(*shares, strict=True):
        assert len({len(rows) for rows in parts}) == 1, "equal slices"
    drawn = [row for share in shares for rows in share for row in rows]
    assert (
        len(drawn) == len(set(drawn)) == len(lengths) - len(lengths) % workers == batches.examples
    )


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(lengths=st.lists(st.integers(0, 40), min_size=1, max_size=120), size=st.integers(1, 7))
def test_no_example_is_padded_further_than_to_its_boundary(lengths, size):
    boundaries = [5, 13, 40]
    batches = batches_of(lengths, boundaries, [size] * 3)
    padded = batches.length(steps_of(batches, 0)).numpy()
    for rows, length in zip(rows_of(batches, 0), padded, strict=True):
        for row in rows:
            assert length == min(bound for bound in boundaries if bound >= lengths[row])


def test_a_step_is_the_same_wherever_the_epoch_is_entered():
    batches = batches_of(LENGTHS, [4, 8, 16], [2, 3, 2])
    together = batches.rows(tf.range(3 * batches.steps_per_epoch, dtype=tf.int64)).numpy()
    for step in range(3 * batches.steps_per_epoch):
        assert np.array_equal(batches.rows(tf.constant([step], tf.int64))[0], together[step])


def test_epochs_differ_in_partners_and_order_and_have_the_same_shapes():
    lengths = np.random.default_rng(1).integers(1, 60, 500)
    batches = batches_of(lengths, [16, 32, 60], [32, 16, 8])
    epochs = [rows_of(batches, epoch) for epoch in range(2)]
    assert {frozenset(rows) for rows in epochs[0]}.isdisjoint(map(frozenset, epochs[1]))
    shapes = [
        sorted(
            (len(rows), int(length))
            for rows, length in zip(
                rows_of(batches, epoch), batches.length(steps_of(batches, epoch)), strict=True
            )
        )
        for epoch in range(2)
    ]
    assert shapes[0] == shapes[1]
    lengths_in_order = batches.length(steps_of(batches, 0)).numpy()
    assert len(set(lengths_in_order[:10])) > 1, "the batches of all buckets are mixed"


@pytest.mark.slow
def test_what_hosts_cannot_share_is_of_the_largest_bucket_and_changes():
    lengths = [1] * 21 + [10]
    left_out = set()
    for epoch in range(6):
        drawn = set()
        for index in range(4):
            batches = batches_of(
                lengths, [1, 10], [4, 4], worker=TrainingWorker(index=index, count=4), shuffled=True
            )
            drawn |= {row for rows in rows_of(batches, epoch) for row in rows}
        left_out |= set(range(22)) - drawn
        assert len(drawn) == 20 and 21 in drawn, "the long one shares its batch with short ones"
    assert len(left_out) > 4


def test_batches_of_so_many_tokens_hold_more_of_what_is_short():
    assert sizes_for_tokens(8192, [64, 128, 512]) == [128, 64, 16]
    assert sizes_for_tokens(1000, [64, 300], workers=2) == [14, 2]
    with pytest.raises(ImpossiblePlan, match="at least 1,024, or cut the documents"):
        sizes_for_tokens(1000, [64, 512], workers=2)


def test_every_example_is_in_a_bucket_that_is_drawn_from():
    draw = np.random.default_rng(0)
    for examples in [*range(8, 60), *range(8, 60)]:
        lengths = draw.choice([3, 6, 12], examples, p=draw.dirichlet([1, 1, 1]))
        buckets = make_buckets(lengths, [4, 8, 16], [8, 8, 8], workers=8)
        assert buckets.counts.sum() == examples and (buckets.used > 0).all()
        assert buckets.used.sum() == examples // 8 * 8 and (buckets.used % 8 == 0).all()
        for start, count, boundary in zip(
            buckets.starts, buckets.counts, buckets.boundaries, strict=True
        ):
            assert (lengths[buckets.rows[start : start + count]] <= boundary).all()


@pytest.mark.parametrize("tokens", [None, 400], ids=["batch_size", "tokens"])
def test_joined_slices_are_one_process_batches_whatever_their_number(tokens):
    lengths = np.random.default_rng(0).integers(1, 40, 203)
    boundaries = [8, 16, 40]
    sizes = sizes_for_tokens(tokens, boundaries, workers=4) if tokens else [12] * len(boundaries)
    buckets = make_buckets(lengths, boundaries, sizes, workers=4)

    def of(index, count):
        worker = TrainingWorker(index=index, count=count, batch_multiple=4)
        batches = LengthBatches(buckets=buckets, seed=5, worker=worker, shuffled=True)
        return [*rows_of(batches, 0), *rows_of(batches, 1)]

    alone = of(0, 1)
    assert sum(map(len, alone)) == 2 * 200 and {len(rows) % 4 for rows in alone} == {0}
    for count in (2, 4):
        slices = zip(*[of(index, count) for index in range(count)], strict=True)
        assert [[row for part in step for row in part] for step in slices] == alone
