"""Models by name: small built-in ones, keras.applications without weights, or your own builder.

A builder is `function(input_shape, outputs, **options) -> keras.Model`. Its model maps float inputs
to one logit per class, or to one number per value to predict. A builder for text takes int32 tokens
(length,), padded with 0, and an option `vocabulary`, the number of different tokens.
`table_input.py` adds columns as a second input. The full model that is saved and served takes
stored inputs (such as uint8 images) and includes the postprocessing ops.
"""

import importlib
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import keras
from keras import layers, ops

from throughline.models import emulation
from throughline.models.device_ops import SINGLE, apply_as_layer
from throughline.models.emulation import Emulation, parse_emulation
from throughline.models.fine_tuning import freeze_layers, load_network, load_weights
from throughline.models.inference import find_last_activation, gives_probabilities
from throughline.models.table_input import (
    TableInput,
    add_table_input,
    ignore_table_input,
    prepare_table_input,
)
from throughline.models.transformers import transformer_decoder, transformer_encoder
from throughline.plan.ops import Op
from throughline.plan.schema import COLUMNS
from throughline.settings import EMULATED_MODEL, ModelSettings
from throughline.shared.errors import UnknownModel

Shape = tuple[int, ...]
CLASS_ACTIVATIONS = ("linear", "softmax", "log_softmax")
INPUT_NAMES = {"uint8": "image", "int32": "text"}  # by dtype; "features" otherwise


@dataclass(frozen=True, kw_only=True)
class Target:
    """The prediction target of a model.

    Attributes:
      kind: `soft_labels` are classes whose labels are vectors, because examples are mixed.
      shape: (classes,), the shape of the numbers to predict, or (vocabulary,).
      mean, scale: Mean and standard deviation (1 if constant) of each target in the training split,
        (targets,); empty unless numbers are predicted.
    """

    kind: Literal["class", "soft_labels", "regression", "next_token"]
    shape: Shape
    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()

    @property
    def metric(self) -> str:
        return "mae" if self.kind == "regression" else "accuracy"


@dataclass(frozen=True, kw_only=True)
class Models:
    """A network and the full model around it, which share their weights.

    Attributes:
      network: Maps postprocessed inputs to outputs.
      full_model: Maps stored inputs to float32 outputs.
      postprocess: Maps a batch of stored inputs to postprocessed ones; None if they are equal.
      emulation: The step times of an emulated accelerator; None if the model computes.
    """

    network: keras.Model
    full_model: keras.Model
    postprocess: Callable[[Any], Any] | None
    target: Target
    emulation: Emulation | None = None


def build_models(
    settings: ModelSettings,
    *,
    input_shape: tuple[int | None, ...],
    dtype: str,
    target: Target,
    postprocess: Sequence[Op],
    table: TableInput | None = None,
) -> Models:
    """Build the model that `settings` names, with `postprocess` ops and columns of a `table`.

    `input_shape` is that of a stored input, without the batch axis. Raises UnknownModel if there is
    no such builder or file, or if its model or options do not fit.
    """
    name = INPUT_NAMES.get(dtype, "features")
    stored = keras.Input(input_shape, dtype=dtype, name=name)
    value: Any = stored
    for op in postprocess:
        value = value if op.on_labels else apply_as_layer(op, value)
    outputs = math.prod(target.shape)
    inputs_shape = tuple(value.shape[1:])
    if settings.from_file:
        network, is_new = load_network(Path(settings.from_file), inputs_shape, outputs)
    else:  # a last layer of the user's own is not the new one that is rescaled below
        network = _build(settings, inputs_shape, outputs, table)
        is_new = ":" not in settings.name
    per_token = (None,) if target.kind == "next_token" else ()
    expected = (None, *per_token, outputs)
    _check_network(network, settings, target, expected, table)
    emulated = settings.name == EMULATED_MODEL
    if settings.weights:
        load_weights(network, Path(settings.weights))
    freeze_layers(network, settings.freeze)
    # A new last layer predicts numbers near zero at first, whatever the data's mean is.
    rescales = bool(target.scale) and not emulated and is_new
    if table and len(network.inputs) == 1:
        first = keras.Input(inputs_shape, dtype=value.dtype, name=name)
        if emulated:
            network = ignore_table_input(network, table, first)
        else:
            _check_sum(network, settings, target)
            unit = () if rescales else target.scale
            network = add_table_input(network, table, first, unit=unit)
    elif table and not settings.from_file:
        network = prepare_table_input(network, table, name)
    if rescales:
        network = _rescale_outputs(network, target)
    if len(target.shape) > 1:
        flat = keras.Input(inputs_shape)
        reshaped = layers.Reshape(target.shape, dtype=SINGLE)(network(flat))
        network = keras.Model(flat, reshaped, name=network.name)
    columns = {COLUMNS: keras.Input((len(table.mean),), name=COLUMNS)} if table else {}
    inputs: Any = {name: stored, **columns} if columns else stored
    processed: Any = {name: value, **columns} if columns else value
    answer = network(processed)
    if answer.dtype != SINGLE:  # a network whose last layer computes in half precision
        answer = layers.Identity(name="answer", dtype=SINGLE)(answer)
    return Models(
        network=network,
        full_model=keras.Model(inputs, answer, name="full_model"),
        postprocess=None if value is stored else keras.Model(inputs, processed, name="postprocess"),
        target=target,
        emulation=parse_emulation(settings.options) if emulated else None,
    )


def _check_network(
    network: Any,
    settings: ModelSettings,
    target: Target,
    expected: tuple[int | None, ...],
    table: TableInput | None,
) -> None:
    found = getattr(network, "output_shape", type(network).__name__)
    if not isinstance(network, keras.Model) or found != expected:
        raise UnknownModel(
            f"model.name: {settings.name} returned {found}; expected a keras.Model with output"
            f" shape {expected}"
        )
    inputs = getattr(network, "inputs", None) or ()
    if table is None and len(inputs) > 1:
        raise UnknownModel(
            f"model.name: {settings.name} takes {len(inputs)} inputs, but the data has one;"
            " columns that data.numeric and data.categorical name would be a second one"
        )
    name = find_last_activation(network) or "linear"
    if target.kind != "regression" and name not in CLASS_ACTIVATIONS:
        key = "model.from" if settings.from_file else "model.name"
        raise UnknownModel(
            f"{key}: {settings.from_file or settings.name} ends with {name}, but classes need"
            " logits, from a last layer without activation, or a softmax"
        )


def _check_sum(network: keras.Model, settings: ModelSettings, target: Target) -> None:
    named = settings.from_file or settings.name
    if network.compiled or type(network).train_step is not keras.Model.train_step:
        raise UnknownModel(
            f"model: {named} compiles itself or has a train step of its own, but with columns as a"
            " second input it is only a part of the trained model; leave loss and optimizer to"
            " params.yaml"
        )
    if target.kind != "regression" and gives_probabilities(network):
        raise UnknownModel(
            f"model: {named} ends with a softmax, but the outputs for columns are added before one;"
            " leave the softmax out, or give the builder an argument `columns`"
        )


def _rescale_outputs(network: keras.Model, target: Target) -> keras.Model:
    """Rescale outputs to the targets' unit, so that training does not depend on that unit."""
    times = math.prod(target.shape) // len(target.scale)  # the horizon of a series
    scale, mean = (list(each) * times for each in (target.scale, target.mean))
    layer = layers.Rescaling(scale, mean, name="unit", dtype=SINGLE)  # pyright: ignore[reportArgumentType]
    several = {one.name: one for one in network.inputs} if len(network.inputs) > 1 else None
    return keras.Model(several or network.inputs, layer(network.outputs[0]), name=network.name)


def small_cnn(
    input_shape: Shape, outputs: int, *, width: int = 16, dropout: float = 0.2
) -> keras.Model:
    """Make a small, fast convolutional network: about 0.2 M weights for 28×28 images."""
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Conv2D(width, 5, strides=2, padding="same", activation="relu"),
            layers.Conv2D(2 * width, 3, strides=2, padding="same", activation="relu"),
            *(
                [
                    layers.Conv2D(2 * width, 3, strides=2, padding="same", activation="relu"),
                    layers.AveragePooling2D(4),
                ]
                if input_shape[0] > 64  # noqa: PLR2004
                else []
            ),
            layers.Flatten(),
            layers.Dropout(dropout),
            layers.Dense(128, activation="relu"),
            layers.Dense(outputs, dtype=SINGLE),
        ],
        name="small_cnn",
    )


def mlp(input_shape: Shape, outputs: int, *, width: int = 256) -> keras.Model:
    """Make a network with one hidden layer, for steps with as little work as possible."""
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Flatten(),
            layers.Dense(width, activation="relu"),
            layers.Dense(outputs, dtype=SINGLE),
        ],
        name="mlp",
    )


def text_classifier(
    input_shape: Shape, outputs: int, *, vocabulary: int, width: int = 64
) -> keras.Model:
    """Make a network of the mean token embedding of a text, without padding, and a dense layer."""
    tokens = keras.Input(input_shape, dtype="int32")
    embedded = layers.Embedding(vocabulary, width)(tokens)
    counts = ops.expand_dims(ops.cast(ops.not_equal(tokens, 0), embedded.dtype), -1)
    # A text without any known token has a count of 0.
    total, count = ops.sum(embedded * counts, axis=1), ops.sum(counts, axis=1)
    mean = ops.divide(total, ops.maximum(count, 1))
    hidden = layers.Dense(width, activation="relu")(mean)
    answer = layers.Dense(outputs, dtype=SINGLE)(hidden)
    return keras.Model(tokens, answer, name="text_classifier")


def _application(name: str) -> Any:
    constructor = getattr(keras.applications, name)
    # Inputs are scaled in `postprocess`, as with every other model.
    scales = "include_preprocessing" in inspect.signature(constructor).parameters
    usual = {"include_preprocessing": False} if scales else {}

    def build(input_shape: Shape, outputs: int, **options: Any) -> keras.Model:
        ours = {"input_shape": input_shape, "classes": outputs}
        ours |= {"weights": None, "classifier_activation": None}
        if decided := ours.keys() & options.keys():
            raise TypeError(f"set by this program, not by options: {', '.join(sorted(decided))}")
        return constructor(**usual | ours | options)

    return build


def _build(
    settings: ModelSettings, input_shape: Shape, outputs: int, table: TableInput | None
) -> Any:
    builder = _builder(settings.name)
    argument = inspect.signature(builder).parameters.get(COLUMNS)
    columns = {COLUMNS: table.width} if table and argument else {}
    if table is None and argument and argument.default is inspect.Parameter.empty:
        raise UnknownModel(
            f"model.name: {settings.name} needs columns next to its input, but there are none: name"
            " some in data.numeric and data.categorical, or give `columns` a default"
        )
    try:
        return builder(input_shape, outputs, **columns, **settings.options)
    except TypeError as error:
        if ":" in settings.name and error.__traceback__ and error.__traceback__.tb_next:
            raise  # from within the user's builder: the traceback says more
        raise UnknownModel(
            f"model.options: {settings.name} does not accept {settings.options}: {error}"
        ) from error
    except ValueError as error:
        if ":" in settings.name:
            raise
        raise UnknownModel(
            f"model.name: {settings.name} cannot be built for inputs of shape {input_shape}"
            f" ({str(error).splitlines()[0]}); use mlp, or your own: package.module:function"
        ) from error


BUILDERS = {
    "small_cnn": small_cnn,
    "mlp": mlp,
    "text_classifier": text_classifier,
    "transformer_decoder": transformer_decoder,
    "transformer_encoder": transformer_encoder,
    EMULATED_MODEL: emulation.emulated_network,
}


def _builder(name: str) -> Any:
    if name in BUILDERS:
        return BUILDERS[name]
    if ":" in name:
        return import_object(name, key="model.name")
    if not hasattr(keras.applications, name):
        raise UnknownModel(f"model.name: {name} is neither built in nor in keras.applications")
    return _application(name)


def import_object(path: str, *, key: str) -> Any:
    """Import the object that `module:name` names; raises UnknownModel if that fails."""
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UnknownModel(
            f"{key}: {path} cannot be imported ({error}); expected package.module:name"
        ) from error
