"""Where a script makes what its dataset consists of, and what libraries make."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import keras
import pytest
import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops

from tests.support.small_data import save_photos
from whowaits.changes.advice import ORDER, SAME, SEVERAL, THREADS, find_first
from whowaits.changes.cache_files import delete_unfinished
from whowaits.changes.edits import CannotBeWritten, edit_source
from whowaits.changes.patch import _write
from whowaits.changes.places import is_changed
from whowaits.changes.proposals import InputChange, propose_changes
from whowaits.changes.ratios import Ratios
from whowaits.changes.trials import Pace, Trials, find_edits
from whowaits.hooks.fits import FitWatch
from whowaits.hooks.loops import LoopWatch
from whowaits.hooks.tensorflow import _Hooks
from whowaits.session import Options, Session
from whowaits.timing.waits import Waits

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def _watch_datasets(monkeypatch) -> None:
    """Datasets know where they are made, until the test ends."""
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
        _write(tried, b"", "test_places.py")
    assert not is_changed(dataset, change.kind, change.number, ".cache()")
    called, ahead = "image_dataset_from_directory", ".prefetch(tf.data.AUTOTUNE)"
    (edit,) = find_edits(images, InputChange("", None, ahead=ahead))
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
    """Return what a function returns in a thread, where only this file's lines are the script's."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function).result()


def try_changes(dataset, changes=None):
    """What is said of changes, of all that are proposed unless some are given."""
    changes = changes or propose_changes(dataset, batch=3)
    trials = Trials(print, dataset, Pace(step_ms=1), deadline=0, beat=print)
    ratios = Ratios(1.0)
    for at in [*range(len(changes))] * 3:
        ratios.add(at, changed=3.0, unchanged=1.0)
    return list(trials._describe_all(changes, ratios).values())


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
    model.build((None, 3))
    return Data(3)


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
