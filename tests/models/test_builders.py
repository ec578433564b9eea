"""Models by name are built for what `postprocess` makes of the input; with mixed precision the
network computes in bfloat16, and neither what comes before it nor its answers.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest

from tests.support.lanes import slow_but_first
from throughline.assembly.process_configuration import configure_process
from throughline.config.model_checks import BUILT_IN_MODELS
from throughline.models.builders import BUILDERS, Models, Target, build_models, text_classifier
from throughline.plan.ops import Categories, Op, Rescale, Standardize
from throughline.settings import ModelSettings, TrainSettings

pytestmark = pytest.mark.integration

YEARS = np.asarray([[2015.0, 257, 1], [2010.0, 259, 0]], np.float32)
CLASSES = Target(kind="class", shape=(3,))
IMAGES = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), np.uint8)


def build_images(name: str, postprocess: tuple[Op, ...], **options) -> Models:
    settings, inputs = ModelSettings(name=name, options=options), {"input_shape": (32, 32, 3)}
    return build_models(settings, **inputs, dtype="uint8", target=CLASSES, postprocess=postprocess)


def test_a_text_without_tokens_has_an_answer():
    network = text_classifier((6,), 2, vocabulary=9, width=4)
    tokens = np.array([[0] * 6, [3, 4, 0, 0, 0, 0], [3, 4, 3, 4, 3, 4]], np.int32)
    answers = np.asarray(network(tokens))
    assert np.isfinite(answers).all()
    np.testing.assert_allclose(answers[1], answers[2], rtol=1e-5)  # padding counts for nothing


def test_the_built_in_models_are_those_that_params_yaml_knows():
    assert {*BUILDERS} == {*BUILT_IN_MODELS}


@pytest.mark.slow
def test_the_input_is_scaled_once_by_postprocess_or_by_the_model():
    name, rescale = "MobileNetV3Small", Rescale(scale=1 / 127.5, offset=-1)
    outside = build_images(name, (rescale,), alpha=0.35)
    within = build_images(name, (), alpha=0.35, include_preprocessing=True)
    scaling = [isinstance(one, keras.layers.Rescaling) for one in outside.network.layers]
    assert not any(scaling)
    within.network.set_weights(outside.network.get_weights())
    expected = np.asarray(outside.full_model(IMAGES))
    np.testing.assert_allclose(within.full_model(IMAGES), expected, rtol=1e-4, atol=1e-6)


@pytest.fixture
def mixed_precision():
    configure_process(TrainSettings(mixed_precision=True))
    yield
    keras.config.set_dtype_policy("float32")


def build_mlp(*postprocess: Op, target: Target = CLASSES) -> Models:
    inputs = {"input_shape": (3,), "dtype": "float32", "postprocess": postprocess}
    return build_models(ModelSettings(name="mlp"), target=target, **inputs)


@pytest.mark.usefixtures("mixed_precision")
@pytest.mark.parametrize(
    "op",
    [
        Rescale(scale=0.2, offset=-402),
        Standardize(mean=(2010.0, 0.0, 0.0), deviation=(5.0, 1.0, 1.0)),
        Categories(sizes=(300, 2)),
    ],
)
def test_what_comes_before_the_network_is_as_exact_as_without_it(op):
    mixed = build_mlp(op)
    assert "bfloat16" in {layer.compute_dtype for layer in mixed.network.layers}
    keras.config.set_dtype_policy("float32")
    exact = build_mlp(op)
    assert mixed.postprocess and exact.postprocess
    np.testing.assert_array_equal(mixed.postprocess(YEARS), exact.postprocess(YEARS))


@pytest.mark.usefixtures("mixed_precision")
@pytest.mark.parametrize("shape", [(1,), (2, 3)])
def test_predicted_numbers_have_their_unit_in_single_precision(shape):
    per_column = {"mean": (200_001.0,) * shape[-1], "scale": (0.0001,) * shape[-1]}
    models = build_mlp(target=Target(kind="regression", shape=shape, **per_column))
    outputs = np.asarray(models.full_model(YEARS * 0))
    assert outputs.dtype == np.float32 and outputs.shape == (2, *shape)
    np.testing.assert_array_equal(outputs, np.full((2, *shape), 200_001, np.float32))


@pytest.mark.usefixtures("mixed_precision")
@pytest.mark.parametrize("name", ["emulated", *slow_but_first(["small_cnn", "MobileNetV2"])])
def test_the_full_model_answers_in_single_precision(name):
    options = {"step_ms": 1} if name == "emulated" else {}
    assert build_images(name, (Rescale(),), **options).full_model.output.dtype == "float32"
