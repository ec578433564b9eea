"""Cropping rectangles out of images.

TensorFlow draws the rectangle (`crop_windows.py`); one Python call for an image or a batch computes
its pixels (`pixels.py`). A loop of TensorFlow's ops over images takes several times as long:
docs/log.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from throughline.kernels import pixels
from throughline.kernels.crop_windows import draw_crop_windows, image_size
from throughline.kernels.kernels import Element, compute, draw_flipped
from throughline.kernels.randomness import RandomStream
from throughline.kernels.rounding import byte_image
from throughline.plan.augmentations import ResizedCrop
from throughline.plan.ops import Op


@compute.register
def _(op: ResizedCrop, element: Element, draw: RandomStream) -> Element:
    image = byte_image(op, element)
    boxes = draw_crop_windows(op, image_size(image), element["key"], draw)
    upright = tf.concat([boxes, tf.zeros_like(boxes[..., :1])], axis=-1)

    def call(image: np.ndarray, boxes: np.ndarray) -> np.ndarray:
        many, channels = boxes.reshape(-1, boxes.shape[-1]), image.shape[-1]
        out = pixels.empty_images((len(many), op.height, op.width, channels))
        pixels.crop(image if image.ndim == out.ndim else [image], many, out, method=op.method)
        return out.reshape(*boxes.shape[:-1], *out.shape[1:])

    crop = tf.numpy_function(call, [image, upright], tf.uint8, stateful=False)
    crop.set_shape((*image.shape[:-3], op.height, op.width, image.shape[-1]))
    return {**element, "image": crop}


def draw_crops(
    ops: Sequence[Op], sizes: tf.Tensor, key: tf.Tensor, draws: Sequence[RandomStream]
) -> tf.Tensor:
    """Return (batch, 5) int32: the box that the first op crops, and whether others flip it."""
    flipped = tf.zeros_like(key, tf.bool)
    for draw in draws[1:]:
        flipped = tf.math.logical_xor(flipped, draw_flipped(key, draw))
    boxes = draw_crop_windows(ops[0], sizes, key, draws[0])
    return tf.concat([boxes, tf.cast(flipped, tf.int32)[..., None]], axis=-1)
