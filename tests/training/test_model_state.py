"""What a checkpoint holds: all that a training changes, wherever a model or a callback keeps it."""

from __future__ import annotations

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from throughline.training.callbacks import dump_states, load_states
from throughline.training.model_state import find_draws, find_incomplete, list_parts, list_variables

pytestmark = pytest.mark.integration


class Keeping(keras.Model):
    """A model whose train step may keep more than Keras knows."""


def make_model(**kept):
    inputs = keras.Input((3,))
    inner = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model = Keeping(inputs, inner(inputs))
    model.compile(keras.optimizers.SGD(momentum=0.9), "mse")
    model.optimizer.build(model.trainable_variables)
    for name, value in kept.items():
        setattr(model, name, value)
    return model


def built(optimizer, count=1):
    optimizer.build([keras.Variable(np.ones(2)) for _ in range(count)])
    return optimizer


def test_optimizers_are_found_in_lists_and_dicts_and_in_models_that_are_layers():
    plain = make_model()
    model = make_model(several=[built(keras.optimizers.Adam())])
    model.layers[1].named = {"critic": [built(keras.optimizers.SGD(momentum=0.5), 2)]}
    assert find_incomplete(plain) is None and find_incomplete(model) is None
    further = {id(one.value) for one in model.several[0].variables}
    further |= {id(one.value) for one in model.layers[1].named["critic"][0].variables}
    variables = list_variables(model)
    assert len({*map(id, variables)}) == len(variables) == len(list_variables(plain)) + len(further)
    assert further < {*map(id, variables)}


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        ({"of": {"critic": keras.optimizers.Adam()}}, "the optimizer of['critic'] has no state"),
        ({"seen": tf.Variable(0)}, "seen is a tf.Variable"),
        ({"seen": [(1, {"deep": tf.Variable(0)})]}, "seen[0][1]['deep'] is a tf.Variable"),
        ({"seen": keras.Variable(0.0)}, None),
        ({"seen": [keras.Variable(0.0)]}, None),
    ],
)
def test_what_a_checkpoint_would_not_hold_is_named(kept, said):
    found = find_incomplete(make_model(**kept))
    assert found is None if said is None else (found or "").startswith(said)


GENERATOR = tf.random.Generator.from_seed(1)


@pytest.mark.parametrize(
    ("function", "draws"),
    [
        (lambda value: tf.nn.dropout(value, 0.5), {"RandomUniform"}),
        (lambda value: value + tf.random.normal([4], seed=3), {"RandomStandardNormal"}),
        (lambda value: tf.random.shuffle(value), {"RandomShuffle"}),
        (lambda value: value + GENERATOR.normal([4]), {"RngReadAndSkip"}),
        (
            lambda value: tf.cond(value[0] > 0, lambda: tf.random.normal([4]), lambda: value),
            {"RandomStandardNormal"},
        ),
        (lambda value: value + tf.random.stateless_normal([4], [1, 2]), set()),
        (lambda value: value + keras.random.normal((4,)), {"keras.random without a seed"}),
        (keras.layers.Dropout(0.5, seed=1), set()),
        (keras.layers.GaussianNoise(0.5, seed=1), set()),
    ],
)
def test_draws_from_a_state_that_keras_does_not_hold_are_found_wherever_they_are(function, draws):
    function = tf.function(function, autograph=False)
    graph = function.get_concrete_function(tf.TensorSpec((4,), tf.float32)).graph
    assert find_draws(graph) == draws


class Holding(keras.callbacks.Callback):
    """Holds parts of the model, and something of its own."""

    def on_train_begin(self, logs=None):
        dense = self.model.layers[1].layers[0]
        self.parts = [self.model, dense, dense.kernel, self.model.optimizer]
        self.own = np.arange(3)


def test_a_callback_that_holds_parts_of_the_model_holds_those_of_the_model_that_goes_on():
    before, after = Holding(), Holding()
    models = [make_model(), make_model()]
    for callback, model in zip((before, after), models, strict=True):
        callback.set_model(model)
    before.on_train_begin()
    stored = dump_states([before], list_parts(models[0]))
    load_states([after], stored, list_parts(models[1]))
    held = after.parts
    after.on_train_begin()
    assert all(one is other for one, other in zip(held, after.parts, strict=True))
    np.testing.assert_array_equal(after.own, before.own)
    assert after.model is models[1]


class Unreadable:
    """What can be written and not read."""

    def __reduce__(self):
        return int, ("none",)


@pytest.mark.parametrize(
    ("held", "said"),
    [(threading.Lock(), "cannot pickle"), (Unreadable(), "invalid literal for int")],
)
def test_a_state_that_cannot_be_written_or_read_again_is_not_kept(held, said):
    callback = keras.callbacks.Callback()
    callback.held = held
    with pytest.raises(TypeError, match=rf"Callback\.held: {said}"):
        dump_states([callback], [])
