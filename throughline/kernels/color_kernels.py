"""Kernels of ops that change the colors of an image or of a batch of images."""

from __future__ import annotations

import tensorflow as tf

from throughline.kernels.kernels import Element, compute, per_pixel
from throughline.kernels.randomness import RandomStream
from throughline.kernels.rounding import byte_image, to_uint8
from throughline.plan.augmentations import Grayscale, Hue, Saturation
from throughline.plan.ops import Op
from throughline.shared.errors import ImpossiblePlan

COLORS = 3  # channels of a color image
# Weights of red, green and blue in luma, in units of 2^-16, so that integer sums are exact.
LUMA = (19595, 38470, 7471)


@compute.register
def _(op: Grayscale, element: Element, draw: RandomStream) -> Element:
    image = byte_image(op, element)
    if not _has_colors(op, image):
        return element
    chosen = per_pixel(draw.uniform(element["key"]) < op.probability)
    return {**element, "image": tf.where(chosen, tf.cast(luma(image), tf.uint8), image)}


@compute.register
def _(op: Saturation, element: Element, draw: RandomStream) -> Element:
    image = byte_image(op, element)
    if not _has_colors(op, image):
        return element
    factor = per_pixel(1 + (draw.uniform(element["key"]) * 2 - 1) * op.delta)
    gray = tf.cast(luma(image), tf.float32)
    return {**element, "image": to_uint8((tf.cast(image, tf.float32) - gray) * factor + gray)}


@compute.register
def _(op: Hue, element: Element, draw: RandomStream) -> Element:
    image = byte_image(op, element)
    if not _has_colors(op, image):
        return element
    turn = per_pixel((draw.uniform(element["key"]) * 2 - 1) * op.delta)[..., 0]
    hue, saturation, value = tf.unstack(
        tf.image.rgb_to_hsv(tf.cast(image, tf.float32) / 255), axis=-1
    )
    turned = tf.stack([tf.math.floormod(hue + turn, 1.0), saturation, value], axis=-1)
    return {**element, "image": to_uint8(tf.image.hsv_to_rgb(turned) * 255)}


def _has_colors(op: Op, image: tf.Tensor) -> bool:
    """Return whether images are in color, not gray.

    Raises:
      ImpossiblePlan: The number of channels is unknown after the ops before.
    """
    if image.shape[-1] is None:
        raise ImpossiblePlan(
            f"augment: {op.name} has to know how many channels images have; have your op before it"
            " set that in the shape of what it returns"
        )
    return image.shape[-1] == COLORS


def luma(image: tf.Tensor) -> tf.Tensor:
    """Return the rounded brightness (…, 1) int32 of every pixel of colors (…, 3) uint8."""
    red, green, blue = (
        tf.cast(image[..., number, None], tf.int32) * part for number, part in enumerate(LUMA)
    )
    return tf.bitwise.right_shift(red + green + blue + (1 << 15), 16)
