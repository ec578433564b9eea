"""The box that an op crops: a pure function of seed, epoch, key and size, for images and batches.

A box is (top, left, height, width) in pixels of the image, int32. Parts outside the image become
zero. Arithmetic before rounding is in float64, because kernels for one image and for many may
differ in the last bit, which in float32 could change a pixel.
"""

import math
from functools import singledispatch

import tensorflow as tf

from throughline.kernels.randomness import RandomStream
from throughline.plan.augmentations import RandomCrop, RandomResizedCrop, ResizedCenterCrop
from throughline.plan.ops import CenterCrop, Op

ATTEMPTS = 10


@singledispatch
def draw_crop_windows(op: Op, sizes: tf.Tensor, key: tf.Tensor, draw: RandomStream) -> tf.Tensor:
    """Return the boxes (…, 4) int32 that an op crops out of images with keys `key` (…).

    `sizes` (…, 2) int32 are heights and widths, or (2,) if all are equal.
    """
    raise NotImplementedError(f"{op.name} crops no boxes; give it a case here")


@draw_crop_windows.register
def _(op: CenterCrop, sizes: tf.Tensor, key: tf.Tensor, draw: RandomStream) -> tf.Tensor:
    room = sizes - (op.height, op.width)
    # Round the border of a smaller image in the other direction, like `resize_with_crop_or_pad`.
    first = tf.where(room < 0, -(-room // 2), room // 2)
    return _boxes(key, first[..., 0], first[..., 1], op.height, op.width)


@draw_crop_windows.register
def _(op: RandomCrop, sizes: tf.Tensor, key: tf.Tensor, draw: RandomStream) -> tf.Tensor:
    room = tf.maximum(sizes - (op.height, op.width), 0)
    top, left = (_place(draw.uniform(key, axis), room[..., axis]) for axis in (0, 1))
    return _boxes(key, top, left, op.height, op.width)


@draw_crop_windows.register
def _(op: ResizedCenterCrop, sizes: tf.Tensor, key: tf.Tensor, draw: RandomStream) -> tf.Tensor:
    shortest = tf.reduce_min(sizes, axis=-1, keepdims=True)
    rounded = (2 * shortest * (op.height, op.width) + op.shorter) // (2 * op.shorter)
    crop = tf.clip_by_value(rounded, 1, sizes)
    first = (sizes - crop) // 2
    return _boxes(key, first[..., 0], first[..., 1], crop[..., 0], crop[..., 1])


@draw_crop_windows.register
def _(op: RandomResizedCrop, sizes: tf.Tensor, key: tf.Tensor, draw: RandomStream) -> tf.Tensor:
    drawn = tf.cast(draw.uniform_vector(key, 2 * ATTEMPTS + 2), tf.float64)
    tall, wide = (tf.cast(sizes[..., axis, None], tf.float64) for axis in (0, 1))
    area = tall * wide * _between(drawn[..., :ATTEMPTS], *op.scale)
    least, largest = (math.log(ratio) for ratio in op.ratio)
    aspect = tf.exp(_between(drawn[..., ATTEMPTS : 2 * ATTEMPTS], least, largest))
    heights, widths = tf.round(tf.sqrt(area / aspect)), tf.round(tf.sqrt(area * aspect))
    fits = (heights >= 1) & (widths >= 1) & (heights <= tall) & (widths <= wide)
    # If none fits, use as much of the image as an allowed aspect permits.
    largest_height = tf.clip_by_value(tf.round(wide / op.ratio[0]), 1, tall)
    largest_width = tf.clip_by_value(tf.round(tall * op.ratio[1]), 1, wide)
    none = tf.zeros_like(heights[..., :1])
    heights = tf.concat([heights, largest_height + none], axis=-1)
    widths = tf.concat([widths, largest_width + none], axis=-1)
    first_fit = tf.argmax(tf.cast(tf.concat([fits, none >= 0], axis=-1), tf.int32), axis=-1)
    height, width = (
        tf.cast(tf.gather(sides, first_fit, axis=-1, batch_dims=key.shape.rank), tf.int32)
        for sides in (heights, widths)
    )
    room_above, room_left = sizes[..., 0] - height, sizes[..., 1] - width
    centered = first_fit == ATTEMPTS
    top = tf.where(centered, room_above // 2, _place(drawn[..., -2], room_above))
    left = tf.where(centered, room_left // 2, _place(drawn[..., -1], room_left))
    return _boxes(key, top, left, height, width)


def _between(drawn: tf.Tensor, least: float, largest: float) -> tf.Tensor:
    return least + drawn * (largest - least)


def _place(drawn: tf.Tensor, room: tf.Tensor) -> tf.Tensor:
    """Map numbers in [0, 1) to whole pixels from 0 to `room`, all equally likely."""
    return tf.cast(drawn * tf.cast(room + 1, drawn.dtype), tf.int32)


def _boxes(key: tf.Tensor, *sides: tf.Tensor | int) -> tf.Tensor:
    zeros = tf.zeros_like(key, tf.int32)
    return tf.stack([zeros + side for side in sides], axis=-1)
