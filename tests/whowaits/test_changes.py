"""What a dataset leaves open, and that a dataset with a change in it delivers the same examples:
`whowaits.changes.proposals`, `whowaits.changes.graphs`.
"""

from __future__ import annotations

import os
import re
import time

import numpy as np
import pytest
import tensorflow as tf

from whowaits.changes import proposals as changes
from whowaits.changes import trials
from whowaits.changes.advice import DRAWN_ONCE, ORDER, SAME, THREADS
from whowaits.changes.digests import FEWEST_PROVEN
from whowaits.changes.proposals import CACHED_STEPS, propose_changes

COUNT, BATCH = 24, 4
AHEAD = "; end with .prefetch(tf.data.AUTOTUNE)"
PARALLEL = "num_parallel_calls=tf.data.AUTOTUNE"
CYCLE = f"cycle_length={len(os.sched_getaffinity(0))}"  # that of an interleave without one


def double(number):
    return number * 2


def jitter(number):
    return number + tf.random.uniform((), 0, 3, tf.int64)


def count_up():
    yield from range(COUNT)


def numbers():
    return tf.data.Dataset.range(COUNT)


def batched(dataset):
    """With nothing left open from there on."""
    return dataset.batch(BATCH, num_parallel_calls=2).prefetch(1)


class Later:
    """What a step returns before it is computed."""

    def __init__(self):
        self.waited_for = False

    def numpy(self):
        self.waited_for = True


def test_what_a_device_has_to_do_is_waited_for_before_and_after_it_is_timed(monkeypatch):
    monkeypatch.setattr(trials, "WARM_UP_S", 0.0)
    monkeypatch.setattr(trials, "BLOCK_S", 0.0)
    returned = []

    def train(iterator):
        next(iterator)
        returned.append({"loss": Later()})
        return returned[-1]

    epochs = trials.Epochs(train, numbers().repeat())
    assert epochs.time(0.01, lambda: None) > 0
    assert [each["loss"].waited_for for each in returned] == [True, False, False, False, True]


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
            [f"batch: {PARALLEL}", "map(double): .cache().shuffle(9) after it"],
        ),
        (
            lambda: numbers().map(double, 2).map(jitter, 2).batch(BATCH, num_parallel_calls=2),
            [AHEAD.removeprefix("; "), f"map(double): .cache() after it{AHEAD}"],
        ),
        (
            lambda: numbers().map(double).cache().map(jitter, 2).batch(BATCH).prefetch(1),
            [f"batch: {PARALLEL}"],
        ),
        (
            lambda: numbers().map(double, 2).repeat().batch(BATCH).prefetch(1),
            [f"batch: {PARALLEL}", "map(double): .cache() after it"],
        ),
        (
            lambda: batched(
                tf.data.Dataset.from_generator(
                    count_up, output_signature=tf.TensorSpec((), tf.int64)
                )
            ),
            ["batch: .cache() after it"],
        ),
        (
            lambda: batched(numbers().interleave(lambda n: tf.data.Dataset.from_tensors(n))),
            [f"interleave: interleave(…, {CYCLE}, {PARALLEL})", "batch: .cache() after it"],
        ),
    ],
    ids=["plain", "shuffled", "random", "cached", "endless", "generator", "interleaved"],
)
def test_what_a_dataset_leaves_open(dataset, expected):
    assert texts_of(dataset()) == expected


def test_what_is_changed_delivers_the_same_examples():
    dataset = numbers().flat_map(tf.data.Dataset.from_tensors).map(double).batch(BATCH)
    proposed = propose_changes(dataset, batch=BATCH)
    assert len(proposed) == 4
    for change in proposed:
        elements = change.dataset.take(COUNT // BATCH)
        assert ordered(elements) == list(range(0, 2 * COUNT, 2)), change.text


def test_a_cache_is_tried_on_some_steps_and_says_what_all_of_them_take():
    dataset = tf.data.Dataset.range(1000).map(lambda n: tf.fill((256, 1024), n)).batch(BATCH)
    *_, cache = propose_changes(dataset.map(lambda n: n + 1), batch=BATCH)
    firsts = [int(batch[0, 0, 0]) for batch in cache.dataset.take(2 * CACHED_STEPS)]
    assert firsts == [1 + BATCH * step for step in range(CACHED_STEPS)] * 2
    assert cache.keeps == "2,000 MiB"


def test_what_python_makes_again_in_each_epoch_is_never_the_same():
    drawn = np.random.default_rng(0)

    def made(function):
        return lambda n: tf.ensure_shape(tf.numpy_function(function, [n], tf.int64), ())

    for function, share in ((lambda n: n + drawn.integers(1000), range(50)), (lambda n: n, (100,))):
        proposed = propose_changes(numbers().map(made(function)).batch(BATCH), batch=BATCH)
        cache, parallel = proposed[-1], next(each for each in proposed if each.kind == "map")
        assert (cache.meaning, parallel.meaning) == (DRAWN_ONCE, THREADS)
        (said,) = re.findall(r"(\d+) % of an epoch's elements had been in the one", cache.says)
        assert int(said) in share


def test_what_reads_a_variable_is_not_called_the_same_in_each_epoch():
    level = tf.Variable(2, dtype=tf.int64)  # that a callback raises
    (cache,) = caches(numbers().map(lambda n: n * level).batch(BATCH))
    assert cache.meaning == DRAWN_ONCE and cache.says.startswith("it reads a variable")


def crop(number):
    box = tf.image.sample_distorted_bounding_box(
        (9, 9, 1), tf.zeros((1, 0, 4)), use_image_if_no_bounding_boxes=True
    )
    return number + tf.cast(box.begin[0], tf.int64)


def noise(number):
    return number + tf.cast(tf.random.truncated_normal(()), tf.int64)


def table(number):
    return LOOKUP.lookup(number)


LOOKUP = tf.lookup.StaticHashTable(
    tf.lookup.KeyValueTensorInitializer(
        tf.range(COUNT, dtype=tf.int64), tf.range(COUNT, dtype=tf.int64)
    ),
    -1,
)


def numbered(dataset):
    return batched(dataset.map(double, 2))


@pytest.mark.parametrize(
    ("dataset", "caches"),
    [
        (lambda: numbered(numbers().map(crop, 2)), []),
        (lambda: numbered(numbers().map(noise, 2)), []),
        (lambda: numbered(numbers().map(table, 2)), ["batch: .cache() after it"]),
        (
            lambda: numbered(
                tf.data.Dataset.zip((numbers().shuffle(24), numbers())).map(lambda a, b: a + b, 2)
            ),
            [],
        ),
        (lambda: numbered(numbers().shuffle(24)), ["map(double): .cache().shuffle(24) after it"]),
        (
            lambda: (
                numbers().shuffle(24).batch(2).map(double, 2).unbatch().batch(BATCH).prefetch(1)
            ),
            [],
        ),
    ],
    ids=["crop", "noise", "table", "pairs", "shuffled batches", "composed"],
)
def test_a_cache_never_freezes_what_an_epoch_draws_or_composes_again(dataset, caches):
    assert [text for text in texts_of(dataset()) if "cache" in text] == caches


def test_files_read_one_after_the_other_are_named_as_the_user_wrote_them(tmp_path):
    for number in range(3):
        with tf.io.TFRecordWriter(str(tmp_path / f"{number}.tfrecord")) as writer:
            writer.write(bytes([number]))
    files = sorted(map(str, tmp_path.glob("*.tfrecord")))
    dataset = tf.data.TFRecordDataset(files).batch(1, num_parallel_calls=2).prefetch(1)
    change = propose_changes(dataset, batch=1)[0]
    assert change.text == "TFRecordDataset: num_parallel_reads=tf.data.AUTOTUNE"
    assert change.meaning == ORDER
    flat = batched(numbers().flat_map(tf.data.Dataset.from_tensors))
    assert not [text for text in texts_of(flat) if "interleave" in text]


INTERLEAVE = f"interleave(…, cycle_length=4, block_length=16, {PARALLEL}, deterministic=True)"
READS = "num_parallel_reads=tf.data.AUTOTUNE"


@pytest.fixture
def lines(tmp_path):
    """Files of lines, each with a header of its own."""
    for number in range(3):
        rows = [f"{number}{row}" for row in range(BATCH * 2)]
        (tmp_path / f"{number}.txt").write_text("\n".join(["header", *rows]))
    return sorted(map(str, tmp_path.glob("*.txt")))


def read(file):
    return tf.data.TextLineDataset(file).skip(1)


def read_one_file(file):  # as TensorFlow calls its own
    return read(file)


def reading(dataset):
    """The changes of how files are read."""
    dataset = dataset.prefetch(1)
    return [each for each in propose_changes(dataset, batch=BATCH) if each.meaning == ORDER]


@pytest.mark.parametrize(
    ("function", "title"),
    [
        (lambda file: read(file), "flat_map"),
        (tf.data.TextLineDataset, "flat_map"),
        (read, "flat_map(read)"),
        (read_one_file, "flat_map(read_one_file)"),
    ],
)
def test_a_flat_map_of_readers_is_tried_as_an_interleave(lines, function, title):
    dataset = tf.data.Dataset.from_tensor_slices(lines).flat_map(function).batch(BATCH)
    (change,) = reading(dataset)
    assert change.text == f"{title}: {INTERLEAVE}"
    assert change.says == "examples of several files are interleaved"
    assert ordered(change.dataset) == ordered(dataset)
    in_order = [list(batch.numpy()) for batch in change.dataset]
    assert in_order == [list(batch.numpy()) for batch in change.dataset], "deterministic"


@pytest.mark.parametrize("given", [{}, {"cycle_length": 3}, {"cycle_length": 5, "block_length": 2}])
def test_an_interleave_in_parallel_keeps_its_order(given):
    files = tf.data.Dataset.range(16)
    dataset = files.interleave(lambda n: tf.data.Dataset.range(9 * n, 9 * n + 9), **given)
    change = propose_changes(dataset.prefetch(1), batch=BATCH)[0]
    assert change.meaning == SAME
    assert ("cycle_length" in change.adds) == ("cycle_length" not in given)
    in_order = [int(number) for number in dataset]
    assert in_order != sorted(in_order)
    assert [int(number) for number in change.dataset] == in_order


def test_a_call_in_parallel_asks_for_the_order_that_the_options_leave_open():
    options = tf.data.Options()
    options.deterministic = False
    files = tf.data.Dataset.range(4).interleave(tf.data.Dataset.range)
    for dataset in (numbers().map(double).batch(BATCH), files):
        proposed = propose_changes(dataset.prefetch(1).with_options(options), batch=BATCH)
        parallel = [each for each in proposed if PARALLEL in each.adds]
        assert parallel and not [each for each in parallel if each.meaning != SAME]
        for change in parallel:
            assert change.adds.endswith(f"{PARALLEL}, deterministic=True")
            assert f"{PARALLEL}, deterministic=True" in change.text


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (tf.data.TextLineDataset, f"TextLineDataset: {READS}"),
        (
            lambda files: tf.data.FixedLengthRecordDataset(files, 1),
            f"FixedLengthRecordDataset: {READS}",
        ),
        (lambda files: tf.data.TextLineDataset(files, num_parallel_reads=2), None),
    ],
)
def test_every_reader_of_several_files_may_read_them_at_once(lines, make, text):
    assert [each.text for each in reading(make(lines).batch(BATCH))] == ([text] if text else [])


def test_what_goes_by_the_order_of_its_elements_keeps_it(lines):
    read_lines = tf.data.Dataset.from_tensor_slices(lines).flat_map(read)
    labels = tf.data.Dataset.range(3 * BATCH * 2)
    for ordered_by in (
        read_lines.take(9).batch(BATCH),
        read_lines.skip(9).batch(BATCH),
        read_lines.shard(2, 0).batch(BATCH),
        read_lines.enumerate().batch(BATCH),
        tf.data.Dataset.zip((read_lines, labels)).batch(BATCH),
        read_lines.batch(3).batch(BATCH),
        read_lines.map(tf.strings.bytes_split).unbatch().batch(3),
    ):
        assert not reading(ordered_by)
    assert reading(read_lines.batch(9).map(tf.strings.length).unbatch().batch(BATCH))
    drawn = tf.data.Dataset.zip((numbers().shuffle(9, seed=1).map(double), labels))
    assert not caches(drawn.batch(BATCH)), "its partner may be shuffled by the same seed"


def test_a_cache_is_not_tried_where_it_would_never_be_full():
    assert not caches(numbers().map(double).batch(BATCH).take(2))
    assert caches(numbers().take(9).map(double).batch(BATCH))


def test_a_cache_is_tried_in_epochs_as_long_as_the_datasets_own():
    (ends,) = caches(numbers().map(double).batch(BATCH))
    assert [len(list(ends.dataset)) for _ in range(2)] == [COUNT // BATCH] * 2
    filtered = numbers().filter(lambda n: n >= 0).map(double).batch(BATCH)  # of unknown length
    for dataset in (numbers().map(double).batch(BATCH).repeat(), filtered):
        (endless,) = caches(dataset, steps=3)
        assert len(list(endless.dataset.take(2 * COUNT))) == 2 * COUNT


def test_what_is_shuffled_once_is_not_shuffled_again_after_a_cache():
    once = numbers().shuffle(COUNT, reshuffle_each_iteration=False).map(double)
    (cache,) = caches(once.batch(BATCH).prefetch(1))
    assert cache.adds == ".cache()" and cache.meaning == SAME
    split = once.take(9).map(jitter).batch(BATCH)
    assert not caches(split), "or others would be taken in each epoch"


def test_a_shuffle_of_files_is_no_shuffle_of_their_examples():
    files = numbers().shuffle(COUNT)
    dataset = files.interleave(lambda n: tf.data.Dataset.range(n + 9), num_parallel_calls=2)
    dataset = numbered(dataset.map(double, 2))
    assert not [text for text in texts_of(dataset) if "cache" in text], "how many is not known"
    (cache,) = caches(dataset, steps=50)
    assert cache.adds == f".cache().shuffle({50 * BATCH})"


def test_the_nearest_of_two_shuffles_is_none_of_all_examples():
    files = numbers().shuffle(COUNT).interleave(lambda n: tf.data.Dataset.range(9))
    dataset = numbered(files.shuffle(10).map(double, 2))
    assert not caches(dataset), "how many examples there are is not known"
    (cache,) = caches(dataset, steps=50)
    assert cache.adds == f".cache().shuffle({50 * BATCH})"
    (cache,) = caches(numbered(numbers().shuffle(20).shuffle(10).map(double, 2)))
    assert cache.adds == ".cache().shuffle(20)"


def test_the_size_of_a_cache_is_that_of_elements_of_any_length():
    made = numbers().map(lambda n: tf.zeros((1 << 16) * (1 + n % 3)))
    (cache,) = caches(made.padded_batch(1))
    assert cache.kept_bytes == pytest.approx(COUNT * 2 * (1 << 18), rel=0.05)


def caches(dataset, **options):
    return [each for each in propose_changes(dataset, batch=BATCH, **options) if each.keeps]


@pytest.mark.parametrize("cut", ["take", "skip", "shard"])
def test_other_examples_in_each_epoch_are_not_kept(cut):
    def choose(shuffled):
        return shuffled.shard(2, 0) if cut == "shard" else getattr(shuffled, cut)(5)

    drawn = choose(numbers().shuffle(COUNT)).map(double).batch(BATCH)
    assert not caches(drawn), "the others would never be seen"
    once = choose(numbers().shuffle(COUNT, reshuffle_each_iteration=False)).map(double)
    assert caches(once.batch(BATCH)), "the same in each epoch"


def test_of_an_unknown_number_of_elements_the_size_follows_from_the_steps(tmp_path):
    with tf.io.TFRecordWriter(str(tmp_path / "a")) as writer:
        for _ in range(8 * BATCH):
            writer.write(b"x")
    dataset = tf.data.TFRecordDataset([str(tmp_path / "a")]).map(lambda _: tf.zeros(1 << 18))
    (cache,) = caches(dataset.batch(BATCH))
    assert cache.kept_bytes == float("inf") and "not known" in cache.keeps
    (cache,) = caches(dataset.batch(BATCH), steps=8)
    assert cache.kept_bytes == 8 * BATCH << 20


def test_what_takes_long_is_compared_as_far_as_time_allows(monkeypatch):
    monkeypatch.setattr(changes, "PROVEN_S", 0.2)
    calls = []

    def wait(number):
        calls.append(number)
        time.sleep(0.02)
        return number

    slow = numbers().map(lambda n: tf.numpy_function(wait, [n], tf.int64))
    slow = slow.map(lambda n: tf.ensure_shape(n, ()))
    (cache,) = caches(slow.batch(2).unbatch())
    assert cache.keeps and 2 * FEWEST_PROVEN <= len(calls) < 100
