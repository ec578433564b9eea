"""Optimizers, losses and metrics of one's own: what they are given, and what they compare."""

from contextlib import nullcontext

import keras
import numpy as np
import pytest

from throughline.models.builders import Target
from throughline.settings import TrainSettings
from throughline.shared.errors import UnknownModel
from throughline.training.compiling import compile_model

pytestmark = pytest.mark.integration


class OwnAdam(keras.optimizers.Adam):
    def __init__(self, **options):
        super().__init__(**options)


class OwnEntropy(keras.losses.SparseCategoricalCrossentropy):
    def __init__(self, **options):
        super().__init__(**options)


class OwnMean(keras.metrics.Mean):
    def __init__(self, **options):
        super().__init__(**options)


def make_adam(learning_rate=1e-3, beta=0.9):
    return keras.optimizers.Adam(learning_rate, beta_1=beta)


@pytest.mark.parametrize("optimizer", ["OwnAdam", {"make_adam": {"beta": 0.5}}, "make_adam"])
def test_what_params_decide_reaches_own_classes_and_functions(optimizer):
    def own(spec):
        named = {spec: {}} if isinstance(spec, str) else spec
        return {f"{__name__}:{name}": arguments for name, arguments in named.items()}

    network = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4)])
    named = {"optimizer": own(optimizer), "loss": own("OwnEntropy"), "metrics": [own("OwnMean")]}
    settings = TrainSettings(**named, schedule="constant", learning_rate=0.5)
    compile_model(network, settings, target=Target(kind="class", shape=(4,)), steps=3)
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


@pytest.mark.parametrize("compiled_by_builder", [True, False])
@pytest.mark.parametrize("loss", [Subtracted, Reshaped, squared])
def test_a_loss_that_compares_each_label_with_all_outputs_is_refused(loss, compiled_by_builder):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    settings = TrainSettings(loss=f"{__name__}:{loss.__name__}")
    if compiled_by_builder:
        model.compile("sgd", loss() if isinstance(loss, type) else loss)
        settings = TrainSettings()
    target = Target(kind="regression", shape=())
    refused = pytest.raises(UnknownModel, match="Subtracted compares each label with all outputs")
    with refused if loss is Subtracted else nullcontext():
        compile_model(model, settings, target=target, steps=5)


class SubtractedMean(keras.metrics.Mean):
    def update_state(self, y_true, y_pred, sample_weight=None):
        super().update_state(squared(y_true, y_pred))


class ReshapedMean(SubtractedMean):
    def update_state(self, y_true, y_pred, sample_weight=None):
        super().update_state(keras.ops.reshape(y_true, keras.ops.shape(y_pred)), y_pred)


@pytest.mark.parametrize("compiled_by_builder", [True, False])
@pytest.mark.parametrize("metric", [SubtractedMean, squared, ReshapedMean, "r2_score"])
def test_a_metric_that_compares_each_label_with_all_outputs_is_refused(metric, compiled_by_builder):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    name = metric if metric == "r2_score" else f"{__name__}:{metric.__name__}"
    settings = TrainSettings(metrics=["auto", name])
    if compiled_by_builder:
        model.compile("sgd", "mse", metrics=[metric() if isinstance(metric, type) else metric])
        settings = TrainSettings()
    refused = pytest.raises(UnknownModel, match=r"metric .* compares each label with all outputs")
    with refused if metric in (SubtractedMean, squared) else nullcontext():
        compile_model(model, settings, target=Target(kind="regression", shape=()), steps=5)
    assert not any(np.any(one) for each in model.metrics for one in each.variables)
