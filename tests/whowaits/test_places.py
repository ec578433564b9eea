"""Where a script makes what its dataset consists of, and what libraries make."""

from __future__ import annotations

import inspect
import os
import time
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops

from whowaits.callers import name_from_here
from whowaits.changes.advice import ORDER, SAME, THREADS, find_first
from whowaits.changes.cache_files import delete_unfinished
from whowaits.changes.edits import CannotBeWritten, edit_source
from whowaits.changes.patch import _write
from whowaits.changes.places import is_changed, locate, makes_another
from whowaits.changes.proposals import propose_changes
from whowaits.changes.trials import Pace, Trials, find_edits
from whowaits.hooks.fits import FitWatch
from whowaits.hooks.loops import LoopWatch
from whowaits.hooks.sources import explain_loader, explain_untried, has_cache, tried_dataset
from whowaits.hooks.tensorflow import _Hooks
from whowaits.session import Options, Session
from whowaits.timing.waits import Waits

AHEAD = ".prefetch(tf.data.AUTOTUNE)"


@pytest.fixture(autouse=True)
def _watch_datasets(monkeypatch) -> None:
    """Datasets know where they are made, until the test ends."""
    monkeypatch.setattr(dataset_ops.DatasetV2, "__init__", dataset_ops.DatasetV2.__init__)
    session = Session(Options(keep=True), print)
    _Hooks(FitWatch(session, Waits()), LoopWatch(session)).patch_datasets(dataset_ops)


@pytest.fixture
def images(tmp_path):
    """A folder of images of two classes."""
    for name in "ab":
        (tmp_path / name).mkdir()
        for number in range(4):
            image = np.full((8, 8, 3), number)
            keras.utils.save_img(tmp_path / name / f"{number}.png", image)
    return keras.utils.image_dataset_from_directory(
        tmp_path, batch_size=2, image_size=(8, 8), verbose=False
    )


def test_what_keras_makes_within_a_call_is_no_call_of_the_script(images):
    dataset = images.map(lambda x, y: (tf.image.random_flip_up_down(x), y), 2).prefetch(2)
    changes = propose_changes(dataset, batch=2)
    assert [each.text for each in changes] == ["map: .cache().shuffle(16) after it"], (
        "and none of what only Keras could write: its batch in parallel"
    )
    (change,) = changes
    assert change.inside == "image_dataset_from_directory"
    assert "nothing can be added inside image_dataset_from_directory" in change.says
    trials = Trials(lambda _: None, dataset, Pace(step_ms=1), deadline=0, beat=lambda: None)
    (tried,) = trials._summarize(changes, [[3.0, 3.0, 3.0]])
    assert find_first([tried]) is None
    with pytest.raises(CannotBeWritten, match="a line that was not seen calls map"):
        edit_source(b"images.map(flip)", "test_places.py", tried.edits)
    assert not is_changed(dataset, change.kind, change.number, ".cache()")


def test_a_cache_of_what_cannot_be_compared_is_not_tried_and_all_else_is():
    sparse = tf.data.Dataset.range(9).map(lambda n: tf.sparse.expand_dims(tf.sparse.eye(2), 0))
    ragged = tf.data.Dataset.range(9).map(lambda n: tf.ragged.range(tf.stack([n, 2])))
    for dataset in (sparse, ragged):
        texts = [each.text for each in propose_changes(dataset.prefetch(1), batch=1)]
        assert texts == ["map: num_parallel_calls=tf.data.AUTOTUNE"]


def test_arrays_for_whose_copies_there_is_no_memory_are_not_changed(monkeypatch):
    dataset = tf.data.Dataset.from_tensor_slices(tf.zeros((1000, 100))).batch(10)
    assert propose_changes(dataset, batch=10)
    monkeypatch.setattr("whowaits.changes.proposals.memory_left_bytes", lambda: 1e6)
    with pytest.raises(MemoryError, match="the dataset holds 0 MiB of arrays"):
        propose_changes(dataset, batch=10)


def test_what_is_added_at_the_end_comes_after_the_call_that_the_script_has(images):
    (edit,) = find_edits(
        images, propose_changes(tf.data.Dataset.range(9).batch(3, num_parallel_calls=2), batch=3)[0]
    )
    assert (edit.called, edit.adds) == ("image_dataset_from_directory", AHEAD)
    source = b"import tensorflow as tf\nx = 1\nfit(keras.utils.image_dataset_from_directory(a))"
    edited = edit_source(source, "a.py", [type(edit)("a.py:3", edit.called, edit.adds)])
    assert edited.endswith(b"image_dataset_from_directory(a).prefetch(tf.data.AUTOTUNE))")
    with pytest.raises(CannotBeWritten):
        edit_source(source, "a.py", [type(edit)("a.py:3", "prefetch", edit.adds)])


def record(folder):
    files = [str(folder / f"{number}.tfrecord") for number in range(3)]
    for file in files:
        with tf.io.TFRecordWriter(file) as writer:
            writer.write(b"x")
    return files


def test_a_dataset_of_records_is_found_in_the_script_whether_read_in_parallel_or_not(tmp_path):
    dataset = tf.data.TFRecordDataset(record(tmp_path)).batch(1, num_parallel_calls=2).prefetch(1)
    change = propose_changes(dataset, batch=1)[0]
    (edit,) = find_edits(dataset, change)
    assert (edit.called, edit.adds) == ("TFRecordDataset", "num_parallel_reads=tf.data.AUTOTUNE")
    assert edit.where.startswith(f"{name_from_here(__file__)}:")
    assert not is_changed(dataset, change.kind, change.number, change.adds)
    parallel = tf.data.TFRecordDataset(record(tmp_path), num_parallel_reads=2).batch(1)
    assert is_changed(parallel, change.kind, change.number, change.adds)


def test_reads_in_parallel_are_not_advised_of_a_dataset_of_one_file_each(tmp_path):
    dataset = tf.data.Dataset.from_tensor_slices(record(tmp_path)).flat_map(tf.data.TFRecordDataset)
    changes = propose_changes(dataset.batch(1).prefetch(1), batch=1)
    assert not [each.text for each in changes if "num_parallel_reads" in each.text]


def test_a_flat_map_is_found_again_where_a_change_made_it_an_interleave(tmp_path):
    files = tf.data.Dataset.from_tensor_slices(record(tmp_path))
    inner = files.flat_map(lambda file: tf.data.Dataset.from_tensors(file))
    as_it_is = inner.flat_map(tf.data.TFRecordDataset).batch(1, num_parallel_calls=2)
    change = propose_changes(as_it_is.prefetch(1), batch=1)[0]
    (edit,) = find_edits(as_it_is, change)
    assert (edit.called, edit.adds.partition("(")[0]) == ("flat_map", "interleave")
    assert not is_changed(as_it_is, change.kind, change.number, change.adds)
    changed = inner.interleave(tf.data.TFRecordDataset, num_parallel_calls=2).batch(1)
    assert is_changed(changed, change.kind, change.number, change.adds)
    source = f"import tensorflow as tf\nfiles.{edit.called}(tf.data.TFRecordDataset)"
    edited = edit_source(source.encode(), "a.py", [replace(edit, where="a.py:2")])
    assert edited.endswith(
        b".interleave(tf.data.TFRecordDataset, cycle_length=4, block_length=16,"
        b" num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)"
    )


def test_a_dataset_that_keeps_what_its_first_epoch_makes_is_known():
    numbers = tf.data.Dataset.range(9)
    assert has_cache(numbers.cache().batch(3))
    assert not has_cache(numbers.batch(3)) and not has_cache([1, 2])


def test_what_fit_is_given_is_tried_or_it_is_said_what_helps():
    model, numbers = keras.Sequential(), tf.data.Dataset.range(9)
    assert tried_dataset(model, {"x": numbers}) is numbers
    for given, said in [
        ({"x": numbers, "class_weight": {0: 1.0}}, "no change is tried with class_weight"),
        ({"x": np.zeros((4, 2))}, "`fit` was given arrays"),
        ({"x": (n for n in [1])}, "`fit` was given a generator"),
        ({"x": Batches(workers=3)}, "a Batches with workers=3; what helps: more"),
        ({"x": Batches(), "workers": 8}, "a Batches with workers=8; what helps: more"),
    ]:
        assert tried_dataset(model, given) is None
        assert said in explain_untried(model, given)
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        distributed = keras.Sequential()
    assert tried_dataset(distributed, {"x": numbers}) is None
    assert "under MirroredStrategy, which trains on another dataset" in explain_untried(
        distributed, {"x": numbers}
    )
    assert "num_workers=2 or more" in explain_loader(0) and "persistent" in explain_loader(2)


def test_what_the_callbacks_of_the_script_do_takes_as_long_as_it_takes():
    session, own = Session(Options(keep=True), print), keras.callbacks.Callback()
    model = keras.Sequential()
    bound = inspect.signature(keras.Model.fit).bind(model, np.zeros(3), callbacks=[own])
    FitWatch(session, Waits())._begin(keras, model, bound)
    first, second, _ = bound.arguments["callbacks"]
    session.beat(expects=1.0)
    first.on_epoch_end(0)
    assert session._expects is None and second is own


def test_what_a_later_training_would_go_on_from_is_not_written():
    kinds = ("OrbaxCheckpoint", "ModelCheckpoint", "Own")
    orbax, checkpoint, own = (type(name, (keras.callbacks.Callback,), {})() for name in kinds)
    bound = inspect.signature(keras.Model.fit).bind(
        keras.Sequential(), np.zeros(3), callbacks=[orbax, checkpoint, own]
    )
    FitWatch(Session(Options(), print), Waits())._begin(keras, keras.Sequential(), bound)
    assert own in bound.arguments["callbacks"]
    assert orbax not in bound.arguments["callbacks"]
    assert checkpoint not in bound.arguments["callbacks"]


class Own(keras.Sequential):
    """As before `force` was, and as one that only returns its function."""

    def make_train_function(self):
        return lambda iterator: {"loss": next(iterator)}


def test_a_model_may_make_its_train_function_by_itself():
    model: Any = Own()
    FitWatch(Session(Options(), print), Waits()).make_train_function(model)
    assert model.train_function(iter([1])) == {"loss": 1}


class Batches(keras.utils.PyDataset):
    """Batches that are made by workers."""


def test_a_call_is_known_by_its_line_and_its_name():
    numbers = tf.data.Dataset.range(9).batch(3).unbatch()
    assert locate(numbers, "unbatch", 0).called == "unbatch"
    assert locate(numbers, "map", 0).called == "unbatch", "which makes a map within"
    assert not locate(numbers, "map", 1).where


def build(numbers):
    """What a script's function does for the training and for its validation."""
    return numbers.map(lambda n: n + 1).batch(3)


def try_changes(dataset):
    changes = propose_changes(dataset, batch=3)
    trials = Trials(lambda _: None, dataset, Pace(step_ms=1), deadline=0, beat=lambda: None)
    return trials._summarize(changes, [[3.0, 3.0, 3.0]] * len(changes))


def test_what_would_change_a_validation_too_is_said_and_is_no_patch():
    train = build(tf.data.Dataset.range(9).shuffle(9))
    assert not any(each.shared for each in try_changes(train))
    validation = build(tf.data.Dataset.range(3))
    tried = [each for each in try_changes(train) if each.text.startswith(("map", "batch"))]
    assert len(tried) == 3 and all("makes another dataset" in each.says for each in tried)
    source = b"import tensorflow as tf\ndef build(numbers):\n    return numbers.map(f).batch(3)"
    for each in tried:
        edits = tuple(replace(edit, where="a.py:3") for edit in each.edits)
        change = replace(each, edits=edits)
        for meaning in (ORDER, THREADS):
            with pytest.raises(CannotBeWritten, match="makes another dataset, too"):
                _write(replace(change, meaning=meaning), source, "a.py")
        if each.keeps:
            with pytest.raises(CannotBeWritten, match="makes another dataset, too"):
                _write(replace(change, meaning=SAME), source, "a.py")
        else:
            assert _write(change, source, "a.py") != source, "each keeps its examples and order"
    del validation
    assert not any(each.shared for each in try_changes(train))


def test_what_a_dataset_consists_of_is_no_other_dataset(tmp_path):
    files = record(tmp_path)
    for reader in (tf.data.TFRecordDataset, tf.data.TextLineDataset):
        for options in ({}, {"num_parallel_reads": 2}):
            dataset = reader(files, **options).interleave(
                lambda line: tf.data.Dataset.from_tensors(line).interleave(
                    tf.data.Dataset.from_tensors
                )
            )
            for kind in (reader.__name__.removesuffix("V2"), "interleave"):
                assert locate(dataset, kind, 0).where and not makes_another(dataset, kind, 0)


def test_a_cache_that_is_not_complete_leaves_no_file(tmp_path):
    began = time.time() - 1
    numbers, whole, part = tf.data.Dataset.range(9), tmp_path / "whole", tmp_path / "part"
    complete, begun = numbers.cache(str(whole)), numbers.cache(str(part))
    assert len(list(complete)) == 9
    next(iterator := iter(begun))
    own = tmp_path / "part_labels.npy"
    own.touch()
    kept = {own, *tmp_path.glob("whole*")}
    (lock,) = tmp_path.glob("part*.lockfile")
    delete_unfinished(since=time.time() + 60)
    assert lock.exists(), "of another run"
    os.utime(lock)
    delete_unfinished(since=began)
    assert set(tmp_path.iterdir()) == kept
    assert iterator is not None and len(list(numbers.cache(str(part)))) == 9
