"""Conversion of pixels between bytes and floats."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from throughline.plan.ops import Op
from throughline.shared.errors import ImpossiblePlan


def byte_image(op: Op, element: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Return the image of an element for an op that rounds to bytes.

    Raises:
      ImpossiblePlan: The image is not uint8; floats from 0 to 1 would become black.
    """
    image = element["image"]
    if image.dtype != tf.uint8:
        raise ImpossiblePlan(
            f"{op.name} takes uint8 images and rounds to them, and an op before it makes"
            f" {image.dtype.name}; have that one return uint8, from 0 to 255"
        )
    return image


def to_uint8(image: tf.Tensor) -> tf.Tensor:
    """Round and saturate to uint8; uint8 passes unchanged."""
    return image if image.dtype == tf.uint8 else tf.saturate_cast(tf.round(image), tf.uint8)
