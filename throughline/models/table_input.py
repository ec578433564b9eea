"""A second input of a model: columns of the table that lists the examples, next to an image.

A network of one input gets layers of its own for them, whose outputs are added to the network's, as
in the wide and deep models of Cheng et al. (2016). A builder with an argument `columns` gets how
many numbers they are, and returns a network of both inputs, by their names.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
from keras import layers

from throughline.models.device_ops import SINGLE, apply_as_layer
from throughline.plan.ops import Categories, Standardize

COLUMNS = "columns"
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


def add_table_input(
    network: keras.Model, table: TableInput, *, name: str, shape: Any, dtype: str, takes_both: bool
) -> keras.Model:
    """The network of both inputs, of which the first, of this `name`, `shape` and `dtype`, is that
    of `network`, unless this `takes_both`.
    """
    first = keras.Input(shape, dtype=dtype, name=name)
    columns = keras.Input((len(table.mean),), name=COLUMNS)
    inputs = {name: first, COLUMNS: columns}
    coded = apply_as_layer(Standardize(mean=table.mean, deviation=table.deviation), columns)
    if table.categories:
        coded = apply_as_layer(Categories(sizes=table.categories), coded)
    if takes_both:
        outputs = network({name: first, COLUMNS: coded})
    else:
        hidden = layers.Dense(WIDTH, activation="relu", name="columns_hidden")(coded)
        size = network.output_shape[-1]
        wide = layers.Dense(size, name="columns_outputs", dtype=SINGLE)(hidden)
        outputs = layers.Add(name="sum_of_outputs", dtype=SINGLE)([network(first), wide])
    return keras.Model(inputs, outputs, name=f"{network.name}_with_columns")
