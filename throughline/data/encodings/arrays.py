"""Values in arrays, all of one size: pixels, numbers, the time steps of a series, and the columns
of a table that lists examples.
"""

from __future__ import annotations

from throughline.plan.ops import DecodeRaw, Op
from throughline.plan.schema import (
    COLUMNS,
    Encoding,
    Feature,
    Shape,
    TableColumns,
    find_encoding,
    register,
)
from throughline.settings import PipelineConfig


class _ArrayEncoding(Encoding):
    """Values in C order."""

    def decode(self, feature: Feature, config: PipelineConfig | None) -> Op:
        """Reinterpret the bytes."""
        return DecodeRaw(size=feature.shape, dtype=feature.dtype)


@register
class PixelEncoding(_ArrayEncoding):
    """Images of one size that are not in files."""

    name = "pixels"
    modality = "images"
    noun = "images"
    storage = "rows"


@register
class NumberEncoding(_ArrayEncoding):
    """Rows of a table, and vectors."""

    name = "numbers"
    modality = "numbers"
    noun = "numbers"
    storage = "rows"


@register
class SeriesEncoding(_ArrayEncoding):
    """Blocks of consecutive time steps; an example's key is the block's first step."""

    name = "series"
    modality = "numbers"
    noun = "a time series"
    storage = "blocks"

    def decode(self, feature: Feature, config: PipelineConfig | None) -> Op:
        """Reinterpret the bytes as so many time steps as there are."""
        return DecodeRaw(size=(None, *feature.shape), dtype=feature.dtype)


@register
class ColumnEncoding(Encoding):
    """Columns of the table that lists the examples: numbers in the record itself."""

    name = "columns"
    modality = "numbers"
    noun = "columns"
    storage = "table"

    def decode(self, feature: Feature, config: PipelineConfig | None) -> None:
        """Nothing: they are numbers already."""


def array_feature(
    encoding: str, shape: Shape, dtype: str, columns: TableColumns | None = None
) -> Feature:
    """The input of a dataset of arrays; `shape` is that of an example, or of a time step."""
    return Feature(
        name="image" if encoding == "pixels" else "features",
        role="input",
        encoding=find_encoding(encoding),
        shape=shape,
        dtype=dtype,
        columns=columns or TableColumns(),
    )


def table_input(columns: TableColumns) -> Feature:
    """The second input of a dataset whose examples a table lists."""
    return Feature(
        name=COLUMNS,
        role="input",
        encoding=find_encoding("columns"),
        shape=(len(columns.names),),
        dtype="float32",
        columns=columns,
    )


def pixels_feature(shape: Shape) -> Feature:
    """The input of a dataset of images (height, width, channels) uint8 in an array."""
    return array_feature("pixels", shape, "uint8")
