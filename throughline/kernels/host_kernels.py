"""Kernels of ops that one Python call computes for an image or batch, from numbers drawn before."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from throughline.kernels import pixels, randaugment
from throughline.kernels.kernels import Element, compute
from throughline.kernels.randomness import RandomStream
from throughline.kernels.rounding import byte_image
from throughline.plan.augmentations import Blur, RandAugment
from throughline.plan.ops import Op

# Arguments: images, the numbers drawn for each, and the output array.
PixelFn = Callable[[np.ndarray, np.ndarray, np.ndarray], None]


@compute.register
def _(op: Blur, element: Element, draw: RandomStream) -> Element:
    return _call(op, pixels.blur, element, draw_sigma(op, element["key"], draw))


@compute.register
def _(op: RandAugment, element: Element, draw: RandomStream) -> Element:
    def augment(images: np.ndarray, changes: np.ndarray, out: np.ndarray) -> None:
        randaugment.augment(images, changes, out, magnitude=op.magnitude)

    return _call(op, augment, element, draw_changes(op, element["key"], draw))


def draw_sigma(op: Blur, key: tf.Tensor, draw: RandomStream) -> tf.Tensor:
    """Return each example's Gaussian sigma [pixels], float32 shaped like `key`; 0: no blur."""
    least, largest = op.sigma
    sigma = least + draw.uniform(key, 1) * (largest - least)
    return tf.where(draw.uniform(key, 0) < op.probability, sigma, tf.zeros_like(sigma))


def draw_changes(op: RandAugment, key: tf.Tensor, draw: RandomStream) -> tf.Tensor:
    """Return (…, 2, ops) int32: indices into `randaugment.CHANGES`, and whether to reverse each."""
    drawn = draw.uniform_vector(key, 2 * op.ops)
    which = tf.cast(drawn[..., : op.ops] * len(randaugment.CHANGES), tf.int32)
    return tf.stack([which, tf.cast(drawn[..., op.ops :] < 0.5, tf.int32)], axis=-2)  # noqa: PLR2004


def _call(op: Op, fn: PixelFn, element: Element, drawn: tf.Tensor) -> Element:
    image = byte_image(op, element)
    single = image.shape.rank == len("HWC")

    def call(image: np.ndarray, drawn: np.ndarray) -> np.ndarray:
        out = pixels.empty_images(image.shape)
        if single:
            fn(image[None], drawn[None], out[None])
        else:
            fn(image, drawn, out)
        return out

    changed = tf.numpy_function(call, [image, drawn], tf.uint8, stateful=False)
    changed.set_shape(image.shape)
    return {**element, "image": changed}
