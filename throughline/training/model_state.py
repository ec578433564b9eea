"""The state that training changes: variables of layers and of all optimizers that a model holds."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common.global_state import get_global_attribute
from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR

from throughline.kernels.randomness import find_stateful_draws


def build_optimizer(model: keras.Model) -> None:
    if model.optimizer and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)


def list_variables(model: keras.Model) -> list[tf.Variable]:
    """List all variables in a fixed order: weights, optimizers' state, random layers' state."""
    return [getattr(variable, "value", variable) for variable in _variables(model)]


def list_parts(model: keras.Model) -> Sequence[Any]:
    """List layers, optimizers, variables and metrics, in the same order in each process."""
    variables = *_variables(model), *list_variables(model)
    return [*model._flatten_layers(), *_optimizers(model), *variables, *model.metrics]


def find_incomplete(model: keras.Model) -> str | None:
    """Say why a checkpoint before the first step would be incomplete; None if it is complete."""
    known = {id(variable) for variable in list_variables(model)}
    for name, value in _attributes(model):
        if isinstance(value, keras.optimizers.Optimizer) and not value.built:
            return f"the optimizer {name} has no state before its first step"
        held = value.variables if isinstance(value, tf.Module) else [value]
        if any(isinstance(one, tf.Variable) and id(one) not in known for one in held):
            return f"{name} is a tf.Variable, which Keras does not track; use keras.Variable"
    return None


def find_draws(graph: tf.Graph) -> set[str]:
    """Find a graph's random ops whose state is in no variable of the model, unlike Keras' own."""
    draws = find_stateful_draws(graph.as_graph_def())
    shared = get_global_attribute(GLOBAL_SEED_GENERATOR)
    read = {id(one) for one in getattr(graph, "variables", ())}
    unseeded = shared is not None and id(shared.state.value) in read
    return draws | ({"keras.random without a seed"} if unseeded else set())


def _variables(model: keras.Model) -> list[Any]:
    return [
        *model.variables,
        *(variable for optimizer in _optimizers(model) for variable in optimizer.variables),
    ]


def _optimizers(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    held = [
        value for _, value in _attributes(model) if isinstance(value, keras.optimizers.Optimizer)
    ]
    return [*([model.optimizer] if model.optimizer else []), *held]


def _attributes(model: keras.Model) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a model's layers, each value once, without the compiled optimizer."""
    seen = {id(model.optimizer)}

    def walk(name: str, value: Any) -> Iterator[tuple[str, Any]]:
        if id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, Mapping):
            for key, one in value.items():
                yield from walk(f"{name}[{key!r}]", one)
        elif isinstance(value, list | tuple):
            for number, one in enumerate(value):
                yield from walk(f"{name}[{number}]", one)
        else:
            yield name, value

    for layer in model._flatten_layers():
        # Private attributes come last, so that a value is reported by its public name.
        for name, value in sorted(vars(layer).items(), key=lambda item: item[0].startswith("_")):
            yield from walk(name, value)
