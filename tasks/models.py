"""Models by name: two small built-in ones, every keras.applications network without weights, or a builder of your own.

A builder is `function(input_shape, classes, **options) -> keras.Model` from float images to logits. What is saved and served
is always the whole: uint8 images in, finishing ops, then the network; so serving needs no preprocessing code.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
from keras import layers

from tasks.errors import UnknownModel
from tasks.pipelines.ops import Op, Rescale
from tasks.settings import ModelSettings, TrainSettings

Shape = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class Models:
    """The network (finished float images → logits) and the whole (uint8 images → logits); they share their weights."""

    network: keras.Model
    whole: keras.Model


def build_models(settings: ModelSettings, *, input_shape: Shape, classes: int, finish: Sequence[Op]) -> Models:
    """Build the model that `settings` names for images of `input_shape` (height, width, channels).

    Raises:
      UnknownModel: there is no such builder, or it did not return a fitting Keras model.
    """
    network = _builder(settings.name)(input_shape, classes, **settings.options)
    if not isinstance(network, keras.Model) or network.output_shape != (None, classes):
        found = getattr(network, "output_shape", type(network).__name__)
        raise UnknownModel(f"model.name: {settings.name} returned {found}; needed is a keras.Model with one logit per class, (None, {classes})")
    image = keras.Input(input_shape, dtype="uint8", name="image")
    value: Any = image
    for op in finish:
        value = finishing_layer(op)(value)
    return Models(network=network, whole=keras.Model(image, network(value), name="whole"))


def compile_model(model: keras.Model, settings: TrainSettings, *, steps: int) -> None:
    """Compile with Adam and cross-entropy on logits, unless the builder has compiled the model itself."""
    if getattr(model, "compiled", False):
        return
    rate: Any = settings.learning_rate
    if settings.schedule == "cosine":
        rate = keras.optimizers.schedules.CosineDecay(settings.learning_rate, settings.epochs * steps)
    model.compile(
        optimizer=keras.optimizers.Adam(rate),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=settings.jit_compile,  # pyright: ignore[reportArgumentType] - Keras takes a boolean, too
        steps_per_execution=settings.steps_per_execution,
    )


def finishing_layer(op: Op) -> layers.Layer:
    """The Keras layer that does on the device what a `finish` op does on the host."""
    if isinstance(op, Rescale):
        return layers.Rescaling(op.scale, op.offset, name="rescale")
    own = getattr(op, "layer", None)
    if own is None:
        raise UnknownModel(f"finish: {op.name} cannot be part of a model; give {type(op).__name__} a method layer() that returns a Keras layer")
    return own()


def small_cnn(input_shape: Shape, classes: int, *, width: int = 16, dropout: float = 0.2) -> keras.Model:
    """Two strided convolutions and a dense layer: about 0.2 M weights for 28×28 images, quick even without an accelerator."""
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Conv2D(width, 5, strides=2, padding="same", activation="relu"),
            layers.Conv2D(2 * width, 3, strides=2, padding="same", activation="relu"),
            *([layers.Conv2D(2 * width, 3, strides=2, padding="same", activation="relu"), layers.AveragePooling2D(4)] if input_shape[0] > 64 else []),  # noqa: PLR2004
            layers.Flatten(),
            layers.Dropout(dropout, seed=0),
            layers.Dense(128, activation="relu"),
            layers.Dense(classes),
        ],
        name="small_cnn",
    )


def mlp(input_shape: Shape, classes: int, *, width: int = 256) -> keras.Model:
    """One hidden layer; the least work a model can be."""
    return keras.Sequential([keras.Input(input_shape), layers.Flatten(), layers.Dense(width, activation="relu"), layers.Dense(classes)], name="mlp")


def _application(name: str) -> Any:
    def build(input_shape: Shape, classes: int, **options: Any) -> keras.Model:
        constructor = getattr(keras.applications, name)
        return constructor(weights=None, input_shape=input_shape, classes=classes, classifier_activation=None, **options)

    return build


def _builder(name: str) -> Any:
    built_in = {"small_cnn": small_cnn, "mlp": mlp}
    if name in built_in:
        return built_in[name]
    if ":" not in name:
        if not hasattr(keras.applications, name):
            raise UnknownModel(f"model.name: {name} is neither built in nor in keras.applications")
        return _application(name)
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise UnknownModel(f"model.name: {name} cannot be imported ({error}); expected package.module:function") from error
