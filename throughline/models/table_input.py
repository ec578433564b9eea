"""A second input of a model: columns of the table that lists the examples, next to an image or a
text.

A network of one input gets layers of its own for them, whose outputs are added to the network's, as
in the wide and deep models of Cheng et al. (2016). A builder with an argument `columns` gets how
many numbers they are, and returns a network of both inputs, by their names.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
from keras import layers

from throughline.models.device_ops import SINGLE, apply_as_layer
from throughline.plan.ops import Categories, Standardize
from throughline.plan.schema import COLUMNS
from throughline.shared.errors import UnknownModel

WIDTH = 64  # of the layer between columns and outputs


@dataclass(frozen=True, kw_only=True)
class TableInput:
    """What a model has to know of its columns, numbers and then categories: `mean` and `deviation`
    (columns,) of the training split, 0 and 1 for categories, and how many `categories` each of
    these has.
    """

    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    categories: tuple[int, ...]

    @property
    def width(self) -> int:
        """How many numbers a network gets: one a number, and one a category."""
        return len(self.mean) - len(self.categories) + sum(self.categories)


def takes_columns(builder: Callable[..., Any]) -> bool:
    """Whether a builder makes networks of both inputs."""
    return COLUMNS in inspect.signature(builder).parameters


def needs_columns(builder: Callable[..., Any]) -> bool:
    """Whether a builder makes no others."""
    argument = inspect.signature(builder).parameters.get(COLUMNS)
    return argument is not None and argument.default is inspect.Parameter.empty


def add_table_input(
    network: keras.Model, table: TableInput, first: Any, *, unit: Sequence[float] = ()
) -> keras.Model:
    """The sum of a network of one input, `first`, and of two layers for the columns, which answer
    in multiples of a `unit` (outputs,), if any.
    """
    columns = keras.Input((len(table.mean),), name=COLUMNS)
    hidden = layers.Dense(WIDTH, activation="relu", name="columns_hidden")(_code(columns, table))
    size = network.output_shape[-1]
    wide = layers.Dense(size, name="columns_outputs", dtype=SINGLE)(hidden)
    if unit:
        wide = layers.Rescaling(list(unit), name="columns_unit", dtype=SINGLE)(wide)  # pyright: ignore[reportArgumentType]
    outputs = layers.Add(name="sum_of_outputs", dtype=SINGLE)([network(first), wide])
    return _make_model({first.name: first, COLUMNS: columns}, outputs, network)


def prepare_table_input(network: keras.Model, table: TableInput, name: str) -> keras.Model:
    """A network of both inputs, the first of this `name`, which gets the columns coded.

    Raises:
      UnknownModel: its inputs have other names, or it is to train in a way of its own.
    """
    given = {one.name: one for one in network.inputs}
    if given.keys() != {name, COLUMNS}:
        raise UnknownModel(
            f"model.name: the builder takes `{COLUMNS}`, and its network has inputs named"
            f" {', '.join(given)}; expected {name} and {COLUMNS}, by keras.Input(…, name=…)"
        )
    if network.compiled or type(network).train_step is not keras.Model.train_step:
        raise UnknownModel(
            "model.name: a network of several inputs is trained as params.yaml says; leave"
            " compile and train_step out of the builder"
        )
    first = keras.Input(given[name].shape[1:], dtype=given[name].dtype, name=name)
    columns = keras.Input((len(table.mean),), name=COLUMNS)
    values = {name: first, COLUMNS: _code(columns, table)}
    by_name = isinstance(network.input, dict)
    outputs = network(values if by_name else [values[one.name] for one in network.inputs])
    return _make_model({name: first, COLUMNS: columns}, outputs, network)


def ignore_table_input(network: keras.Model, table: TableInput, first: Any) -> keras.Model:
    """A network of one input, `first`, that is given columns as well and does not look at them."""
    columns = keras.Input((len(table.mean),), name=COLUMNS)
    return _make_model({first.name: first, COLUMNS: columns}, network(first), network)


def _make_model(inputs: dict[str, Any], outputs: Any, network: keras.Model) -> keras.Model:
    return keras.Model(inputs, outputs, name=f"{network.name}_with_columns")


def _code(columns: Any, table: TableInput) -> Any:
    """Columns as a network gets them: numbers standardized, categories as ones and zeros."""
    coded = apply_as_layer(Standardize(mean=table.mean, deviation=table.deviation), columns)
    if table.categories:
        coded = apply_as_layer(Categories(sizes=table.categories), coded)
    return coded
