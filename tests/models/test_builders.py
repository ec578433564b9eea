"""Models by name are built for what `postprocess` makes of the input."""

from __future__ import annotations

import keras
import numpy as np

from throughline.config.model_checks import BUILT_IN_MODELS
from throughline.models.builders import BUILDERS, Models, Target, build_models, text_classifier
from throughline.plan.ops import Op, Rescale
from throughline.settings import ModelSettings

IMAGES = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), np.uint8)


def build(*postprocess: Op, **options) -> Models:
    return build_models(
        ModelSettings(name="MobileNetV3Small", options={"alpha": 0.35, **options}),
        input_shape=(32, 32, 3),
        dtype="uint8",
        target=Target(kind="class", shape=(4,)),
        postprocess=postprocess,
    )


def test_a_text_without_tokens_has_an_answer():
    network = text_classifier((6,), 2, vocabulary=9, width=4)
    tokens = np.array([[0] * 6, [3, 4, 0, 0, 0, 0], [3, 4, 3, 4, 3, 4]], np.int32)
    answers = np.asarray(network(tokens))
    assert np.isfinite(answers).all()
    np.testing.assert_allclose(answers[1], answers[2], rtol=1e-5)  # padding counts for nothing


def test_the_built_in_models_are_those_that_params_yaml_knows():
    assert {*BUILDERS} == {*BUILT_IN_MODELS}


def test_the_input_is_scaled_once_by_postprocess_or_by_the_model():
    outside = build(Rescale(scale=1 / 127.5, offset=-1))
    within = build(include_preprocessing=True)
    scaling = [isinstance(one, keras.layers.Rescaling) for one in outside.network.layers]
    assert not any(scaling)
    within.network.set_weights(outside.network.get_weights())
    expected = np.asarray(outside.full_model(IMAGES))
    np.testing.assert_allclose(within.full_model(IMAGES), expected, rtol=1e-4, atol=1e-6)
