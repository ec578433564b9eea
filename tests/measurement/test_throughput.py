"""Throughput counts examples, leaves start-up out, and gives a cache its whole epoch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import tensorflow as tf

from throughline.measurement.throughput import join_slices, measure_input
from throughline.results.build import InputThroughput
from throughline.shared.errors import EmptyDataset


@dataclass
class Plan:
    caches: bool = False


@dataclass
class Slow:
    """Something that iterates like an input pipeline: `count` batches of 10 examples, each made in
    20 ms, kept if `caches`.
    """

    count: int
    plan: Plan = field(default_factory=Plan)
    split: str = "train"

    @property
    def steps_per_epoch(self):
        return max(1, self.count)

    def batches(self, *, epochs=1):
        def wait(number):
            return tf.numpy_function(
                lambda value: (__import__("time").sleep(0.02), value)[1], [number], tf.int64
            )

        made = tf.data.Dataset.range(self.count).map(wait)
        made = made.cache() if self.plan.caches else made
        made = made.map(lambda number: (tf.zeros((10, 2)), tf.zeros((10,), tf.int64)))
        options = tf.data.Options()
        # TensorFlow's own prefetching makes the next epoch's first batch while nobody asks for it.
        options.autotune.enabled = False
        options.experimental_optimization.inject_prefetch = False
        return iter(made.repeat(epochs).with_options(options))


def test_the_rate_is_that_of_the_examples():
    result = measure_input(Slow(20), passes=2, max_seconds=5)
    # A sleep is never shorter than asked for, and on a busy machine it is longer: the true rate is
    # a bound from above alone.
    assert 50 < result.input_examples_per_s <= 10 / 0.02
    assert result.first_batch_s >= 0.02
    assert result.passes == 2
    assert result.epoch_gap_s >= 0.02


def test_a_cache_is_filled_before_warm_passes_are_timed():
    result = measure_input(Slow(20, Plan(caches=True)), passes=3, max_seconds=0.1)
    assert result.cold_examples_per_s <= 10 / 0.02
    assert result.input_examples_per_s > 5 * result.cold_examples_per_s
    assert result.input_examples_per_s_range[0] > 5 * result.cold_examples_per_s, (
        "of the warm passes alone"
    )


def test_a_pass_that_was_cut_short_says_nothing_about_the_gap():
    result = measure_input(Slow(50), passes=2, max_seconds=0.1)
    assert result.epoch_gap_s is None
    assert result.passes == 2, "the second goes on where the first was cut"


def test_an_empty_data_set_is_reported():
    pipeline = Slow(0)
    with pytest.raises(EmptyDataset, match="train split of this configuration delivers no batch"):
        measure_input(pipeline, passes=1, max_seconds=1)


def test_processes_deliver_together_as_often_what_the_slowest_does():
    fast = InputThroughput(
        input_examples_per_s=90.0,
        input_examples_per_s_range=(80.0, 95.0),
        cold_examples_per_s=20.0,
        first_batch_s=0.5,
        epoch_gap_s=None,
        passes=3,
    )
    slow = replace(
        fast,
        input_examples_per_s=50.0,
        input_examples_per_s_range=(40.0, 60.0),
        cold_examples_per_s=30.0,
        first_batch_s=0.25,
        epoch_gap_s=0.1,
    )
    assert join_slices([fast, slow]) == replace(
        slow,
        input_examples_per_s=100.0,
        input_examples_per_s_range=(80.0, 120.0),
        cold_examples_per_s=40.0,
        first_batch_s=0.5,
    )
    assert join_slices([fast]) == fast
