"""Which features of existing records form an example: part of `data` in params.yaml."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from throughline.settings.base import Settings


class RecordSettings(Settings):
    """Sources tfrecord and tfds: which features of the records are the model's input and label."""

    input: str = Field(
        default="",
        description=(
            "feature with the encoded image or the values; empty: the one with a usual name, such"
            " as image or image/encoded"
        ),
    )
    label: str = Field(
        default="",
        description=(
            "feature with the class, or the number to predict; empty: the one with a usual name,"
            " such as label or image/class/label"
        ),
    )
    shape: list[int] = Field(
        default=[],
        description=(
            "shape of values that are stored without one, such as [28, 28, 1]; empty: a vector"
        ),
    )
    dtype: Literal[
        "auto",
        "uint8",
        "int8",
        "uint16",
        "int16",
        "int32",
        "int64",
        "float16",
        "float32",
        "float64",
    ] = Field(
        default="auto",
        description=(
            "tfrecord: what values are that are stored as bytes alone, the lowest byte first; auto:"
            " uint8, or float32 where `shape` says so many"
        ),
    )
