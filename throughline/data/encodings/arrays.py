"""Encodings of values of one size, from arrays: pixels, numbers, time steps, table columns."""

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
_RANK = 4  # axes of images: (examples, height, width, channels)


class _ArrayEncoding(Encoding):
    def decode(self, feature: Feature, config: PipelineConfig | None) -> Op:
        return DecodeRaw(size=feature.shape, dtype=feature.dtype)


@register
class PixelEncoding(_ArrayEncoding):
    name = "pixels"
    modality = "images"
    noun = "images"
    storage = "rows"


@register
class NumberEncoding(_ArrayEncoding):
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
        """Return the op that reads the bytes as any number of time steps."""
        return DecodeRaw(size=(None, *feature.shape), dtype=feature.dtype)


@register
class ColumnEncoding(Encoding):
    name = "columns"
    modality = "numbers"
    noun = "columns"
    storage = "table"


def array_feature(
    encoding: str, shape: Shape, dtype: str, columns: TableColumns | None = None
) -> Feature:
    """Return the input feature of arrays; `shape` is the shape of an example or time step."""
    return Feature(
        name={"pixels": "image", "columns": COLUMNS}.get(encoding, "features"),
        role="input",
        encoding=find_encoding(encoding),
        shape=shape,
        dtype=dtype,
        columns=columns or TableColumns(),
    )


def table_input(columns: TableColumns) -> Feature:
    return array_feature("columns", (len(columns.names),), "float32", columns)


def pixels_feature(shape: Shape) -> Feature:
    """Return the input feature of images in arrays; `shape` is (height, width, channels)."""
    return array_feature("pixels", shape, "uint8")


def as_images(values: np.ndarray, where: str) -> tuple[np.ndarray, str]:
    """Return images (examples, height, width, channels), and a note if channels were moved, or "".

    `values` may have channels first, or no axis for channels; a mapped array stays mapped. Raises
    UnreadableSource, which names the array by `where`, for other dtypes and shapes.
    """
    images, note = values[..., None] if values.ndim == _RANK - 1 else values, ""
    if images.ndim == _RANK and images.shape[1] in CHANNELS and images.shape[-1] not in CHANNELS:
        note = "channels-first image turned to (height, width, channels)"
        images = np.moveaxis(images, 1, -1)
    if images.dtype != np.uint8 or images.ndim != _RANK or images.shape[-1] not in CHANNELS:
        raise UnreadableSource(
            f"{where} has dtype {values.dtype} and shape {values.shape}; expected uint8 (examples,"
            " height, width) or (examples, height, width, 1 or 3)"
        )
    return images, note
