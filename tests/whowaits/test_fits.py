"""What a `fit` of Keras is given, when it ends, what is recorded of it, and what its trials get."""

import gc
import inspect
import itertools
import math
import os
import sys
import weakref
from types import SimpleNamespace
from unittest.mock import MagicMock, Mock, call

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TFEpochIterator
from keras.src.trainers import epoch_iterator

import whowaits
from whowaits.changes import trials
from whowaits.hooks import sources, timed_function
from whowaits.hooks.fits import FitWatch
from whowaits.hooks.saves import LIBRARIES
from whowaits.hooks.timed_function import TimedFunction
from whowaits.running import observe
from whowaits.session import Ended, Options, Session
from whowaits.timing.feeds import MAX_AHEAD, JaxFeed, TensorFlowFeed, TorchFeed
from whowaits.timing.rounds import Block, Round, Step
from whowaits.timing.waits import Waits
from whowaits.within import register_magic

pytestmark = pytest.mark.integration


class Batches(keras.utils.PyDataset):
    shape = (4, 2)


def test_the_steps_of_a_fit_on_arrays_are_known():
    for given, steps in [
        ({"x": np.zeros((65, 2))}, 3),
        ({"x": [np.zeros((65, 2))], "batch_size": 5, "epochs": 4}, 52),
        ({"x": {"a": np.zeros(65)}, "steps_per_epoch": 2, "epochs": 9, "initial_epoch": 8}, 2),
        ({"x": Batches()}, math.inf),
    ]:
        assert sources.count_steps(given) == steps


def test_what_fit_is_given_is_known_to_keep_its_first_epoch_and_tried_or_it_is_said_what_helps():
    model, numbers = keras.Sequential(), tf.data.Dataset.range(9)
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        distributed = keras.Sequential()
    assert sources.tried_dataset(model, {"x": numbers}) is numbers
    cached = [sources.has_cache(x) for x in (numbers.cache().batch(3), numbers.batch(3), [1])]
    assert cached == [1, 0, 0]
    for of, given, said in [
        (model, {"x": numbers, "class_weight": {0: 1.0}}, "no change is tried with class_weight"),
        (model, {"x": np.zeros((4, 2))}, "`fit` was given arrays"),
        (model, {"x": (n for n in [1])}, "`fit` was given a generator"),
        (model, {"x": Batches(workers=3)}, "a Batches with workers=3"),
        (model, {"x": Batches(), "workers": 8}, "a Batches with workers=8"),
        (distributed, {"x": numbers}, "under MirroredStrategy"),
    ]:
        assert sources.tried_dataset(of, given) is None
        assert said in sources.explain_untried(of, given)


@pytest.mark.parametrize(
    ("dataset", "workers", "persistent", "helps"),
    [
        ("Dataset", 0, False, "num_workers=2 or more, which"),
        ("Dataset", 2, False, "more workers, where there are cores for them; persistent_workers"),
        ("Dataset", 2, True, "more workers, where there are cores for them"),
        ("IterableDataset", 0, False, "2 or more, if the dataset gives each of them its own part"),
        ("TensorDataset", 0, False, "whole batches at once"),
    ],
)
def test_what_helps_a_loader_goes_by_its_dataset(dataset, workers, persistent, helps):
    made = type(dataset, (), {})()
    known = {"num_workers": workers, "persistent_workers": persistent, "dataset": made}
    said = sources.explain_loader(SimpleNamespace(**known))
    iterator = SimpleNamespace(**{f"_{name}": value for name, value in known.items()})
    assert helps in said and sources.explain_loader(iterator) == said
    assert ("persistent" in said) == (workers > 0 and not persistent)


class Small(keras.Sequential):
    def __init__(self):
        super().__init__([keras.Input((2,)), keras.layers.Dense(1)])
        self.compile("sgd", "mse")

    def fit(self, x=None, y=None, epochs=1, callbacks=None):
        return super().fit(x, y, epochs=epochs, callbacks=callbacks, verbose=0)


def watch_fits(monkeypatch, **options):
    monkeypatch.setattr(Small, "fit", Small.fit)
    watch = FitWatch(Session(Options(**options), print), Waits())
    watch.patch(SimpleNamespace(**{**vars(keras), "Model": Small}))
    return watch


def test_a_fit_of_few_steps_is_left_as_it_is_and_said(monkeypatch):
    """As of an agent that learns from what it has just seen."""
    session = watch_fits(monkeypatch).session
    assert Small().fit(np.zeros((4, 2)), np.zeros((4, 1)), epochs=2).epoch == [0, 1]
    assert not session.trainings and session.marks == 1, "a step of a loop, if there is one"
    assert "fewer than 8 steps in all" in session.make_report().reason


def test_of_a_fit_that_is_interrupted_only_its_timing_is_kept(monkeypatch):
    def interrupt(batch, logs):  # Ctrl-C in a notebook
        if batch == 5:
            raise KeyboardInterrupt

    watch, model = watch_fits(monkeypatch, keep=True), Small()
    data = tf.data.Dataset.from_tensor_slices((np.zeros((20, 2)), np.zeros((20, 1)))).batch(2)
    with pytest.raises(KeyboardInterrupt):
        model.fit(data, callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=interrupt)])
    assert not watch.active and not isinstance(model.train_function, TimedFunction)
    (training,) = watch.session.trainings
    assert training.timing.seen
    assert training.conditions is training.freeze_conditions(), "those of its end"
    gone = weakref.ref(model), weakref.ref(data)
    del model, data
    gc.collect()
    assert [each() for each in gone] == [None, None]


def begin(model, options=None, **given):
    session = Session(Options(**(options or {})), print)
    bound = inspect.signature(keras.Model.fit).bind(model, np.zeros(3), **given)
    FitWatch(session, Waits())._begin(keras, model, bound)
    return session, bound.arguments["callbacks"]


def test_what_stops_within_an_epoch_ends_the_measurement():
    model = keras.Sequential()
    session, (first, *_) = begin(model)
    first.set_model(model)
    model.stop_training = False
    first.on_epoch_end(0)
    model.stop_training = True  # as on_train_batch_end does, before the end of an epoch
    with pytest.raises(Ended):
        first.on_epoch_end(1)
    assert session.trainings[0].notes == ["a callback stopped the training within an epoch"]


@pytest.mark.parametrize("options", [{}, {"keep": True, "channel": (0, 1)}])
def test_what_a_later_training_would_go_on_from_is_not_written(options):
    kinds = ("OrbaxCheckpoint", "ModelCheckpoint", "BackupAndRestore", "CSVLogger", "Own")
    *writing, own = given = [type(name, (keras.callbacks.Callback,), {})() for name in kinds]
    session, left = begin(keras.Sequential(), options, callbacks=given)
    assert own in left and not set(writing) & set(left)
    assert "left out" in session.trainings[0].notes[0]
    of_keras = (keras.models.save_model, keras.saving.save_model, keras.saving.save_weights)
    for save in (*of_keras, np.savetxt):
        assert save.__name__ in LIBRARIES[save.__module__]


def test_a_model_on_several_devices_or_hosts_is_timed_as_it_is():
    known = {"MirroredStrategy": "on 2 replicas", "MultiWorkerMirroredStrategy": "several hosts"}
    for kind, because in known.items():
        strategy = type(kind, (), {"num_replicas_in_sync": 2})()
        model = type("Distributed", (keras.Sequential,), {"distribute_strategy": strategy})()
        (training,) = begin(model)[0].trainings
        assert because in training.passive_because and not training.timing.active


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


def test_a_training_that_continues_an_earlier_one_saves_only_the_epochs_that_it_asks_for():
    """What the script does about another one is not its own failure."""
    model = keras.Sequential()
    session, (*_, clock) = begin(model, initial_epoch=100, epochs=103)
    clock.set_model(model)
    session.trainings[0].timing.trained(Step(0.01, 0.01))
    for epoch in (100, 101, 102):
        assert not session.saves.are_left_out and not session.repeats
        clock.on_epoch_end(epoch)
    assert session.saves.are_left_out and session.repeats and not model.stop_training
    session.trainings[0].only_watch("its `fit` could not be timed")
    clock.on_epoch_end(103)
    assert model.stop_training


def test_of_the_steps_that_jax_is_asked_for_all_but_a_few_are_done():
    waited_for, steps = [], itertools.count()

    def train(state, _):
        step = next(steps)
        return {"loss": SimpleNamespace(block_until_ready=lambda: waited_for.append(step))}, state

    feed = JaxFeed(train, Waits())
    for _ in range(6):
        feed.train(((), iter(())))
    assert waited_for == list(range(6 - MAX_AHEAD))
    feed.settle()
    assert waited_for[-1] == 5


@pytest.mark.parametrize(
    ("kind", "train"),
    [
        (TensorFlowFeed, next),
        (JaxFeed, lambda state, batches: (next(batches), [*state, "trained"])),
        (TorchFeed, lambda steps: steps[0]),
    ],
)
def test_each_backend_trains_on_the_batches_of_a_changed_dataset(monkeypatch, kind, train):
    jax = SimpleNamespace(tree_util=SimpleNamespace(tree_map=map), numpy=np)
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(as_tensor=np.asarray))
    step, batches = kind(train, Waits()).make_step(([],)), iter(tf.data.Dataset.range(5).batch(2))
    done = [step(batches) for _ in range(3)]
    if kind is JaxFeed:
        done, states = zip(*done, strict=True)
        assert [*map(len, states)] == [1, 2, 3]
    assert [np.asarray(batch).tolist() for batch in done] == [[0, 1], [2, 3], [4]]
    with pytest.raises(StopIteration):
        step(batches)


def test_a_cell_is_watched_and_a_command_goes_on_after_a_callback_and_a_watch(capsys, monkeypatch):
    monkeypatch.setattr(sys, "meta_path", sys.meta_path[:])
    command, shell = Session(Options(keep=True), print), Mock()
    register_magic(shell)
    (run,), kind = shell.register_magic_function.call_args
    assert (run.__name__, kind) == ("whowaits", {"magic_kind": "cell"})
    run("", "1 + 1")
    assert shell.mock_calls[1:] == [call.run_cell("1 + 1"), call.run_cell().raise_error()]
    assert capsys.readouterr().out.startswith("this cell: undecided\n  it ended without a training")
    observer = observe(command)
    whowaits.Callback(keras)
    assert observer.session is command and command.here
    with pytest.raises(ValueError, match="its own"), whowaits.watch("my block") as seen:
        assert observer.session is not command
        raise ValueError("its own")
    assert observer.session is command and command.here
    command.close()
    assert seen.report.verdict == "undecided"
    assert capsys.readouterr().out.startswith("my block: undecided\n")


@pytest.mark.parametrize(("step_s", "steps"), [(0.0001, 90), (0.003, 20), (0.012, 20)])
def test_of_steps_that_are_recorded_together_time_and_waits_are_known(step_s, steps):
    """A quarter of a step is waiting, and as much lies between two of them."""
    waits, now, gap_s = Mock(wraps=Waits()), [100.0], 0.02
    session = Session(Options(keep=True), print, clock=lambda: now[0])
    training = session.open("fit", backend="tensorflow")

    def train(iterator):
        waits.add(step_s / 4)
        now[0] += 3 * step_s / 4

    timed = TimedFunction(train, session, training, waits)
    for _ in range(4):
        timed.open_epoch()
        now[0] += gap_s  # in which its iterator is made
        for _ in range(steps):
            timed(iter(()))
            now[0] += step_s / 4
        timed.close_epoch()
        waits.add(5.0)  # of a validation, which is none of the training's
        now[0] += 9.0
    passive = training.timing.passive
    assert training.timing.steps_per_epoch == steps and training.timing.seen == 4 * steps
    assert passive.steps == 3 * steps and not passive.first_epoch
    assert passive.wait_s == pytest.approx(3 * (gap_s + steps * step_s / 4))
    # Before an epoch's first step, and after its last, nothing lies between.
    between = passive.total_s - 3 * (gap_s + 3 / 4 * steps * step_s)
    assert between == pytest.approx(3 * (steps - 1) * step_s / 4)
    assert (waits.take.call_count < 4 * steps / 2) == (step_s < timed_function.TOGETHER_S / 2)


@pytest.mark.parametrize(
    ("facts", "first_epoch", "batches"),
    [
        ({}, True, [30]),
        ({"steps_per_execution": 10}, True, [300]),
        ({"steps": 30}, True, [None]),  # its end was not seen
        ({"fills_cache": True}, False, [30]),
        ({"fills_cache": True}, True, []),
    ],
)
def test_trials_know_the_batches_and_await_a_full_cache(monkeypatch, facts, first_epoch, batches):
    monkeypatch.setattr(trials, "Trials", made := MagicMock())
    session = Session(Options(), print)
    training = session.open("fit", backend="tensorflow", **facts)
    training.dataset, training.timing.steps_per_epoch = object(), 30
    waits, works = Block(steps=20, wait_s=1.0, first_epoch=first_epoch), Block(steps=20, work_s=0.1)
    training.timing.rounds = [Round(waits, works, rested=True)] * 3
    TimedFunction(print, session, training, Waits())._try_changes((None,))
    assert [call.args[2].batches for call in made.call_args_list] == batches
    assert ("the epoch that fills the cache" in "".join(training.notes)) == (not batches)


def test_a_copy_that_trains_on_request_saves_nothing():
    reads, asks = os.pipe()
    os.close(asks)  # no more requests
    session = Session(Options(keep=True, channel=(reads, os.open(os.devnull, os.O_WRONLY))), print)
    training = session.open("fit", backend="tensorflow", dataset=[1])
    timed = TimedFunction(print, session, training, Waits())
    timed(iter(()))
    assert not session.saves.are_left_out
    with pytest.raises(Ended):
        timed(iter(()))
    assert session.saves.are_left_out
