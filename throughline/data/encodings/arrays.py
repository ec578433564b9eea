"""Values in arrays, all of one size: pixels, numbers, and the time steps of a series."""

from __future__ import annotations

from throughline.plan.ops import DecodeRaw, Op
from throughline.plan.schema import Encoding, Feature, Shape, TableColumns, find_encoding, register
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


def pixels_feature(shape: Shape) -> Feature:
    """The input of a dataset of images (height, width, channels) uint8 in an array."""
    return array_feature("pixels", shape, "uint8")
