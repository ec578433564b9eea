"""With mixed precision the network computes in bfloat16, and nothing else does: neither what comes
before it nor the numbers that it answers with.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest

from throughline.assembly.process_configuration import configure_process
from throughline.models.builders import Target, build_models
from throughline.plan.ops import Categories, Rescale, Standardize
from throughline.settings import ModelSettings, TrainSettings

YEARS = np.asarray([[2015.0, 257, 1], [2010.0, 259, 0]], np.float32)
CLASSES = Target(kind="class", shape=(3,))


@pytest.fixture(autouse=True)
def mixed():
    configure_process(TrainSettings(mixed_precision=True))
    yield
    keras.config.set_dtype_policy("float32")


def build(*postprocess, target=CLASSES, name="mlp", shape=(3,)):
    return build_models(
        ModelSettings.model_validate({"name": name}),
        input_shape=shape,
        dtype="float32",
        target=target,
        postprocess=postprocess,
    )


@pytest.mark.parametrize(
    "op",
    [
        Rescale(scale=0.2, offset=-402),
        Standardize(mean=(2010.0, 0.0, 0.0), deviation=(5.0, 1.0, 1.0)),
        Categories(sizes=(300, 2)),
    ],
)
def test_what_comes_before_the_network_is_as_exact_as_without_it(op):
    mixed = build(op)
    assert "bfloat16" in {layer.compute_dtype for layer in mixed.network.layers}
    keras.config.set_dtype_policy("float32")
    exact = build(op)
    assert mixed.postprocess and exact.postprocess
    np.testing.assert_array_equal(mixed.postprocess(YEARS), exact.postprocess(YEARS))


@pytest.mark.parametrize("shape", [(1,), (2, 3)])
def test_predicted_numbers_have_their_unit_in_single_precision(shape):
    per_column = {"mean": (200_001.0,) * shape[-1], "scale": (0.0001,) * shape[-1]}
    models = build(target=Target(kind="regression", shape=shape, **per_column))
    outputs = np.asarray(models.full_model(YEARS * 0))
    assert outputs.dtype == np.float32 and outputs.shape == (2, *shape)
    np.testing.assert_array_equal(outputs, np.full((2, *shape), 200_001, np.float32))


@pytest.mark.parametrize("name", ["small_cnn", "MobileNetV2", "emulated"])
def test_the_full_model_answers_in_single_precision(name):
    options = {"options": {"step_ms": 1}} if name == "emulated" else {}
    models = build_models(
        ModelSettings.model_validate({"name": name, **options}),
        input_shape=(32, 32, 3),
        dtype="uint8",
        target=CLASSES,
        postprocess=(Rescale(),),
    )
    assert models.full_model.output.dtype == "float32"
