"""The train step, the row of figures of an epoch, and the host, which is one step ahead of a device
that works by itself. Here that is TensorFlow's asynchronous execution on the CPU, whose calls
return before they are done, as a GPU's do.
"""

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.lanes import slow_but_first
from throughline.shared.errors import TrainingDiverged, UnknownModel
from throughline.shared.files import dump_json, read_json
from throughline.training import epoch_rows
from throughline.training.epoch_rows import read_rate
from throughline.training.fit import Schedule, SplitEvaluation, fit
from throughline.training.step_function import OneAhead, StepFollower, StepFunction, StepTimer

pytestmark = pytest.mark.integration

STEPS, EPOCHS = 5, 3
STEP_S = 0.1  # of a virtual clock
PATIENCE_S = 240


def train(count):
    """Train on as many batches as there are steps, each of other values; returns the losses of
    epochs and of steps, their times and the model.
    """
    keras.utils.set_random_seed(1)
    drawing = [keras.layers.Dense(3, activation="tanh"), keras.layers.Dropout(0.5, seed=3)]
    model = keras.Sequential([keras.Input((2,)), *drawing, keras.layers.Dense(1)])
    rate = keras.optimizers.schedules.CosineDecay(0.1, STEPS * EPOCHS)
    model.compile(optimizer=keras.optimizers.Adam(rate), loss="mse", steps_per_execution=count)
    numbers = np.arange(STEPS * EPOCHS, dtype=np.float32).reshape(-1, 1, 1)
    values, labels = np.tile(numbers / 15, (1, 4, 2)), np.tile(np.sin(numbers), (1, 4, 1))
    batches = tf.data.Dataset.from_tensor_slices((values, labels))
    step, seen, losses = StepFunction(model), keras.callbacks.History(), []
    keep = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: losses.extend(step.losses))
    schedule, held_out = Schedule(steps_per_epoch=STEPS, epochs=EPOCHS), batches.take(1)
    evaluation = SplitEvaluation(model, held_out, 1)
    fit(step, batches, schedule, evaluation=evaluation, callbacks=[seen, keep])
    return (seen.history["loss"], losses), step.timer, model


@pytest.fixture(scope="module")
def alone():
    return train(1)


@pytest.mark.parametrize(
    ("count", "sizes"), slow_but_first([(4, [4, 1]), (2, [2, 2, 1]), (8, [5])])
)
def test_the_same_steps_losses_and_weights_whatever_the_number_per_execution(alone, count, sizes):
    (losses, each), _, model = alone
    assert np.reshape(each, (EPOCHS, STEPS)).mean(axis=1) == pytest.approx(losses), "of each step"
    same_losses, timer, other = train(count)
    assert same_losses == (losses, each) and len(losses) == EPOCHS
    assert int(other.optimizer.iterations) == STEPS * EPOCHS
    assert all(map(np.array_equal, model.get_weights(), other.get_weights()))
    assert [epoch.steps.tolist() for epoch in timer.epochs] == [sizes] * EPOCHS
    assert timer.step_times().count == STEPS, "steps, not executions"


def test_a_rate_counts_steps_and_not_executions():
    timer = StepTimer(clock=iter([0.0, 4.0, 5.0]).__next__)
    timer.begin()
    for steps in (4, 1):
        timer.tick(steps)
    timer.end()
    assert timer.rates == [1.0]
    assert timer.epochs[0].step_ms.tolist() == [1000.0, 1000.0]


@pytest.mark.parametrize("count", [1, 2])
def test_a_loss_that_is_no_number_ends_its_epoch_with_the_step(count):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse", steps_per_execution=count)
    values = np.ones((3 * STEPS, 4, 1), np.float32)
    values[STEPS + 2] = np.nan  # the third step of the second epoch
    batches = tf.data.Dataset.from_tensor_slices((values, values))
    evaluation, seen = SplitEvaluation(model, batches.take(1), 1), keras.callbacks.History()
    schedule = Schedule(steps_per_epoch=STEPS, epochs=EPOCHS)
    said = "the loss is nan in epoch 2, in step 3; .*rate"
    with pytest.raises(TrainingDiverged, match=said):
        fit(StepFunction(model), batches, schedule, evaluation=evaluation, callbacks=[seen])
    assert len(seen.epoch) == 1, "no callback takes such an epoch for one, and keeps its weights"


class OwnStep(keras.Model):
    """Says as `logs` what its train step has computed."""

    def __init__(self, logs):
        super().__init__()
        self.logs = logs

    def call(self, inputs):
        return inputs

    def train_step(self, data):
        return {name: tf.reduce_mean(data) for name in self.logs}


class InnerGraph(OwnStep):
    """Adds to the metric `loss` in a graph of its own."""

    def __init__(self):
        super().__init__(["loss"])
        self.mean = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.mean]

    @tf.function
    def train_step(self, data):
        self.mean.update_state(tf.reduce_mean(data))
        return {"loss": self.mean.result()}


@pytest.mark.parametrize(
    ("model", "known"),
    [(OwnStep(["loss"]), 2.0), (OwnStep(["accuracy"]), np.nan), (InnerGraph(), np.nan)],
)
def test_the_loss_of_an_own_step_is_what_it_says_without_a_graph_of_its_own(model, known):
    model.compile("sgd")
    step = StepFunction(model)
    step.begin(1)
    logs = step(iter([tf.fill((4, 1), 2.0)]))
    np.testing.assert_array_equal(step.losses, [known])
    assert {*map(float, logs.values())} == {2.0}, "nothing is disturbed"


def test_a_cached_split_is_read_once():
    read = []

    def note(number):
        read.append(int(number))
        return np.full((4, 2), number, np.float32)

    values = tf.data.Dataset.range(3).map(
        lambda number: tf.ensure_shape(tf.numpy_function(note, [number], tf.float32), (4, 2))
    )
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    batches = values.map(lambda value: (value, value[:, :1])).cache()
    evaluation = SplitEvaluation(model, batches, 3)
    assert evaluation.run() == evaluation.run()
    SplitEvaluation(model, batches.map(lambda *batch: batch), 2).run()
    assert read == [0, 1, 2]


LOGS = {"accuracy": 0.5, "loss": 1.0, "val_loss": float("nan"), "val_accuracy": 0.25}


def make(**more):
    return epoch_rows.make_row(2, LOGS | more, examples_per_s=10.0, learning_rate=0.1)


def test_a_row_has_training_before_validation_and_is_the_same_after_a_checkpoint(tmp_path):
    metrics = ["train/loss", "train/accuracy", "val/loss", "val/accuracy"]
    assert [*epoch_rows.name_metrics(make())] == metrics
    columns = [name.replace("/", "_") for name in metrics]
    assert [*make()] == ["epoch", *columns, "examples_per_s", "learning_rate"]
    said = epoch_rows.describe_row(make())
    assert said == "loss 1.0000, accuracy 0.5000, validation accuracy 0.2500"
    np.testing.assert_equal(epoch_rows.read_logs(make()), LOGS)
    assert make(learning_rate=9.0)["learning_rate"] == 0.1
    (tmp_path / "row.json").write_text(dump_json(make()))
    row = epoch_rows.read_row(read_json(tmp_path / "row.json"))
    np.testing.assert_equal(row, make())
    assert isinstance(row["epoch"], int)
    for value in ([1, 2], "good"):
        with pytest.raises(UnknownModel, match=r"puts '.+' into the logs of an epoch as 'mine'"):
            make(mine=value)


FALLING = keras.optimizers.schedules.PolynomialDecay(1.0, 10, end_learning_rate=0.0)
SGD = keras.optimizers.SGD


@pytest.mark.parametrize(
    ("optimizer", "steps", "ahead", "rate"),
    [
        (SGD(FALLING), 5, -1, 0.6),  # of the last step
        (SGD(FALLING), 5, 2, 0.3),
        (keras.optimizers.LossScaleOptimizer(SGD(FALLING)), 5, 2, 0.3),
        (SGD(FALLING, gradient_accumulation_steps=4), 8, -1, 0.3),
        (SGD(0.25), 5, 3, 0.25),  # that of now
    ],
)
def test_a_rate_is_that_of_a_step_as_its_schedule_computes_it(optimizer, steps, ahead, rate):
    optimizer.build([keras.Variable(np.ones(2))])
    getattr(optimizer, "inner_optimizer", optimizer)._iterations.assign(steps)
    assert read_rate(optimizer, ahead=ahead) == pytest.approx(rate)
    assert np.isnan(read_rate(None, ahead=ahead))


@pytest.fixture
def asynchronous():
    tf.config.experimental.set_synchronous_execution(False)
    yield
    tf.experimental.async_clear_error()  # of a step that was to fail
    tf.config.experimental.set_synchronous_execution(True)


class Run(StepFollower):
    """In which order steps have ended and callbacks were called, and a clock that steps advance."""

    def __init__(self, *, queued=False):
        super().__init__()
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

    def on_train_batch_end(self, batch, logs=None):
        is_first = "called" not in self.events
        self.events.append("called")
        if not is_first:
            self._called.release()


class Working(keras.layers.Layer):
    """Works in training."""

    def __init__(self, run):
        super().__init__()
        self.run = run

    def call(self, value, training=None):
        if not training:
            return value
        done = tf.numpy_function(self.run.work, [value], tf.float32)
        return value + 0 * tf.stop_gradient(tf.ensure_shape(done, value.shape))


def train_ahead(run, *more):
    """Train for an epoch; returns its times and the weights."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((2,)), Working(run), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    batches = tf.data.Dataset.range(STEPS).map(
        lambda step: (tf.fill((4, 2), tf.cast(step, tf.float32)), tf.ones((4, 1)))
    )
    step = StepFunction(model, clock=lambda: run.now_s)
    evaluation, callbacks = SplitEvaluation(model, batches.take(1), 1), [*more, run]
    schedule = Schedule(steps_per_epoch=STEPS, epochs=1)
    fit(step, batches, schedule, evaluation=evaluation, callbacks=callbacks)
    (epoch,) = step.timer.epochs
    return epoch, model.get_weights()


def test_a_step_is_queued_while_the_one_before_runs_and_learns_the_same(asynchronous):
    run = Run(queued=True)
    epoch, ahead = train_ahead(run)
    events = run.events
    ended = [events[:index].count("ended") for index, one in enumerate(events) if one == "called"]
    assert ended[1:] == list(range(1, STEPS)), "exactly one ahead, once the first one is traced"
    assert epoch.steps.tolist() == [1] * STEPS
    assert epoch.step_ms == pytest.approx(1e3 * STEP_S), "each from the end of the one before"
    tf.config.experimental.set_synchronous_execution(True)
    run = Run()
    _, waiting = train_ahead(run)
    assert run.events == ["ended", "called"] * STEPS, "a call returns when its step has ended"
    assert all(np.array_equal(a, b) for a, b in zip(ahead, waiting, strict=True))


def test_a_callback_that_looks_at_each_loss_waits_for_it(asynchronous):
    losses, run, look = [], Run(), keras.callbacks.LambdaCallback
    train_ahead(run, look(on_train_batch_end=lambda batch, logs: losses.append(logs["loss"])))
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
