"""The train step, and the row of figures that each epoch gives."""

import re

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
from throughline.training.step_function import StepFunction, StepTimer

pytestmark = pytest.mark.integration

STEPS, EPOCHS = 5, 3
FALLING = keras.optimizers.schedules.PolynomialDecay(1.0, 10, end_learning_rate=0.0)


def train(count):
    """Train on batches that say for which step they are.

    Returns the losses of epochs and of steps, the order of steps, their times and the model.
    """
    order, seen, losses = [], keras.callbacks.History(), []

    def numbered(step):
        order.append(int(step))
        value = np.float32(step)
        return np.full((4, 2), value / 15, np.float32), np.full((4, 1), np.sin(value), np.float32)

    keras.utils.set_random_seed(1)
    drawing = [keras.layers.Dense(3, activation="tanh"), keras.layers.Dropout(0.5, seed=3)]
    model = keras.Sequential([keras.Input((2,)), *drawing, keras.layers.Dense(1)])
    rate = keras.optimizers.schedules.CosineDecay(0.1, STEPS * EPOCHS)
    model.compile(optimizer=keras.optimizers.Adam(rate), loss="mse", steps_per_execution=count)
    batches = tf.data.Dataset.range(STEPS * EPOCHS).map(
        lambda step: tf.numpy_function(numbered, [step], [tf.float32, tf.float32])
    )
    batches = batches.map(
        lambda value, label: (tf.ensure_shape(value, (4, 2)), tf.ensure_shape(label, (4, 1)))
    )
    train_function = StepFunction(model)
    schedule = Schedule(steps_per_epoch=STEPS, epochs=EPOCHS)
    held_out = tf.data.Dataset.from_tensors((np.ones((4, 2)), np.ones((4, 1))))
    evaluation = SplitEvaluation(model, held_out, 1)
    keep = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda *_: losses.extend(train_function.losses)
    )
    fit(train_function, batches, schedule, evaluation=evaluation, callbacks=[seen, keep])
    return (seen.history["loss"], losses), order, train_function.timer, model


@pytest.fixture(scope="module")
def alone():
    return train(1)


@pytest.mark.parametrize(
    ("count", "sizes"), slow_but_first([(4, [4, 1]), (2, [2, 2, 1]), (8, [5])])
)
def test_the_same_steps_losses_and_weights_whatever_the_number_per_execution(alone, count, sizes):
    (losses, each), order, _, model = alone
    assert np.reshape(each, (EPOCHS, STEPS)).mean(axis=1) == pytest.approx(losses), "of each step"
    assert order[: STEPS * EPOCHS] == list(range(STEPS * EPOCHS))
    (same_losses, same_each), order, timer, other = train(count)
    assert order[: STEPS * EPOCHS] == list(range(STEPS * EPOCHS))
    assert int(other.optimizer.iterations) == STEPS * EPOCHS
    assert same_losses == losses and len(losses) == EPOCHS
    assert same_each == each
    for weights, same in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(weights, same)
    assert [epoch.steps.tolist() for epoch in timer.epochs] == [sizes] * EPOCHS
    assert timer.step_times().count == STEPS, "steps, not executions"


def test_a_rate_counts_steps_and_not_executions():
    timer = StepTimer(clock=iter([0.0, 4.0, 5.0]).__next__)
    timer.begin()
    timer.tick(4)
    timer.tick(1)
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


@pytest.mark.parametrize(("logs", "loss"), [(["loss"], 2.0), (["accuracy"], np.nan)])
def test_the_loss_of_an_own_step_is_what_it_says(logs, loss):
    model = OwnStep(logs)
    model.compile("sgd")
    step = StepFunction(model)
    step.begin(2)
    step(iter(tf.data.Dataset.from_tensors(tf.fill((4, 1), 2.0))))
    np.testing.assert_array_equal(step.losses, [loss])


class InnerGraph(keras.Model):
    """Adds to the metric `loss` in a graph of its own."""

    def __init__(self):
        super().__init__()
        self.mean = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.mean]

    def call(self, inputs):
        return inputs

    @tf.function
    def learn(self, data):
        self.mean.update_state(tf.reduce_mean(data))

    def train_step(self, data):
        self.learn(data)
        return {"loss": self.mean.result()}


def test_a_loss_within_a_graph_of_its_own_is_not_known_and_disturbs_nothing():
    model = InnerGraph()
    model.compile("sgd")
    step = StepFunction(model)
    step.begin(1)
    assert float(step(iter([tf.fill((4, 1), 2.0)]))["loss"]) == 2
    np.testing.assert_array_equal(step.losses, [np.nan])


def test_a_cached_split_is_read_once():
    read = []

    def note(number):
        read.append(int(number))
        return np.full((4, 2), number, np.float32)

    batches = tf.data.Dataset.range(3).map(
        lambda number: tf.ensure_shape(tf.numpy_function(note, [number], tf.float32), (4, 2))
    )
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    labeled = batches.map(lambda value: (value, value[:, :1])).cache()
    evaluation = SplitEvaluation(model, labeled, 3)
    assert evaluation.run() == evaluation.run()
    assert read == [0, 1, 2]
    read.clear()
    SplitEvaluation(model, labeled.map(lambda *batch: batch), 2).run()
    assert read == []


LOGS = {"accuracy": 0.5, "loss": 1.0, "val_loss": float("nan"), "val_accuracy": 0.25}


def make(logs=LOGS):
    return epoch_rows.make_row(2, logs, examples_per_s=10.0, learning_rate=0.1)


def test_training_comes_before_validation_and_the_loss_first():
    metrics = ["train/loss", "train/accuracy", "val/loss", "val/accuracy"]
    assert [*epoch_rows.name_metrics(make())] == metrics
    columns = [name.replace("/", "_") for name in metrics]
    assert [*make()] == ["epoch", *columns, "examples_per_s", "learning_rate"]
    said = epoch_rows.describe_row(make())
    assert said == "loss 1.0000, accuracy 0.5000, validation accuracy 0.2500"


@pytest.mark.parametrize("value", [[1, 2], "good"], ids=str)
def test_what_is_no_number_is_named(value):
    said = rf"puts '{re.escape(str(value))}' into the logs of an epoch as 'mine'"
    with pytest.raises(UnknownModel, match=said):
        make({**LOGS, "mine": value})


def test_a_row_is_the_same_after_a_checkpoint_and_its_logs_are_those_it_was_made_of(tmp_path):
    np.testing.assert_equal(epoch_rows.read_logs(make()), LOGS)
    assert make({**LOGS, "learning_rate": 9.0})["learning_rate"] == 0.1
    (tmp_path / "row.json").write_text(dump_json(make()))
    row = epoch_rows.read_row(read_json(tmp_path / "row.json"))
    np.testing.assert_equal(row, make())
    assert isinstance(row["epoch"], int)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_rate_is_that_of_a_step_as_its_schedule_computes_it(wrapped):
    inner = keras.optimizers.SGD(FALLING)
    optimizer = keras.optimizers.LossScaleOptimizer(inner) if wrapped else inner
    optimizer.build([keras.Variable(np.ones(2))])
    inner.iterations.assign(5)
    assert read_rate(optimizer, ahead=-1) == pytest.approx(0.6), "of the last step"
    assert read_rate(optimizer, ahead=2) == pytest.approx(0.3)


def test_where_gradients_are_added_up_a_rate_is_still_that_of_the_step():
    optimizer = keras.optimizers.SGD(FALLING, gradient_accumulation_steps=4)
    optimizer.build([keras.Variable(np.ones(2))])
    optimizer._iterations.assign(8)
    assert read_rate(optimizer, ahead=0) == pytest.approx(float(optimizer.learning_rate))
    assert read_rate(optimizer, ahead=-1) == pytest.approx(0.3)


def test_a_rate_that_is_a_variable_is_that_of_now_and_no_optimizer_has_none():
    optimizer = keras.optimizers.SGD(0.25)
    assert read_rate(optimizer, ahead=-1) == read_rate(optimizer, ahead=3) == 0.25
    assert np.isnan(read_rate(None, ahead=0))
