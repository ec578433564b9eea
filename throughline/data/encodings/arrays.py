"""Values in arrays, all of one size: pixels, numbers, the time steps of a series, and the columns
of a table that lists examples.
"""

from __future__ import annotations

import numpy as np

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
from throughline.shared.errors import UnreadableSource

CHANNELS = (1, 3)
_RANK = 4  # of images: (examples, height, width, channels)
_TURNED = "channels-first image turned to (height, width, channels)"


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


def as_images(values: np.ndarray, where: str) -> tuple[np.ndarray, str]:
    """Images (examples, height, width, channels) of an array that may have its channels first, or
    none, and a note where they were turned. A mapped array stays mapped.

    Raises:
      UnreadableSource: they are none; `where` names the array.
    """
    images = values[..., None] if values.ndim == _RANK - 1 else values
    note = ""
    if images.ndim == _RANK and images.shape[1] in CHANNELS and images.shape[-1] not in CHANNELS:
        images, note = np.moveaxis(images, 1, -1), _TURNED
    if images.dtype != np.uint8 or images.ndim != _RANK or images.shape[-1] not in CHANNELS:
        raise UnreadableSource(
            f"{where} has dtype {values.dtype} and shape {values.shape}; needed is uint8 (examples,"
            " height, width) or (examples, height, width, 1 or 3)"
        )
    return images, note
