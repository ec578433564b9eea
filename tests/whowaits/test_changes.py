"""What a dataset leaves open, and that one with a change in it delivers the same examples."""

import itertools
import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops

from tests.support.small_data import save_photos
from whowaits.changes import trials
from whowaits.changes.advice import DRAWN_ONCE, ORDER, SAME, SEVERAL, THREADS, find_first
from whowaits.changes.cache_files import delete_unfinished
from whowaits.changes.edits import CannotBeWritten, edit_source
from whowaits.changes.passes import FEWEST_PROVEN, digest_some
from whowaits.changes.patch import _write
from whowaits.changes.places import is_changed
from whowaits.changes.proposals import CACHED_STEPS, InputChange, propose_changes
from whowaits.changes.ratios import Ratios
from whowaits.hooks.fits import FitWatch
from whowaits.hooks.loops import LoopWatch
from whowaits.hooks.tensorflow import _Hooks
from whowaits.session import Options, Session
from whowaits.timing.waits import Waits

pytestmark = pytest.mark.integration

COUNT, BATCH = 24, 4
LAST = "end with .prefetch(tf.data.AUTOTUNE)"
AHEAD = f"; {LAST}"
PARALLEL = "num_parallel_calls=tf.data.AUTOTUNE"
INTERLEAVED = "flat_map: interleave(…, cycle_length=4, block_length=16, "
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
        (lambda: numbers().map(double, 2).map(jitter, 2).batch(BATCH, num_parallel_calls=2),
         [LAST, f"map(double): .cache() after it{AHEAD}"]),
        (lambda: numbers().map(double).cache().map(jitter, 2).batch(BATCH).prefetch(1),
         [f"batch: {PARALLEL}"]),
        (lambda: numbers().interleave(lambda n: tf.data.Dataset.from_tensors(n)).prefetch(1),
         [f"interleave: interleave(…, {CYCLE}, {PARALLEL})", "interleave: .cache() after it"]),
    ],
)  # fmt: skip
def test_what_a_dataset_leaves_open(dataset, expected):
    assert [each.text for each in propose_changes(dataset(), batch=BATCH)] == expected


def test_what_is_changed_delivers_the_same_examples():
    dataset = numbers().flat_map(tf.data.Dataset.from_tensors).map(double).batch(BATCH)
    proposed = propose_changes(dataset, batch=BATCH)
    added = [f"batch: {PARALLEL}", f"map(double): {PARALLEL}", "batch: .cache() after it"]
    assert [each.text for each in proposed] == [LAST, *(f"{each}{AHEAD}" for each in added)]
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


def test_what_python_makes_again_or_a_variable_changes_is_never_the_same_in_each_epoch():
    def python(function):
        return lambda n: tf.ensure_shape(tf.numpy_function(function, [n], tf.int64), ())

    drawn, level = np.random.default_rng(0), tf.Variable(2, dtype=tf.int64)
    for function, share in ((lambda n: n + drawn.integers(1000), range(50)), (lambda n: n, (100,))):
        proposed = propose_changes(numbers().map(python(function)).batch(BATCH), batch=BATCH)
        cache, parallel = proposed[-1], next(each for each in proposed if each.kind == "map")
        assert (cache.meaning, parallel.meaning) == (DRAWN_ONCE, THREADS)
        (said,) = re.findall(r"(\d+) % of an epoch's elements had been in the one", cache.says)
        assert int(said) in share
    (cache,) = caches(numbers().map(lambda n: n * level).batch(BATCH))  # a callback raises it
    assert cache.meaning == DRAWN_ONCE and cache.says.startswith("it reads a variable")


def test_a_shuffle_of_files_is_no_shuffle_of_their_examples():
    files = shuffled().interleave(tf.data.Dataset.from_tensors, num_parallel_calls=2)
    dataset = files.map(double, 2).batch(BATCH, num_parallel_calls=2).prefetch(1)
    assert not caches(dataset), "how many is not known"
    assert [each.adds for each in caches(dataset, steps=50)] == [f".cache().shuffle({50 * BATCH})"]


def test_what_takes_long_is_compared_as_far_as_time_allows():
    each_half_second = itertools.count(step=0.5).__next__
    digests, mean_bytes = digest_some(numbers(), most_s=5.0, clock=each_half_second)
    assert len(digests) == FEWEST_PROVEN + 10 and mean_bytes == 8
    fewest, _ = digest_some(numbers(), most_s=0.0, clock=each_half_second)
    assert len(fewest) == FEWEST_PROVEN


def test_calls_in_parallel_keep_their_order_and_ask_for_it_where_the_options_leave_it_open():
    options = tf.data.Options()
    options.deterministic = False
    rows = tf.data.Dataset.from_tensor_slices(np.arange(COUNT).reshape(6, 4))
    dataset = rows.interleave(tf.data.Dataset.from_tensor_slices, cycle_length=5)
    change = propose_changes(dataset.prefetch(1), batch=BATCH)[0]
    assert change.meaning == SAME and "cycle_length" not in change.adds
    assert elements(change.dataset) == elements(dataset) != sorted(elements(dataset))
    is_open = dataset.map(double).with_options(options)
    parallel = [each for each in propose_changes(is_open, batch=BATCH) if PARALLEL in each.adds]
    assert [(each.kind, each.meaning) for each in parallel] == [("map", SAME), ("interleave", SAME)]
    assert all(each.adds.endswith(f"{PARALLEL}, deterministic=True") for each in parallel)


def read_each(files):
    read = tf.data.Dataset.from_tensor_slices(files).flat_map
    return read(lambda file: tf.data.TextLineDataset(file).skip(1))


@pytest.mark.parametrize(
    ("dataset", "changed"),
    [
        (read_each, [INTERLEAVED]),
        (tf.data.TextLineDataset, ["TextLineDataset: num_parallel_reads=tf.data.AUTOTUNE"]),
        (lambda files: tf.data.TextLineDataset(files, num_parallel_reads=2), []),
        (lambda files: read_each(files).enumerate(), []),
        (lambda files: read_each(files).batch(9).map(tf.strings.length).unbatch(), [INTERLEAVED]),
        (lambda files: read_each(files).batch(3), []),
    ],
)
def test_files_are_read_at_once_unless_what_follows_goes_by_order(tmp_path, dataset, changed):
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


@pytest.fixture(autouse=True)
def _places(monkeypatch) -> None:
    monkeypatch.setattr(dataset_ops.DatasetV2, "__init__", dataset_ops.DatasetV2.__init__)
    session = Session(Options(keep=True), print)
    _Hooks(FitWatch(session, Waits()), LoopWatch(session)).patch_datasets(dataset_ops)


def test_what_keras_makes_within_a_call_is_no_call_of_the_script_and_changed_after_it(tmp_path):
    """A cache before its batches is written in the call and after it; no other change is."""
    save_photos(tmp_path, 8, "a", "b")
    images = keras.utils.image_dataset_from_directory(tmp_path, batch_size=2, verbose=False)
    dataset = images.map(lambda x, y: (tf.image.random_flip_up_down(x), y), 2).prefetch(2)
    (change,) = propose_changes(dataset, batch=2)
    written = "image_dataset_from_directory(batch_size=None): .cache().shuffle(16).batch(2)"
    assert change.text == f"{written}.prefetch(tf.data.AUTOTUNE) after it"
    (tried,) = try_changes(dataset, [change])
    assert find_first([tried]) is tried and tried.meaning == ORDER
    with pytest.raises(CannotBeWritten, match="more than an edit of one call"):
        _write(tried, b"", "test_changes.py")
    assert not is_changed(dataset, change.kind, change.number, ".cache()")
    called, ahead = "image_dataset_from_directory", ".prefetch(tf.data.AUTOTUNE)"
    (edit,) = trials.find_edits(images, InputChange("", None, ahead=ahead))
    assert (edit.called, edit.adds) == (called, ahead)
    source = f"import tensorflow as tf\nfit(keras.utils.{called}(a))".encode()
    edited = edit_source(source, "a.py", [replace(edit, where="a.py:2")])
    assert edited.decode().endswith(f"{called}(a){ahead})")
    with pytest.raises(CannotBeWritten):
        edit_source(source, "a.py", [replace(edit, where="a.py:2", called="prefetch")])


def build(numbers):
    """What a script's function does for the training and for its validation."""
    return numbers.map(lambda n: n + 1).batch(3)


def in_script(function):
    """Return what it returns in a thread, where only this file's lines are the script's."""
    return ThreadPoolExecutor(1).submit(function).result()


def try_changes(dataset, changes=None):
    changes = changes or propose_changes(dataset, batch=3)
    tried = trials.Trials(print, dataset, trials.Pace(step_ms=1), deadline=0, heartbeat=print)
    ratios = Ratios(1.0)
    for at in [*range(len(changes))] * 3:
        ratios.add(at, changed=3.0, unchanged=1.0)
    return list(tried._describe_all(changes, ratios).values())


def test_what_would_change_a_validation_too_is_said_and_is_no_patch():
    numbers = tf.data.Dataset.range(9).shuffle(9), tf.data.Dataset.range(3)
    train, *validation = in_script(lambda: [build(each) for each in numbers])
    tried = [each for each in try_changes(train) if each.text.startswith(("map", "batch"))]
    assert len(tried) == 3 and all("make another dataset" in each.says for each in tried)
    source = b"import tensorflow as tf\ndef build(numbers):\n    return numbers.map(f).batch(3)"
    for each in tried:
        edits = tuple(replace(edit, where="a.py:3") for edit in each.edits)
        change = replace(each, edits=edits, meaning=SAME)
        for meaning in (ORDER, THREADS, *([SAME] if each.keeps else [])):
            with pytest.raises(CannotBeWritten, match="make another dataset, too"):
                _write(replace(change, meaning=meaning), source, "a.py")
        if not each.keeps:
            assert _write(change, source, "a.py") != source, "it keeps its examples and order"
    del validation
    assert not any(each.shared for each in try_changes(train))


class Data:
    def __init__(self, count):
        self.numbers = build_again(tf.data.Dataset.range(count)).batch(3)


def build_again(numbers):
    return numbers.map(lambda n: n + 1)


def validate(model):
    """What the script would do after the training."""
    return model.build((None, 3)), Data(3)


def test_what_would_change_a_dataset_that_is_made_later_is_no_patch():
    changes = try_changes(Data(9).numbers)
    assert {each.kind for each in changes if each.alters_another} == {"batch"}, "the cache"
    assert {each.kind for each in changes if each.shared} == {"map", "batch"}


def test_a_call_that_makes_several_transformations_is_neither_advised_nor_a_patch():
    numbers = mapped = tf.data.Dataset.range(9)
    for step in (lambda n: n + 1, lambda n: n + tf.random.uniform((), 0, 9, tf.int64)):
        mapped = mapped.map(step)
    changes = [each for each in try_changes(mapped.batch(3)) if each.kind == "map"]
    assert changes and find_first(changes) is None
    for each in changes:
        assert each.shared == SEVERAL
        with pytest.raises(CannotBeWritten, match=SEVERAL):
            _write(replace(each, meaning=SAME), b"", "a.py")
    twice = in_script(lambda: numbers.map(lambda n: n + 1).map(lambda n: n + 2).batch(3))
    assert not any(each.shared for each in try_changes(twice)), "two calls in a line"


def test_a_cache_that_is_not_complete_leaves_no_file(tmp_path):
    numbers, whole, part = tf.data.Dataset.range(9), tmp_path / "whole", tmp_path / "part"
    complete, begun = numbers.cache(str(whole)), numbers.cache(str(part))
    assert len(list(complete)) == 9
    next(iterator := iter(begun))
    own = tmp_path / "part_labels.npy"
    own.touch()
    kept = {own, *tmp_path.glob("whole*")}
    (lock,) = tmp_path.glob("part*.lockfile")
    made = lock.stat().st_mtime
    delete_unfinished(since=made + 60)
    assert lock.exists(), "of another run"
    delete_unfinished(since=made - 60)
    assert set(tmp_path.iterdir()) == kept
    assert iterator is not None and len(list(numbers.cache(str(part)))) == 9
