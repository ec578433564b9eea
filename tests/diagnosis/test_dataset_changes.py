"""What a dataset leaves open, and that a dataset with a change in it delivers the same examples."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from throughline.diagnosis.dataset_changes import CACHED_STEPS, propose_changes

COUNT, BATCH = 24, 4
AHEAD = "; end with .prefetch(tf.data.AUTOTUNE)"
PARALLEL = "num_parallel_calls=tf.data.AUTOTUNE"


def double(number):
    return number * 2


def jitter(number):
    return number + tf.random.uniform((), 0, 3, tf.int64)


def count_up():
    yield from range(COUNT)


def numbers():
    return tf.data.Dataset.range(COUNT)


def texts_of(dataset):
    return [change.text for change in propose_changes(dataset, batch=BATCH)]


def ordered(dataset):
    return sorted(np.concatenate([batch.numpy() for batch in dataset]).tolist())


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (
            lambda: numbers().map(double).batch(BATCH),
            [
                AHEAD.removeprefix("; "),
                f"batch: {PARALLEL}{AHEAD}",
                f"map(double): {PARALLEL}{AHEAD}",
                f"batch: .cache() after it{AHEAD}",
            ],
        ),
        (
            lambda: numbers().shuffle(9).map(double, 2).batch(BATCH).prefetch(1),
            [f"batch: {PARALLEL}", "batch: .cache().shuffle(…) after it"],
        ),
        (
            lambda: numbers().map(double, 2).map(jitter, 2).batch(BATCH, num_parallel_calls=2),
            [AHEAD.removeprefix("; "), f"map(double): .cache() after it{AHEAD}"],
        ),
        (
            lambda: numbers().map(double, 2).cache().map(jitter, 2).batch(BATCH).prefetch(1),
            [f"batch: {PARALLEL}"],
        ),
        (
            lambda: numbers().map(double, 2).repeat().batch(BATCH).prefetch(1),
            [f"batch: {PARALLEL}", "map(double): .cache() after it"],
        ),
        (
            lambda: (
                tf.data.Dataset.from_generator(
                    count_up, output_signature=tf.TensorSpec((), tf.int64)
                )
                .batch(BATCH, num_parallel_calls=2)
                .prefetch(1)
            ),
            ["batch: .cache() after it"],
        ),
        (
            lambda: (
                numbers()
                .interleave(lambda number: tf.data.Dataset.from_tensors(number))
                .batch(BATCH, num_parallel_calls=2)
                .prefetch(1)
            ),
            [f"interleave: interleave(…, {PARALLEL})", "batch: .cache() after it"],
        ),
    ],
    ids=["plain", "shuffled", "random", "cached", "endless", "generator", "interleaved"],
)
def test_what_a_dataset_leaves_open(dataset, expected):
    assert texts_of(dataset()) == expected


def test_what_is_changed_delivers_the_same_examples():
    dataset = numbers().flat_map(tf.data.Dataset.from_tensors).map(double).batch(BATCH)
    changes = propose_changes(dataset, batch=BATCH)
    assert len(changes) == 5
    for change in changes:
        elements = change.dataset.take(COUNT // BATCH)
        assert ordered(elements) == list(range(0, 2 * COUNT, 2)), change.text


def test_a_cache_is_tried_on_some_steps_and_says_what_all_of_them_take():
    dataset = tf.data.Dataset.range(1000).map(lambda n: tf.fill((256, 1024), n)).batch(BATCH)
    *_, cache = propose_changes(dataset.map(lambda n: n + 1), batch=BATCH)
    firsts = [int(batch[0, 0, 0]) for batch in cache.dataset.take(2 * CACHED_STEPS)]
    assert firsts == [1 + BATCH * step for step in range(CACHED_STEPS)] * 2
    assert cache.keeps == "2,000 MiB"


def test_what_python_makes_may_differ_from_epoch_to_epoch():
    def make(number):
        return tf.ensure_shape(tf.numpy_function(lambda n: n, [number], tf.int64), ())

    *_, cache = propose_changes(numbers().map(make).batch(BATCH), batch=BATCH)
    assert cache.keeps == "0 MiB, if what Python makes is the same in every epoch"
