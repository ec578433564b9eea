"""The host is one step ahead of a device that works by itself. Here that is TensorFlow's
asynchronous execution on the CPU, whose calls return before they are done, as a GPU's do.
"""

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from throughline.training.fit import Schedule, SplitEvaluation, fit
from throughline.training.step_function import OneAhead, StepFollower, StepFunction

pytestmark = pytest.mark.integration

STEPS, STEP_S = 6, 0.1  # of a virtual clock
PATIENCE_S = 240


@pytest.fixture
def asynchronous():
    tf.config.experimental.set_synchronous_execution(False)
    yield
    tf.experimental.async_clear_error()  # of a step that was to fail
    tf.config.experimental.set_synchronous_execution(True)


class Run:
    """In which order steps have ended and callbacks were called, and a clock that steps advance."""

    def __init__(self, *, queued=False):
        self.events, self.now_s, self._queued = [], 0.0, queued
        self._is_first, self._called = True, threading.Semaphore(0)

    def work(self, value):
        """A step's work; where it is `queued`, that of all but the first one ends only when the
        host has gone on: when the step's own callback was called.
        """
        if self._is_first:
            self._is_first = False
        elif self._queued:
            assert self._called.acquire(timeout=PATIENCE_S)
        self.now_s += STEP_S
        self.events.append("ended")
        return value

    def call(self):
        is_first = "called" not in self.events
        self.events.append("called")
        if not is_first:
            self._called.release()


class Step(keras.layers.Layer):
    """Works in training."""

    def __init__(self, run):
        super().__init__()
        self.run = run

    def call(self, value, training=None):
        if not training:
            return value
        done = tf.numpy_function(self.run.work, [value], tf.float32)
        return value + 0 * tf.stop_gradient(tf.ensure_shape(done, value.shape))


class Follower(StepFollower):
    def __init__(self, run):
        super().__init__()
        self.run = run

    def on_train_batch_end(self, batch, logs=None):
        self.run.call()


def train(run, *more):
    """Train for an epoch; returns its times and the weights."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((2,)), Step(run), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    batches = tf.data.Dataset.range(STEPS).map(
        lambda step: (tf.fill((4, 2), tf.cast(step, tf.float32)), tf.ones((4, 1)))
    )
    step = StepFunction(model, clock=lambda: run.now_s)
    evaluation, callbacks = SplitEvaluation(model, batches.take(1), 1), [*more, Follower(run)]
    schedule = Schedule(steps_per_epoch=STEPS, epochs=1)
    fit(step, batches, schedule, evaluation=evaluation, callbacks=callbacks)
    (epoch,) = step.timer.epochs
    return epoch, model.get_weights()


def test_a_step_is_queued_while_the_one_before_runs_and_learns_the_same(asynchronous):
    run = Run(queued=True)
    epoch, ahead = train(run)
    events = run.events
    ended = [events[:index].count("ended") for index, one in enumerate(events) if one == "called"]
    assert ended[1:] == list(range(1, STEPS)), "exactly one ahead, once the first one is traced"
    assert epoch.steps.tolist() == [1] * STEPS
    assert epoch.step_ms == pytest.approx(1e3 * STEP_S), "each from the end of the one before"
    tf.config.experimental.set_synchronous_execution(True)
    run = Run()
    _, waiting = train(run)
    assert run.events == ["ended", "called"] * STEPS, "a call returns when its step has ended"
    assert all(np.array_equal(a, b) for a, b in zip(ahead, waiting, strict=True))


def test_a_callback_that_looks_at_each_loss_waits_for_it(asynchronous):
    losses, run = [], Run()

    def look(batch, logs):
        losses.append(logs["loss"])

    train(run, keras.callbacks.LambdaCallback(on_train_batch_end=look))
    assert run.events == ["ended", "called"] * STEPS
    assert len(losses) == STEPS and all(isinstance(loss, float) for loss in losses)


def test_a_step_that_fails_fails_for_whoever_waits_for_it(asynchronous):
    @tf.function
    def fail(value):
        return tf.debugging.check_numerics(value, "not a number")

    ahead = OneAhead()
    ahead.follow(fail(tf.constant(np.nan)), print)
    with pytest.raises(tf.errors.InvalidArgumentError, match="not a number"):
        ahead.settle()


class OnGpu:
    """A value in a GPU's memory, which is there once `there` is set."""

    backing_device = "/job:localhost/replica:0/task:0/device:GPU:0"

    def __init__(self):
        self.there = threading.Event()

    def __array__(self, dtype=None, copy=None):
        self.there.wait(PATIENCE_S)
        return np.zeros((), dtype)


def test_losses_on_a_gpu_are_waited_for_one_execution_later():
    ahead, ended, losses = OneAhead(), [], [OnGpu(), OnGpu()]
    ahead.follow(losses[0], ended.append)
    assert not ended
    losses[0].there.set()
    ahead.follow(losses[1], ended.append)
    assert ended == [0]
    losses[1].there.set()
    ahead.settle()
    assert ended == [0, 0]
    ahead.follow(tf.constant(3), ended.append)
    assert ended == [0, 0, 3], "on the host it has ended"
