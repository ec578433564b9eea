"""Optimizer, loss, metrics, schedule, compiled models: what is asked for is what trains, and what
does not fit, or would compute something else, is refused.
"""

from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise

import keras
import numpy as np
import pytest
import tensorflow as tf

from tasks.train import find_few_steps, find_weakness
from tests.support.made_up import made_up
from tests.support.project import SMALL
from tests.support.trainings import params_of, run, validate
from throughline.assembly.evaluation import complete_metrics
from throughline.assembly.inputs import open_inputs
from throughline.assembly.model import build_models_for
from throughline.assembly.training import check_averages, check_direction, check_metrics, check_rate
from throughline.config.params import check
from throughline.models.builders import Target, build_models
from throughline.models.model_files import check_savable, load_model, save_model
from throughline.models.transformers import PackedModel
from throughline.results.train import HeldOut, TrainResult
from throughline.settings import ModelSettings, TrainSettings
from throughline.shared.errors import UnknownModel
from throughline.training.callbacks import make_callbacks
from throughline.training.compiling import compile_model, describe_own_compile, make_schedule
from throughline.training.step_model import Feed, compute_class_weights, make_step_model

pytestmark = pytest.mark.integration

CLASSES, NUMBERS = Target(kind="class", shape=(4,)), Target(kind="regression", shape=())


class Doubled(keras.Model):
    """A model with a train step of its own."""

    def train_step(self, data):
        inputs, labels = data[:2]
        with tf.GradientTape() as tape:
            loss = 2 * self.compute_loss(y=labels, y_pred=self(inputs, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss, "doubled": loss}


def own_loss(truth, logits):
    return keras.losses.sparse_categorical_crossentropy(truth, logits, from_logits=True)


def network(input_shape, outputs):
    inputs = keras.Input(input_shape)
    return inputs, keras.layers.Dense(outputs)(keras.layers.Flatten()(inputs))


def doubled(input_shape, outputs):
    model = Doubled(*network(input_shape, outputs))
    model.compile(keras.optimizers.SGD(0.05), loss=own_loss)
    return model


def still(input_shape, outputs):
    model = keras.Model(*network(input_shape, outputs))
    top2 = keras.metrics.SparseTopKCategoricalAccuracy(2, name="top2")
    model.compile(keras.optimizers.SGD(0.0), loss=own_loss, metrics=[top2])
    return model


def two_inputs(input_shape, outputs):
    inputs = [keras.Input(input_shape), keras.Input(input_shape)]
    return keras.Model(inputs, keras.layers.Dense(outputs)(keras.layers.Add()(inputs)))


def of_one_number(input_shape, outputs):
    model = keras.Model(*network(input_shape, outputs))
    model.compile("sgd", lambda labels, outputs: keras.ops.mean(outputs))
    return model


def named(name):
    """The name in params.yaml of something in this file; others stay as they are."""
    return f"{__name__}:{name}" if name in globals() else name


def build(name="mlp", **options):
    inputs = {"input_shape": (4,), "dtype": "float32", "postprocess": ()}
    settings = ModelSettings(name=named(name), options=options)
    return build_models(settings, target=CLASSES, **inputs)


@pytest.mark.slow
def test_a_train_step_of_ones_own_runs_wherever_the_input_is_postprocessed(layout, tmp_path):
    finished = []
    for on in ("host", "device"):
        where = f"pipelines.optimized.postprocess_on={on}"
        params = params_of(f"model={{name: '{named('doubled')}'}}", "train.epochs=1", where)
        rows, weights = run(params, layout, tmp_path / on)
        assert [*rows[0]][1:] == ["train_loss", "train_doubled", "val_loss", "learning_rate"]
        assert rows[0]["learning_rate"] == pytest.approx(0.05)
        finished.append(weights)
    for one, other in zip(*finished, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.slow
def test_what_a_builder_compiles_is_kept_and_compared_by_accuracy_all_the_same(layout, tmp_path):
    params = params_of(f"model={{name: '{named('still')}'}}", "train.epochs=2")
    rows, (*weights, _) = run(params, layout, tmp_path)
    assert rows[0]["val_loss"] == rows[-1]["val_loss"] and "val_top2" in rows[0], "a rate of 0"
    data = open_inputs(params, layout)
    models = build_models_for(params, data)
    models.network.set_weights(weights)
    last = {name: value for name, value in rows[-1].items() if name != "epoch"}
    trained = replace(made_up(TrainResult), metric="accuracy", last_epoch=last, test={})
    _, accuracy = validate(models, params, layout)
    result = complete_metrics(trained, models, params, "optimized", data)
    assert result.last_epoch["val_accuracy"] == pytest.approx(accuracy)


def test_a_saved_model_needs_nothing_that_trained_it(tmp_path):
    models = build("still")
    assert not check_savable(models.full_model, [__name__]).objects, "the loss is not in the file"
    save_model(models.full_model, tmp_path / "model.keras")
    assert models.network.compiled and models.network.optimizer is not None, "it trains on"
    values = np.arange(8, dtype=np.float32).reshape(2, 4)
    again = load_model(tmp_path / "model.keras", {})
    np.testing.assert_array_equal(again(values), models.full_model(values))


WEIGHTS = {"class_weights": np.ones(4, np.float32)}


@pytest.mark.parametrize(
    ("builder", "settings", "feed", "said"),
    [
        ("mlp", {"optimizer": "adm"}, {}, "train.optimizer: Keras has no adm"),
        ("mlp", {"optimizer": {"adamw": {"decy": 1}}}, {}, "train.optimizer: adamw does not acc"),
        ("mlp", {"metrics": ["auto", "nothing"]}, {}, "train.metrics: Keras has no nothing"),
        ("mlp", {"metrics": ["mean_io_u"]}, {}, "mean_io_u does not accept .* 'num_classes'"),
        ("mlp", {"callbacks": [named("still")]}, {}, "missing 2 required"),
        ("mlp", {"callbacks": [f"{__name__}:nothing"]}, {}, "cannot be imported"),
        ("two_inputs", {}, {}, r"test_compiling:two_inputs takes 2 inputs, .* has one"),
        ("doubled", {"loss": "mse"}, {}, "train.loss: not used, because the model's builder"),
        ("doubled", {"optimizer": "adam"}, {}, r"train\.optimizer"),  # the default, written down
        ("mlp", {}, {"segments": 8, **WEIGHTS}, "class_weights: packed rows and next tokens"),
        ("of_one_number", {}, WEIGHTS, "class_weights: the loss is one number"),
        ("doubled", {}, WEIGHTS, "class_weights: the model has a train step of its own"),
    ],
)
def test_what_cannot_be_used_or_would_not_be_is_refused(builder, settings, feed, said):
    given = TrainSettings(**settings)
    with pytest.raises(UnknownModel, match=said):
        make_step_model(build(builder), given, Feed(steps_per_epoch=3, stored=False, **feed))
        make_callbacks(given)


@pytest.mark.parametrize("asked", [True, False])
def test_whether_xla_compiles_is_up_to_params_also_where_a_builder_compiles(asked):
    network = build("doubled").network
    network.jit_compile = True  # as Keras' auto has it where there is a GPU
    settings = TrainSettings(jit_compile=asked)
    compile_model(network, settings, target=CLASSES, steps=3)
    assert network.jit_compile is asked
    assert f"train.jit_compile {str(asked).lower()} is" in describe_own_compile(settings)


def test_averages_of_weights_and_the_best_epochs_are_not_both_kept():
    averaging = TrainSettings(optimizer={"sgd": {"use_ema": True}})
    network = build().network
    compile_model(network, averaging, target=CLASSES, steps=3)
    check_averages(network, make_callbacks(averaging))
    restoring = TrainSettings(early_stopping={"restore_best": True})
    with pytest.raises(UnknownModel, match=r"restore_best: the optimizer averages the weights"):
        check_averages(network, make_callbacks(restoring))


def test_names_and_arguments_reach_keras():
    network = build().network
    settings = TrainSettings(
        optimizer={"adamw": {"weight_decay": 0.25}},
        loss={"sparse_categorical_crossentropy": {"ignore_class": 3}},
        metrics=["auto", {"mean_io_u": {"num_classes": 4, "sparse_y_pred": False}}],
        schedule="constant",
        learning_rate=0.5,
    )
    compile_model(network, settings, target=CLASSES, steps=3)
    assert network.optimizer.weight_decay == 0.25
    assert float(network.optimizer.learning_rate) == 0.5
    loss = network.loss.get_config()
    assert (loss["ignore_class"], loss["from_logits"]) == (3, True)
    seen = network.evaluate(np.zeros((4, 4)), np.zeros(4), verbose=0, return_dict=True)
    assert {*seen} == {"loss", "accuracy", "mean_io_u"}


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ("train.metrics=[auto, precision]", "train.metrics: precision"),
        ("train.loss=categorical_crossentropy", "train.loss: categorical_crossentropy"),
    ],
)
def test_a_loss_or_metric_that_does_not_fit_is_named_with_shapes(layout, tmp_path, setting, name):
    said = rf"{name} does not fit labels of shape \(None,\) and outputs of shape \(None, 4\)"
    with pytest.raises(UnknownModel, match=said):
        run(params_of(setting), layout, tmp_path)


def test_what_early_stopping_watches_must_exist_and_have_a_known_direction():
    there = r"val_accuracy, val_loss, val_top2, accuracy, loss, top2; did you mean val_top2\?"
    watching = TrainSettings(early_stopping={"monitor": "val_top"})
    with pytest.raises(UnknownModel, match=f"monitor: val_top is not .* has {there}"):
        check_metrics(dict.fromkeys(["accuracy", "loss", "top2"], 1.0), watching, CLASSES)
    network = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)])
    network.compile(loss="mse", metrics=[lambda truth, guess: keras.ops.mean(guess)])
    network.evaluate(np.zeros((2, 4)), np.zeros((2, 4)), verbose=0)
    stopping = {"monitor": "val_lambda"}
    with pytest.raises(UnknownModel, match=r"early_stopping\.mode: .* set max or min"):
        check_direction(network, TrainSettings(early_stopping=stopping))
    check_direction(network, TrainSettings(early_stopping={**stopping, "mode": "max"}))


def test_a_loss_is_made_for_what_the_model_gives():
    softmax = keras.layers.Dense(4, activation="softmax")
    probabilities = keras.Sequential([keras.Input((4,)), softmax])
    compile_model(probabilities, TrainSettings(), target=CLASSES, steps=3)
    assert probabilities.loss.get_config()["from_logits"] is False
    inputs = keras.Input((3,))
    packed = PackedModel(inputs, keras.layers.Dense(4)(inputs))
    with pytest.raises(UnknownModel, match=r"train.loss: .*own_loss is a function"):
        compile_model(packed, TrainSettings(loss=named("own_loss")), target=CLASSES, steps=3)
    compile_model(packed, TrainSettings(), target=CLASSES, steps=3)
    assert packed.loss.reduction == "mean_with_sample_weight"


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_a_rate_rises_during_the_warm_up_and_follows_its_schedule(schedule):
    settings = TrainSettings(schedule=schedule, learning_rate=0.1, warm_up_epochs=0.5, epochs=2)
    rate = make_schedule(settings, steps=10)
    values = [float(rate(step)) for step in range(21)]
    np.testing.assert_allclose(values[:5], 0.1 * np.arange(1, 6) / 5, rtol=1e-6)
    assert values[5] == pytest.approx(0.1)
    end = {"constant": 0.1, "linear": 0.0, "cosine": 0.0}[schedule]
    assert values[20] == pytest.approx(end, abs=1e-6)
    assert all(one >= other for one, other in pairwise(values[5:]))


def test_class_weights_are_those_of_keras_unless_classes_are_drawn_otherwise(layout):
    data = open_inputs(check({**SMALL, "batch_size": 25}), layout)
    counts = np.bincount(np.asarray(data.memmap("train", "label")), minlength=4)
    weights = compute_class_weights("auto", data)
    np.testing.assert_allclose(weights * counts, counts.sum() / 4, rtol=1e-6)
    assert compute_class_weights("none", data) is None
    given = {data.shards.classes[1]: 3.0}
    assert compute_class_weights(given, data, sampling="balanced").tolist() == [1, 3, 1, 1]
    with pytest.raises(UnknownModel, match=r"train.class_weights: nobody is not a class"):
        compute_class_weights({"nobody": 1.0}, data)
    with pytest.raises(UnknownModel, match=r"class_weights: auto follows how often"):
        compute_class_weights("auto", data, sampling="balanced")


@pytest.mark.slow
def test_weighted_steps_are_those_of_fit_with_class_weights():
    draw = np.random.default_rng(3)
    inputs, labels = draw.normal(size=(32, 4)).astype(np.float32), np.arange(32) % 4
    batches = tf.data.Dataset.from_tensor_slices((inputs, labels)).batch(8)
    weights = np.asarray([1, 5, 0.25, 2], np.float32)
    trained = []
    for weigh in (True, False):
        keras.utils.set_random_seed(0)
        models = build(width=8)
        settings = TrainSettings(schedule="constant", learning_rate=0.1)
        feed = Feed(steps_per_epoch=4, stored=False, class_weights=weights if weigh else None)
        model = make_step_model(models, settings, feed)
        arguments = {} if weigh else {"class_weight": dict(enumerate(weights.tolist()))}
        model.fit(batches, epochs=2, verbose=0, **arguments)
        trained.append(models.network.get_weights())
    for one, other in zip(*trained, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.parametrize(
    ("metric", "value", "weak"),
    [("accuracy", 0.9, False), ("accuracy", 0.3, True), ("mae", 0.1, False), ("mae", 7.0, True)],
)
def test_a_model_that_is_no_better_than_a_constant_is_said_to_be_of_no_use(metric, value, weak):
    held_out = HeldOut(split="test", examples=99, constant_metric=0.4, constant_stderr=0.05)
    result = replace(made_up(TrainResult), metric=metric, held_out=held_out, test={metric: value})
    early = {"stopped": "stopped early after 2 of 9 epochs", "ended_by": "train.callbacks"}
    said = find_weakness(result, steps=6)
    assert ("train.epochs" in said) if weak else not said
    if weak:
        assert "which train.callbacks decides" in find_weakness(result, steps=6, **early)
    if metric == "accuracy":
        said = find_weakness(replace(result, test={metric: 0.0}), steps=6)
        assert "glance.md" in said and "epochs" not in said


def test_a_split_of_hardly_any_batches_is_said():
    few = {"epochs": 4}
    assert "are 1 batch of at most 256" in find_few_steps(100, 256, steps_per_epoch=1, **few)
    assert "are 2 batches" in find_few_steps(323, 256, steps_per_epoch=2, **few)
    assert find_few_steps(700, 256, steps_per_epoch=3, **few) is None


@pytest.mark.parametrize(
    ("computed", "setting"),
    [
        (False, {"schedule": "constant"}),
        (True, {"schedule": "cosine"}),
        (True, {"schedule": "constant", "warm_up_epochs": 1.0}),
    ],
)
def test_a_callback_that_sets_the_rate_is_refused_where_a_schedule_computes_it(computed, setting):
    network, plateau = build().network, [keras.callbacks.ReduceLROnPlateau()]
    compile_model(network, TrainSettings(**setting), target=CLASSES, steps=3)
    check_rate(network, [])
    refused = pytest.raises(UnknownModel, match="ReduceLROnPlateau sets the rate")
    with refused if computed else nullcontext():
        check_rate(network, plateau)


class OwnAdam(keras.optimizers.Adam):
    def __init__(self, **options):
        super().__init__(**options)


class OwnEntropy(keras.losses.SparseCategoricalCrossentropy):
    def __init__(self, **options):
        super().__init__(**options)


def make_adam(learning_rate=1e-3, beta=0.9):
    return keras.optimizers.Adam(learning_rate, beta_1=beta)


@pytest.mark.parametrize("optimizer", [{"OwnAdam": {}}, {"make_adam": {"beta": 0.5}}], ids=str)
def test_what_params_decide_reaches_own_classes_and_functions(optimizer):
    ((name, given),) = optimizer.items()
    own = {"optimizer": {named(name): given}, "loss": {named("OwnEntropy"): {}}}
    settings = TrainSettings(**own, schedule="constant", learning_rate=0.5)
    network = build().network
    compile_model(network, settings, target=CLASSES, steps=3)
    assert float(network.optimizer.learning_rate) == 0.5
    assert network.loss.get_config()["from_logits"] is True


def squared(y_true, y_pred):
    return keras.ops.mean((y_true - y_pred) ** 2)


class Subtracted(keras.losses.Loss):
    """As people write it."""

    def call(self, y_true, y_pred):
        return squared(y_true, y_pred)


class Reshaped(Subtracted):
    """As it has to be."""

    def call(self, y_true, y_pred):
        return super().call(keras.ops.reshape(y_true, keras.ops.shape(y_pred)), y_pred)


@pytest.mark.parametrize("by_builder", [True, False])
@pytest.mark.parametrize(
    ("part", "one", "refused"),
    [
        ("loss", Subtracted, "loss Subtracted"),
        ("loss", Reshaped, None),
        ("loss", squared, None),
        ("metric", squared, "metric .*"),
        ("metric", "r2_score", None),
    ],
)
def test_what_compares_each_label_with_all_outputs_is_refused(part, one, refused, by_builder):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    made, name = (one() if isinstance(one, type) else one), named(getattr(one, "__name__", one))
    settings = TrainSettings(**({"loss": name} if part == "loss" else {"metrics": ["auto", name]}))
    if by_builder:
        own = {"loss": made} if part == "loss" else {"loss": "mse", "metrics": [made]}
        model.compile("sgd", **own)
        settings = TrainSettings()
    said = f"{refused} compares each label with all outputs"
    with pytest.raises(UnknownModel, match=said) if refused else nullcontext():
        compile_model(model, settings, target=NUMBERS, steps=5)
    assert not any(np.any(one) for each in model.metrics for one in each.variables)
