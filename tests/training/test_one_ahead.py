"""The host is one step ahead of a device that works by itself. Here that is TensorFlow's
asynchronous execution on the CPU, whose calls return before they are done, as a GPU's do.
"""

from __future__ import annotations

import threading
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from throughline.measurement.train_steps import time_call
from throughline.training.fit import Schedule, SplitEvaluation, fit
from throughline.training.one_ahead import OneAhead, StepFollower
from throughline.training.step_function import StepFunction

STEPS, STEP_S = 6, 0.1


@pytest.fixture
def asynchronous():
    tf.config.experimental.set_synchronous_execution(False)
    yield
    tf.experimental.async_clear_error()  # of a step that was to fail
    tf.config.experimental.set_synchronous_execution(True)


class Slow(keras.layers.Layer):
    """Takes a while in training, and notes when it has."""

    def __init__(self, note):
        super().__init__()
        self.note = note

    def work(self, value):
        time.sleep(STEP_S)
        self.note("ended")
        return value

    def call(self, value, training=None):
        if not training:
            return value
        done = tf.numpy_function(self.work, [value], tf.float32)
        return value + 0 * tf.stop_gradient(tf.ensure_shape(done, value.shape))


class Follower(StepFollower):
    def __init__(self, events):
        super().__init__()
        self.events = events

    def on_train_batch_end(self, batch, logs=None):
        self.events.append("called")


class LooksAtLosses(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.losses = []

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(logs["loss"])


def train(*more):
    """Train for an epoch; returns in which order steps ended and callbacks were called, the
    times and the weights.
    """
    events = []
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((2,)), Slow(events.append), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    batches = tf.data.Dataset.range(STEPS).map(
        lambda step: (tf.fill((4, 2), tf.cast(step, tf.float32)), tf.ones((4, 1)))
    )
    step = StepFunction(model)
    fit(
        step,
        batches,
        Schedule(steps_per_epoch=STEPS, epochs=1),
        evaluation=SplitEvaluation(model, batches.take(1), 1),
        callbacks=[*more, Follower(events)],
    )
    (epoch,) = step.timer.epochs
    return events, epoch, model.get_weights()


def test_a_step_is_queued_while_the_one_before_runs(asynchronous):
    events, epoch, _ = train()
    ended = [events[:index].count("ended") for index, one in enumerate(events) if one == "called"]
    assert ended[1:] == list(range(1, STEPS)), "exactly one ahead, once the first one is traced"
    assert epoch.steps.tolist() == [1] * STEPS
    assert epoch.step_ms[1:].mean() >= 900 * STEP_S, "each from the end of the one before"


def test_a_callback_that_looks_at_each_loss_waits_for_it(asynchronous):
    looks = LooksAtLosses()
    events, _, _ = train(looks)
    assert events == ["ended", "called"] * STEPS
    assert all(isinstance(loss, float) for loss in looks.losses)


def test_a_call_holds_the_thread_until_its_work_is_queued(asynchronous):
    ahead = OneAhead()

    @tf.function
    def sleep():
        return tf.numpy_function(lambda: np.float32(time.sleep(STEP_S) or 0), [], tf.float32)

    def step():
        ahead.follow({"loss": sleep()})

    step()
    queued_ms = time_call(step, ahead)
    tf.config.experimental.set_synchronous_execution(True)
    ahead = OneAhead()
    assert queued_ms < 500 * STEP_S < time_call(step, ahead)


def test_what_is_learned_is_the_same(asynchronous):
    _, _, ahead = train()
    tf.config.experimental.set_synchronous_execution(True)
    events, _, waiting = train()
    assert events == ["ended", "called"] * STEPS, (
        "on the host a call returns when its step has ended"
    )
    assert all(np.array_equal(a, b) for a, b in zip(ahead, waiting, strict=True))


def test_a_step_that_fails_fails_for_whoever_waits_for_it(asynchronous):
    @tf.function
    def fail(value):
        return {"loss": tf.debugging.check_numerics(value, "not a number")}

    ahead = OneAhead()
    ahead.follow(fail(tf.constant(np.nan)))
    with pytest.raises(tf.errors.InvalidArgumentError, match="not a number"):
        ahead.settle()


class OnGpu:
    """A value in a GPU's memory, which is there once `there` is set."""

    backing_device = "/job:localhost/replica:0/task:0/device:GPU:0"

    def __init__(self):
        self.there = threading.Event()

    def __array__(self, dtype=None, copy=None):
        self.there.wait(10)
        return np.zeros((), dtype)


def test_what_is_on_the_host_says_nothing_of_the_step():
    ahead, ended, losses = OneAhead(), [], [OnGpu(), OnGpu()]
    ahead.follow({"examples": tf.constant(4), "loss": losses[0]}, lambda: ended.append(0))
    assert not ended, "the count is there, the loss is not"
    losses[0].there.set()
    ahead.follow({"examples": tf.constant(4), "loss": losses[1]}, lambda: ended.append(1))
    assert ended == [0]
    losses[1].there.set()
    ahead.settle()
    assert ended == [0, 1]


def test_a_step_without_logs_is_not_waited_for():
    ended = []
    OneAhead().follow({}, lambda: ended.append(0))
    assert ended == [0]
