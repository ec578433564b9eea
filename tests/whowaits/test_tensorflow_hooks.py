"""Loops over datasets of tf.data, through its own iterators: `whowaits.hooks.tensorflow`."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.data.ops import iterator_ops
from tensorflow.python.distribute import input_lib

from whowaits.hooks.fits import FitWatch
from whowaits.hooks.loops import LoopWatch
from whowaits.hooks.tensorflow import _Hooks
from whowaits.session import Options, Session
from whowaits.timing.waits import Waits


@pytest.fixture
def loops(monkeypatch):
    """The loops of this process, watched until the test ends."""
    for owner in (iterator_ops.OwnedIterator, input_lib.DistributedIteratorBase):
        for name in ("__next__", "get_next", "get_next_as_optional"):
            monkeypatch.setattr(owner, name, vars(owner)[name])
    session = Session(Options(keep=True), print)
    watch = LoopWatch(session)
    hooks = _Hooks(FitWatch(session, Waits()), watch)
    hooks.patch_iterators(iterator_ops)
    hooks.patch_distributed(input_lib)
    return watch


def test_epochs_that_are_left_early_are_of_one_training(loops):
    dataset = tf.data.Dataset.range(40)
    for _ in range(4):
        for _ in zip(range(5), dataset, strict=False):
            loops.mark()
    (training,) = loops.session.trainings
    assert len(training.timing.epochs) == 4


def test_a_prediction_of_keras_is_a_part_of_the_step(loops):
    model: Any = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    for _ in tf.data.Dataset.range(6):
        model.predict(np.zeros((3, 1)), batch_size=1, verbose=0)
        loops.mark()
    (training,) = loops.session.trainings
    assert training.timing.seen == 5 and not training.passive_because, "the first may compile"


def test_a_distributed_dataset_is_one_loop(loops):
    data = tf.data.Dataset.range(6).batch(1)
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    for _ in strategy.experimental_distribute_dataset(data):
        loops.mark()
    (training,) = loops.session.trainings
    assert training.timing.seen == 5 and "distribution strategy" in training.passive_because


def test_a_batch_with_nothing_in_a_place_is_waited_for_within_a_graph():
    waits = Waits()
    waits.start(tf)
    iterator = iter(tf.data.Dataset.range(9).map(lambda n: (n, 2 * n, None)))

    @tf.function
    def step():
        return waits.time(lambda: next(iterator))

    assert [None if each is None else int(each) for each in step()] == [0, 0, None]
    assert waits.take() > 0


@pytest.mark.usefixtures("loops")
def test_an_iterator_takes_what_it_takes_without(monkeypatch):
    named = []
    monkeypatch.setattr(iterator_ops.OwnedIterator, "get_next", lambda _, name: named.append(name))
    watch = LoopWatch(Session(Options(keep=True), print))
    _Hooks(FitWatch(watch.session, Waits()), watch).patch_iterators(iterator_ops)
    iter(tf.data.Dataset.range(9)).get_next(name="batch")
    assert named == ["batch"]


def test_what_pytorch_trains_on_its_device_is_waited_for(loops, monkeypatch):
    waited = []
    cuda = SimpleNamespace(is_initialized=lambda: True, synchronize=lambda: waited.append("cuda"))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    for _ in tf.data.Dataset.range(6):
        loops.mark()
    (training,) = loops.session.trainings
    assert training.on_accelerator and not training.synchronous
    training.timing.settle()
    assert waited == ["cuda"]
