"""What a `fit` of Keras is given, and when it ends: `whowaits.hooks.fits`."""

from __future__ import annotations

import gc
import inspect
import math
import weakref
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TFEpochIterator
from keras.src.trainers import epoch_iterator

from whowaits.hooks.fits import FitWatch, make_reporting_callback
from whowaits.hooks.sources import count_steps
from whowaits.hooks.timed_function import TimedFunction
from whowaits.session import Ended, Options, Session
from whowaits.timing.blocks import Step
from whowaits.timing.waits import Waits


class Batches(keras.utils.PyDataset):
    """Batches of its own."""

    shape = (4, 2)


@pytest.mark.parametrize(
    ("given", "steps"),
    [
        ({"x": np.zeros((65, 2))}, 3),
        ({"x": [np.zeros((65, 2))], "batch_size": 5, "epochs": 4}, 52),
        ({"x": {"a": np.zeros(65)}, "steps_per_epoch": 2, "epochs": 9, "initial_epoch": 8}, 2),
        ({"x": [1.0, 2.0]}, math.inf),
        ({"x": tf.data.Dataset.range(2)}, math.inf),
        ({"x": Batches()}, math.inf),
    ],
)
def test_the_steps_of_a_fit_on_arrays_are_known(given, steps):
    assert count_steps(given) == steps


class Short(keras.Sequential):
    """A model whose `fit` alone is watched."""

    def fit(self, x=None, y=None, epochs=1, callbacks=None):
        return super().fit(x, y, epochs=epochs, callbacks=callbacks, verbose=0)


def test_calls_of_fit_with_few_steps_are_left_as_they_are_and_said():
    """As of an agent that learns from what it has just seen."""
    session = Session(Options(seconds=0.5), print)
    FitWatch(session, Waits()).patch(SimpleNamespace(**{**vars(keras), "Model": Short}))
    model = Short([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    for _ in range(3):
        assert model.fit(np.zeros((4, 2)), np.zeros((4, 1)), epochs=2).epoch == [0, 1]
    assert not session.trainings and session.marks == 3, "steps of a loop, if there is one"
    assert "fewer than 8 steps in all" in session.make_report().reason


def begin(session, model, **given):
    """The callbacks that a `fit` is given."""
    bound = inspect.signature(keras.Model.fit).bind(model, np.zeros(3), **given)
    FitWatch(session, Waits())._begin(keras, model, bound)
    return bound.arguments["callbacks"]


def test_what_stops_within_an_epoch_ends_the_measurement():
    session, model = Session(Options(), print), keras.Sequential()
    first, *_ = begin(session, model)
    first.set_model(model)
    model.stop_training = False
    first.on_epoch_end(0)
    model.stop_training = True  # as on_train_batch_end does, before the end of an epoch
    with pytest.raises(Ended):
        first.on_epoch_end(1)
    assert session.trainings[0].notes == ["a callback stopped the training within an epoch"]


def test_the_clock_in_a_list_of_callbacks_knows_what_is_trained():
    model, own = keras.Sequential(), keras.callbacks.Callback()
    given = keras.callbacks.CallbackList([own], model=model, steps=7)
    first, second, clock = begin(Session(Options(), print), model, callbacks=given).callbacks
    assert given.callbacks == [own], "it may be given to another fit"
    assert second is own and first.model is clock.model is model
    assert first.params == clock.params == {"steps": 7}


class Untimed(keras.Sequential):
    """A model that has no train function to time."""

    def make_train_function(self):
        raise RuntimeError("none of that kind")


def test_a_training_that_cannot_be_timed_ends_with_its_own_epochs(capsys):
    session, model = Session(Options(), print), Untimed()
    *_, clock = begin(session, model, epochs=2)
    clock.set_model(model)
    model.stop_training = False
    clock.on_train_begin()
    assert "none of that kind" in capsys.readouterr().err
    assert not session.trainings[0].timing.active
    stops = []
    for epoch in range(2):
        clock.on_epoch_end(epoch)
        stops.append(model.stop_training)
    assert stops == [False, True]


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_an_epoch_from_which_batches_were_taken_makes_no_later_one_shorter(monkeypatch):
    session = Session(Options(), print)
    watch, owner = FitWatch(session, Waits()), epoch_iterator.EpochIterator
    monkeypatch.setattr(owner, "catch_stop_iteration", owner.catch_stop_iteration)
    watch.patch_counting(epoch_iterator)
    session.open("fit")
    watch.active = True
    data = tf.data.Dataset.range(9).filter(lambda number: number >= 0)  # nobody knows how many
    epochs = TFEpochIterator(x=data, distribute_strategy=tf.distribute.get_strategy())
    steps = [0, 0]
    for epoch, batches in enumerate((3, 1)):
        with epochs.catch_stop_iteration():
            for _, _, iterator in epochs:
                for _ in range(batches):
                    next(iterator)
                steps[epoch] += 1
    assert steps == [3, 9]


def watch_fit(session):
    """A watch, and a model whose `fit` alone it times."""

    class Watched(keras.Sequential):
        def fit(self, x=None, y=None, epochs=1, callbacks=None):
            return super().fit(x, y, epochs=epochs, callbacks=callbacks, verbose=0)

    watch = FitWatch(session, Waits())
    watch.patch(SimpleNamespace(**{**vars(keras), "Model": Watched}))
    model = Watched([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return watch, model


class Interrupts(keras.callbacks.Callback):
    """Ctrl-C in a notebook."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 5:
            raise KeyboardInterrupt


@pytest.mark.parametrize("interrupted", [False, True])
def test_what_was_watched_is_not_kept_and_others_count_until_it_ends(interrupted):
    session = Session(Options(keep=True), print)
    _, model = watch_fit(session)
    data = tf.data.Dataset.from_tensor_slices((np.zeros((40, 2)), np.zeros((40, 1)))).batch(2)
    try:
        model.fit(data, epochs=2, callbacks=[Interrupts()] if interrupted else None)
    except KeyboardInterrupt:
        assert interrupted
    (training,) = session.trainings
    assert training.timing.seen
    assert training.conditions is training.freeze_conditions(), "those of its end"
    gone = weakref.ref(model), weakref.ref(data)
    del model, data
    gc.collect()
    assert [each() for each in gone] == [None, None]


def test_a_fit_with_a_callback_that_is_interrupted_leaves_nothing(capsys):
    session = Session(Options(keep=True), print)
    watch, model = watch_fit(session)
    session.close()  # as `whowaits.Callback` has it
    reports = make_reporting_callback(keras, session, watch)
    with pytest.raises(KeyboardInterrupt):
        model.fit(np.zeros((400, 2)), np.zeros((400, 1)), callbacks=[reports, Interrupts()])
    assert session.trainings[0].timing.seen
    assert not watch.active and not isinstance(model.train_function, TimedFunction)
    model.fit(np.zeros((400, 2)), np.zeros((400, 1)), callbacks=[reports])
    assert "a step takes" in capsys.readouterr().out
    assert not watch.active and not isinstance(model.train_function, TimedFunction)


def test_an_epoch_that_the_script_asked_for_is_no_repetition():
    session = Session(Options(), print)
    training = session.open("fit", epochs=1)
    training.timing.trained(Step(0.01, 0.01, epoch=0))
    assert not session.repeats
    training.finished += 1  # what the script does about another one is not its own failure
    assert session.repeats
