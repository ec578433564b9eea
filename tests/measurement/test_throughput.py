"""Throughput counts examples, leaves start-up out, and gives a cache its whole epoch."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import tensorflow as tf

from throughline.measurement.throughput import join_slices, measure_input
from throughline.results.build import InputThroughput
from throughline.shared.errors import EmptyDataset

pytestmark = pytest.mark.integration

BATCH_S, GAP_S = 0.02, 0.5


@dataclass
class Input:
    """Something that iterates like an input pipeline, in virtual time: `count` batches of 10
    examples an epoch. Each takes `BATCH_S` unless it is in a cache, and an epoch `GAP_S` to begin.
    """

    count: int
    caches: bool = False
    split: str = "train"
    now_s: float = 0.0

    @property
    def plan(self):
        return self

    @property
    def steps_per_epoch(self):
        return max(1, self.count)

    def batches(self, *, epochs):
        batch = tf.zeros((10, 2)), tf.zeros((10,), tf.int64)
        for epoch in range(epochs):
            self.now_s += GAP_S
            for _ in range(self.count):
                self.now_s += BATCH_S / 10 if epoch and self.caches else BATCH_S
                yield batch

    def measured(self, *, passes, max_seconds):
        return measure_input(self, passes=passes, max_seconds=max_seconds, clock=lambda: self.now_s)


def test_the_rate_is_that_of_the_examples_after_the_first_batch():
    result = Input(20).measured(passes=2, max_seconds=5)
    assert result.input_examples_per_s == pytest.approx(10 / BATCH_S)
    assert result.first_batch_s == pytest.approx(GAP_S + BATCH_S)
    assert result.epoch_gap_s == pytest.approx(GAP_S + BATCH_S)
    assert result.passes == 2


def test_a_cache_is_filled_before_warm_passes_are_timed():
    result = Input(20, caches=True).measured(passes=3, max_seconds=0.1)
    assert result.cold_examples_per_s == pytest.approx(10 / BATCH_S)
    assert result.input_examples_per_s == pytest.approx(100 / BATCH_S)
    assert result.input_examples_per_s_range == pytest.approx((100 / BATCH_S, 100 / BATCH_S))


def test_a_pass_that_was_cut_short_says_nothing_about_the_gap():
    result = Input(50).measured(passes=2, max_seconds=0.1)
    assert result.epoch_gap_s is None
    assert result.passes == 2, "the second goes on where the first was cut"


def test_an_empty_data_set_is_reported():
    with pytest.raises(EmptyDataset, match="train split of this configuration delivers no batch"):
        Input(0).measured(passes=1, max_seconds=1)


def test_processes_deliver_together_as_often_what_the_slowest_does():
    def rates(mean, low, high, cold, first, gap):
        return InputThroughput(
            input_examples_per_s=mean, input_examples_per_s_range=(low, high), passes=3,
            cold_examples_per_s=cold, first_batch_s=first, epoch_gap_s=gap,
        )  # fmt: skip

    fast = rates(90.0, 80.0, 95.0, 20.0, 0.5, None)
    slow = rates(50.0, 40.0, 60.0, 30.0, 0.25, 0.1)
    assert join_slices([fast, slow]) == rates(100.0, 80.0, 120.0, 40.0, 0.5, 0.1)
    assert join_slices([fast]) == fast
