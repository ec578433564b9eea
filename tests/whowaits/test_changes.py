"""What a dataset leaves open, and that one with a change in it delivers the same examples."""

import itertools
import os
import re
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from whowaits.changes import trials
from whowaits.changes.advice import DRAWN_ONCE, ORDER, SAME, THREADS
from whowaits.changes.digests import FEWEST_PROVEN, digest_some
from whowaits.changes.proposals import CACHED_STEPS, propose_changes

pytestmark = pytest.mark.integration

COUNT, BATCH = 24, 4
LAST = "end with .prefetch(tf.data.AUTOTUNE)"
AHEAD = f"; {LAST}"
PARALLEL = "num_parallel_calls=tf.data.AUTOTUNE"
READS = "num_parallel_reads=tf.data.AUTOTUNE"
INTERLEAVED = "flat_map(read): interleave(…, cycle_length=4, block_length=16, "
INTERLEAVED += f"{PARALLEL}, deterministic=True)"
CYCLE = f"cycle_length={len(os.sched_getaffinity(0))}"  # that of an interleave without one


def double(number):
    return number * 2


def jitter(number):
    return number + tf.random.uniform((), 0, 3, tf.int64)


def crop(number):
    """Another one for each seed, which may be another one in each epoch."""
    box = tf.image.stateless_sample_distorted_bounding_box(
        (9, 9, 1), tf.zeros((1, 0, 4)), (number, 1), use_image_if_no_bounding_boxes=True
    )
    return number + tf.cast(box.begin[0], tf.int64)


def python(function):
    return lambda n: tf.ensure_shape(tf.numpy_function(function, [n], tf.int64), ())


def numbers():
    return tf.data.Dataset.range(COUNT)


def shuffled(*, again=True):
    return numbers().shuffle(COUNT, reshuffle_each_iteration=again)


def caches(dataset, **options):
    return [each for each in propose_changes(dataset, batch=BATCH, **options) if each.keeps]


def elements(dataset):
    return [batch.tolist() for batch in dataset.as_numpy_iterator()]


def sorted_examples(dataset):
    return sorted(itertools.chain(*elements(dataset)))


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (lambda: numbers().map(double).batch(BATCH),
         [LAST, f"batch: {PARALLEL}{AHEAD}", f"map(double): {PARALLEL}{AHEAD}",
          f"batch: .cache() after it{AHEAD}"]),
        (lambda: numbers().map(double, 2).map(jitter, 2).batch(BATCH, num_parallel_calls=2),
         [LAST, f"map(double): .cache() after it{AHEAD}"]),
        (lambda: numbers().map(double).cache().map(jitter, 2).batch(BATCH).prefetch(1),
         [f"batch: {PARALLEL}"]),
        (lambda: numbers().interleave(lambda n: tf.data.Dataset.from_tensors(n)).prefetch(1),
         [f"interleave: interleave(…, {CYCLE}, {PARALLEL})", "interleave: .cache() after it"]),
    ],
    ids=["plain", "random", "cached", "interleaved"],
)  # fmt: skip
def test_what_a_dataset_leaves_open(dataset, expected):
    assert [each.text for each in propose_changes(dataset(), batch=BATCH)] == expected


def test_what_is_changed_delivers_the_same_examples():
    dataset = numbers().flat_map(tf.data.Dataset.from_tensors).map(double).batch(BATCH)
    proposed = propose_changes(dataset, batch=BATCH)
    assert len(proposed) == 4
    for change in proposed:
        assert sorted_examples(change.dataset.take(COUNT // BATCH)) == [*range(0, 2 * COUNT, 2)]


def test_a_cache_is_tried_on_some_steps_and_says_what_all_of_them_take():
    dataset = tf.data.Dataset.range(200).map(lambda n: tf.fill((256, 64), n), 2).batch(BATCH)
    (cache,) = caches(dataset.prefetch(1))
    firsts = [int(batch[0, 0, 0]) for batch in cache.dataset.take(2 * CACHED_STEPS)]
    assert firsts == [BATCH * step for step in range(CACHED_STEPS)] * 2
    assert cache.keeps == "25 MiB"


@pytest.mark.parametrize(
    ("dataset", "adds"),
    [
        (lambda: numbers().map(crop).batch(BATCH), []),
        (lambda: tf.data.Dataset.zip((shuffled(), numbers())).map(tf.add).batch(BATCH), []),
        (lambda: shuffled().batch(2).map(double).unbatch().batch(BATCH), []),
        (lambda: shuffled().take(5).map(double).batch(BATCH), []),
        (lambda: numbers().map(double).batch(BATCH).take(2), []),  # it would never be full
        (lambda: shuffled().map(double, 2).batch(BATCH), [".cache().shuffle(24)"]),
        (lambda: shuffled(again=False).take(9).map(double).batch(BATCH), [".cache()"]),
    ],
    ids=["crop", "pairs", "batches", "a part", "cut", "shuffled", "shuffled once"],
)
def test_a_cache_never_freezes_what_an_epoch_draws_or_composes_again(dataset, adds):
    assert [each.adds for each in caches(dataset())] == adds


def test_what_python_makes_again_in_each_epoch_is_never_the_same():
    drawn = np.random.default_rng(0)
    for function, share in ((lambda n: n + drawn.integers(1000), range(50)), (lambda n: n, (100,))):
        proposed = propose_changes(numbers().map(python(function)).batch(BATCH), batch=BATCH)
        cache, parallel = proposed[-1], next(each for each in proposed if each.kind == "map")
        assert (cache.meaning, parallel.meaning) == (DRAWN_ONCE, THREADS)
        (said,) = re.findall(r"(\d+) % of an epoch's elements had been in the one", cache.says)
        assert int(said) in share


def test_what_reads_a_variable_is_not_called_the_same_in_each_epoch():
    level = tf.Variable(2, dtype=tf.int64)  # that a callback raises
    (cache,) = caches(numbers().map(lambda n: n * level).batch(BATCH))
    assert cache.meaning == DRAWN_ONCE and cache.says.startswith("it reads a variable")


def test_a_shuffle_of_files_is_no_shuffle_of_their_examples():
    files = shuffled().interleave(tf.data.Dataset.from_tensors, num_parallel_calls=2)
    dataset = files.map(double, 2).batch(BATCH, num_parallel_calls=2).prefetch(1)
    assert not caches(dataset), "how many is not known"
    assert [each.adds for each in caches(dataset, steps=50)] == [f".cache().shuffle({50 * BATCH})"]


def test_what_takes_long_is_compared_as_far_as_time_allows():
    now = [0.0]

    def read_slowly():
        for number in numbers():
            now[0] += 0.5
            yield number

    read = digest_some(read_slowly(), most_s=5.0, clock=lambda: now[0])
    assert read.count == 11 and read.mean_bytes == 8
    assert digest_some(read_slowly(), most_s=0.0, clock=lambda: now[0]).count == FEWEST_PROVEN


def test_an_interleave_in_parallel_keeps_its_order():
    files = tf.data.Dataset.range(6)
    dataset = files.interleave(lambda n: tf.data.Dataset.range(4 * n, 4 * n + 4), cycle_length=5)
    change = propose_changes(dataset.prefetch(1), batch=BATCH)[0]
    assert change.meaning == SAME and "cycle_length" not in change.adds
    assert elements(change.dataset) == elements(dataset) != sorted(elements(dataset))


def test_a_call_in_parallel_asks_for_the_order_that_the_options_leave_open():
    options = tf.data.Options()
    options.deterministic = False
    dataset = numbers().interleave(tf.data.Dataset.range).map(double).with_options(options)
    parallel = [each for each in propose_changes(dataset, batch=BATCH) if PARALLEL in each.adds]
    assert {each.kind for each in parallel} == {"interleave", "map"}
    for each in parallel:
        assert each.meaning == SAME
        assert each.adds.endswith(f"{PARALLEL}, deterministic=True")


def read(file):
    return tf.data.TextLineDataset(file).skip(1)


def read_each(lines):
    return tf.data.Dataset.from_tensor_slices(lines).flat_map(read)


@pytest.mark.parametrize(
    ("dataset", "changed"),
    [
        (read_each, [INTERLEAVED]),
        (tf.data.TextLineDataset, [f"TextLineDataset: {READS}"]),
        (lambda lines: tf.data.TextLineDataset(lines, num_parallel_reads=2), []),
        (lambda lines: read_each(lines).enumerate(), []),
        (lambda lines: read_each(lines).batch(9).map(tf.strings.length).unbatch(), [INTERLEAVED]),
        (lambda lines: read_each(lines).batch(3), []),
    ],
)
def test_files_may_be_read_at_once_unless_what_follows_goes_by_the_order(
    tmp_path, dataset, changed
):
    files = [tmp_path / f"{number}.txt" for number in range(3)]
    for file in files:
        file.write_text("\n".join(["header", *(file.stem + row for row in "01234567")]))
    before = dataset([*map(str, files)]).batch(BATCH)
    proposed = propose_changes(before.prefetch(1), batch=BATCH)
    changes = [each for each in proposed if each.meaning == ORDER]
    assert [each.text for each in changes] == changed
    for each in changes:
        assert sorted_examples(each.dataset) == sorted_examples(before)
        assert elements(each.dataset) == elements(each.dataset), "deterministic"


def test_what_a_device_has_to_do_is_waited_for_before_and_after_it_is_timed(monkeypatch):
    monkeypatch.setattr(trials, "WARM_UP_S", 0.0)
    monkeypatch.setattr(trials, "BLOCK_S", 0.0)
    steps, waited_for = itertools.count(), []

    def train(iterator):
        next(iterator)
        step = next(steps)
        return {"loss": SimpleNamespace(numpy=lambda: waited_for.append(step))}

    epochs = trials.Epochs(train, itertools.repeat(0))
    epochs.time(0.01, lambda: None)
    assert waited_for == [0, 4], "the step before those that are timed, and their last"
