"""Fine-tuning: a network from a file, weights from a file, and frozen layers."""

import warnings
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import keras
import numpy as np

from throughline.models.device_ops import SINGLE
from throughline.models.inference import find_spec
from throughline.models.model_files import explain, load_model
from throughline.models.transformers import Transformer, TransformerEncoder, replace_head
from throughline.shared.errors import UnknownModel, did_you_mean
from throughline.shared.progress import echo

ALL_BUT_LAST = "all_but_last"
NEW_OUTPUT = "new_output"
SHOWN = 4  # most missing weights to name


def load_network(
    path: Path, input_shape: tuple[int | None, ...], outputs: int
) -> tuple[keras.Model, bool]:
    """Load the network of a Keras file, in safe mode, for postprocessed inputs of `input_shape`.

    For a model of this program, that is the inner network, with its input for columns, if any. The
    network computes in this process's precision, and all its layers are trainable, whatever the
    file says. Also returns whether the last layer was replaced by one with this many `outputs`.

    Raises UnknownModel if it cannot be loaded or replaced, or takes other inputs.
    """
    try:
        spec = find_spec(path)
        network = load_model(path, spec.objects if spec else {})
    except Exception as error:
        raise UnknownModel(f"model.from: {path} cannot be loaded: {explain(error)}") from error
    if spec:
        network = _find_network(network)
    inputs = {one.name: one for one in getattr(network, "inputs", None) or ()}
    if len(inputs) > 1 and not (spec and spec.schema.table_input):
        raise UnknownModel(
            f"model.from: {path} takes several inputs; load it in a builder of your own"
        )
    first = spec.schema.input.name if spec and len(inputs) > 1 else next(iter(inputs), "")
    taken = tuple(inputs[first].shape[1:]) if inputs else ()
    if len(taken) != len(input_shape) or any(
        None not in pair and pair[0] != pair[1] for pair in zip(taken, input_shape, strict=True)
    ):
        raise UnknownModel(
            f"model.from: {path} takes inputs of shape {taken}, but these are {input_shape}; adapt"
            " them in preprocess, such as by {resize: {height: …, width: …}}"
        )
    _apply_precision(network)
    for layer in network._flatten_layers():  # setting it on the model would not reach all layers
        layer.trainable = True
    fits = network.output_shape[-1] == outputs
    return (network if fits else _replace_output(network, outputs)), not fits


def _find_network(full_model: keras.Model) -> keras.Model:
    """Return the network within a full model, before its outputs are reshaped to a target."""
    network = [one for one in full_model.layers if isinstance(one, keras.Model)][-1]
    *_, before, last = [None, *network.layers]
    whole = isinstance(last, keras.layers.Reshape) and len(network.output_shape) > 2  # noqa: PLR2004
    return before if whole and isinstance(before, keras.Model) else network


def _apply_precision(network: keras.Model) -> None:
    """Apply `train.mixed_precision` to a loaded network.

    In a mixed network, layers in single precision stay so; in any other, only rescaling,
    normalization and the last layers do.
    """
    policy, every = keras.config.dtype_policy(), network._flatten_layers()
    models = [one for one in every if isinstance(one, keras.Model)]
    layers = [one for one in every if not isinstance(one, keras.Model | keras.layers.InputLayer)]
    mixed = [one for one in layers if one.dtype_policy.name.startswith("mixed")]
    if not mixed and policy.name != SINGLE:
        exact = {id(one) for one in _list_last(network)}
        kept = keras.layers.Rescaling | keras.layers.Normalization
        single = [one for one in layers if one.dtype_policy.name == SINGLE]
        mixed = [one for one in single if id(one) not in exact and not isinstance(one, kept)]
    for layer in (*models, *mixed):
        layer.dtype_policy = policy


def load_weights(network: keras.Model, path: Path) -> None:
    """Load weights from a file, layer by layer; print missing ones, UnknownModel if all are."""
    weights = [one for one in network.weights if "float" in one.dtype]
    initial = [np.asarray(one) for one in weights]
    for weight, value in zip(weights, initial, strict=True):
        weight.assign(np.full_like(value, np.nan))  # NaN marks weights that are not loaded
    legacy = path.suffix == ".h5" and not path.name.endswith(".weights.h5")
    try:
        with warnings.catch_warnings(action="ignore"):  # Keras warns of each mismatch
            network.load_weights(
                str(path), skip_mismatch=True, **({"by_name": True} if legacy else {})
            )
    except Exception as error:
        raise UnknownModel(f"model.weights: {path} cannot be loaded: {explain(error)}") from error
    missing = []
    for weight, value in zip(weights, initial, strict=True):
        if value.size and np.isnan(np.asarray(weight)).all():
            weight.assign(value)
            missing.append(weight.path)
    if len(missing) == len(weights):
        raise UnknownModel(
            f"model.weights: nothing of {path} fits the layers of {network.name}; name a file of"
            " weights of this network"
        )
    begin = f"; others keep their initial values: {', '.join(missing[:SHOWN])}" if missing else ""
    echo(f"  weights from {path}: {len(weights) - len(missing)} of {len(weights)}{begin}")


def freeze_layers(network: keras.Model, patterns: Sequence[str]) -> None:
    """Freeze the layers that match one of the patterns; `all_but_last` stands for all but the last.

    Raises UnknownModel if a pattern matches no layer, or no weights are (left) to train.
    """
    if not network.trainable_weights:
        raise UnknownModel(f"model.name: {network.name} has no weights that could be trained")
    layers = [one for one in network._flatten_layers(include_self=False) if one is not network]
    for pattern in patterns:
        weighted = [one for one in layers if one.weights]
        if pattern == ALL_BUT_LAST:
            last = {id(one) for one in _list_last(network)}
            matching = [one for one in weighted if last.isdisjoint(map(id, one._flatten_layers()))]
        elif not (matching := [one for one in layers if fnmatchcase(one.name, pattern)]):
            raise UnknownModel(
                f"model.freeze: {pattern} matches no layer of {network.name};"
                f" {did_you_mean(pattern, [one.name for one in weighted])}"
            )
        for layer in matching:
            layer.trainable = False
    if not network.trainable_weights:
        raise UnknownModel("model.freeze: no layer is left to train; freeze fewer")


def _replace_output(network: keras.Model, outputs: int) -> keras.Model:
    last = next((one for one in _chain(network) if one.weights), None)
    if isinstance(last, TransformerEncoder):
        echo(f"  the last layer of {last.name} is replaced by a new one of {outputs} outputs")
        return replace_head(network, last, outputs)
    if last is None or isinstance(last, keras.Model | Transformer):
        raise UnknownModel(
            f"model.from: {network.name} gives {network.output_shape[-1]} outputs, not {outputs} as"
            " needed, and its last layer cannot be replaced; load it in a builder of your own"
        )
    logits = keras.layers.Dense(outputs, name=NEW_OUTPUT, dtype=SINGLE)(last.input)
    echo(f"  {last.name} is replaced by a new layer of {outputs} outputs")
    return keras.Model(network.inputs, logits, name=network.name)


def _list_last(network: keras.Model) -> list[Any]:
    """List the last layer that has weights and those after it, down to their inner layers."""
    last = []
    for layer in (*_chain(network), *reversed(network._layers)):  # at a branch, the layer made last
        if isinstance(layer, keras.Model) and layer.weights:
            return [*last, *_list_last(layer)]
        last += (layer.last if isinstance(layer, Transformer) else layer)._flatten_layers()
        if layer.weights:
            break
    return last


def _chain(network: keras.Model) -> Iterator[Any]:
    """Yield the layers from a single output backward, up to the first with several inputs."""
    tensors = list(getattr(network, "outputs", None) or [])
    while len(tensors) == 1:
        layer = tensors[0]._keras_history.operation
        if isinstance(layer, keras.layers.InputLayer):
            return
        yield layer
        tensors = [layer.input] if not isinstance(layer.input, list | tuple | dict) else []
