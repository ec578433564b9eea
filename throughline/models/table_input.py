"""Columns of a table as a second input of a model, next to an image or a text.

A network with one input gets layers for the columns, whose outputs are added to the network's, as
in the wide and deep models of Cheng et al. (2016). A builder with an argument `columns` gets their
number and returns a network with both inputs, by name.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
from keras import layers

from throughline.models.device_ops import SINGLE, apply_as_layer
from throughline.plan.ops import Categories, Standardize
from throughline.plan.schema import COLUMNS
from throughline.shared.errors import UnknownModel

WIDTH = 64  # units of the layer between columns and outputs


@dataclass(frozen=True, kw_only=True)
class TableInput:
    """The columns of a model's second input: first numbers, then categories.

    Attributes:
      mean: Mean in the training split, (columns,); 0 for categories.
      deviation: Standard deviation in the training split, (columns,); 1 for categories.
      categories: The number of categories of each categorical column.
    """

    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    categories: tuple[int, ...]

    @property
    def width(self) -> int:
        """The number of a network's inputs: one for each number, and one for each category."""
        return len(self.mean) - len(self.categories) + sum(self.categories)


def add_table_input(
    network: keras.Model, table: TableInput, first: Any, *, unit: Sequence[float] = ()
) -> keras.Model:
    """Add two layers for the columns to a network with one input, `first`.

    Both parts' outputs are summed; those of the columns are in multiples of `unit` (outputs,).
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
    """Encode the columns for a network with two inputs, `name` and the columns.

    Raises:
      UnknownModel: If its inputs have other names, or it compiles itself or has its own train step.
    """
    given = {one.name: one for one in network.inputs}
    if given.keys() != {name, COLUMNS}:
        raise UnknownModel(
            f"model.name: the builder takes `{COLUMNS}`, but its network has inputs named"
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
    """Add columns as an input that a network with one input, `first`, ignores."""
    columns = keras.Input((len(table.mean),), name=COLUMNS)
    return _make_model({first.name: first, COLUMNS: columns}, network(first), network)


def _make_model(inputs: dict[str, Any], outputs: Any, network: keras.Model) -> keras.Model:
    return keras.Model(inputs, outputs, name=f"{network.name}_with_columns")


def _code(columns: Any, table: TableInput) -> Any:
    coded = apply_as_layer(Standardize(mean=table.mean, deviation=table.deviation), columns)
    if table.categories:
        coded = apply_as_layer(Categories(sizes=table.categories), coded)
    return coded
