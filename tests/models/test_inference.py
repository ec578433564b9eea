"""What is kept within a model's file: ops come back as they were, and outputs are read as what
they are.
"""

from __future__ import annotations

import keras
import pytest
from keras import layers

from throughline.data.encodings.arrays import array_feature
from throughline.data.encodings.images import image_feature
from throughline.data.encodings.labels import labeled
from throughline.models.inference import find_last_activation, gives_probabilities
from throughline.plan.op_parsing import describe_op, restore_op
from throughline.plan.ops import DecodeImage, DecodeRaw, Op, Resize, Standardize
from throughline.plan.text_ops import Tokenize

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    "op",
    [
        Resize(height=3, width=4, antialias=True),
        DecodeImage(channels=3, dct="accurate", ratio=2, crop=(4, 5)),
        DecodeRaw(size=(None, 3), dtype="float32"),
        Standardize(mean=(0.5, 1.0), deviation=(2.0, 3.0)),
        Tokenize(kind="bytes"),
    ],
    ids=lambda op: op.name,
)
def test_an_op_comes_back_as_it_was(op: Op):
    rows = labeled(array_feature("numbers", (3,), "float32"))
    schema = rows if isinstance(op, DecodeRaw) else labeled(image_feature())
    restored, problems = restore_op(describe_op(op), schema)
    assert (restored, problems) == (op, [])
    assert restored is not None and restored.identity == op.identity


def test_a_model_that_ends_with_a_softmax_gives_probabilities():
    inputs = keras.Input((3,))
    logits = layers.Dense(2)(inputs)
    inner = keras.Model(inputs, layers.Dense(2, "softmax")(inputs))
    assert not gives_probabilities(keras.Model(inputs, logits))
    assert not gives_probabilities(keras.Model(inputs, layers.Dense(2, "sigmoid")(inputs)))
    assert gives_probabilities(keras.Model(inputs, layers.Softmax()(logits)))
    assert gives_probabilities(keras.Model(inputs, layers.Activation("softmax")(logits)))
    assert gives_probabilities(keras.Model(inputs, inner(inputs))), "within another model"
    cast = layers.Identity(dtype="float32")(inner(inputs))
    assert gives_probabilities(keras.Model(inputs, cast)), "before a cast"
    linear = layers.Activation("linear", dtype="float32")(inner(inputs))
    assert gives_probabilities(keras.Model(inputs, linear)), "before another one"
    called = keras.ops.softmax(logits)
    assert gives_probabilities(keras.Model(inputs, called)), "of a function"
    mean = layers.Average()([inner(inputs), called])
    assert gives_probabilities(keras.Model(inputs, mean)), "an ensemble"
    mixed = layers.Average()([inner(inputs), logits])
    assert not gives_probabilities(keras.Model(inputs, mixed))
    assert find_last_activation(keras.Model(inputs, keras.ops.sigmoid(logits))) == "sigmoid"
