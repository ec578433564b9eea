"""Kernels of the ops that augment images: geometry, colors, and ops that OpenCV computes.

TensorFlow draws all numbers. OpenCV (`pixels.py`, `randaugment.py`) computes pixels in one Python
call for an image or a batch: a loop of TensorFlow's ops over images takes several times as long
(docs/log.md).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from throughline.kernels import pixels, randaugment
from throughline.kernels.crop_windows import draw_crop_windows
from throughline.kernels.kernels import (
    IMAGE_AXES,
    Element,
    byte_image,
    compute,
    image_size,
    one_hot,
    per_pixel,
    to_uint8,
)
from throughline.kernels.randomness import RandomStream
from throughline.plan import augmentations as augment
from throughline.plan.ops import Op
from throughline.shared.errors import ImpossiblePlan

COLORS = 3  # channels of a color image
# Weights of red, green and blue in luma, in units of 2^-16, so that integer sums are exact.
LUMA = (19595, 38470, 7471)
_TABLE = 1025  # points of a tabulated distribution
# Arguments: images, the numbers drawn for each, and the output array.
PixelFn = Callable[[np.ndarray, np.ndarray, np.ndarray], None]


@compute.register
def _(op: augment.RandomCrop, element: Element, draw: RandomStream) -> Element:
    image = element["image"]
    batched = image.shape.rank > len(IMAGE_AXES)
    boxes = draw_crop_windows(op, image_size(image), element["key"], draw)
    top, left = boxes[..., 0], boxes[..., 1]
    height, width = image.shape[-3:-1]
    if None in (height, width) or height < op.height or width < op.width:
        lacking = tf.unstack(tf.maximum(0, (op.height, op.width) - image_size(image)))
        lead = [[0, 0]] * (image.shape.rank - len(IMAGE_AXES))
        image = tf.pad(image, [*lead, *([0, lack] for lack in lacking), [0, 0]])
    if not batched:
        cut = tf.slice(image, tf.stack([top, left, 0]), (op.height, op.width, -1))
    else:
        rows = tf.gather(image, top[:, None] + tf.range(op.height), axis=1, batch_dims=1)
        cut = tf.gather(rows, left[:, None] + tf.range(op.width), axis=2, batch_dims=1)
    cut.set_shape((*image.shape[:-3], op.height, op.width, image.shape[-1]))
    return {**element, "image": cut}


@compute.register
def _(op: augment.Flip, element: Element, draw: RandomStream) -> Element:
    image = element["image"]
    heads = draw_flipped(element["key"], draw)
    if image.shape.rank == len(IMAGE_AXES):
        return {**element, "image": tf.cond(heads, lambda: tf.reverse(image, [-2]), lambda: image)}
    # Mirrored as one tall image, and chosen by rows of memory: choosing in four dimensions takes
    # six times as long.
    shape = tf.shape(image)
    rows = tf.reshape(image, (-1, shape[2], shape[3]))
    flipped = tf.reshape(tf.reverse(rows, [1]), (shape[0], -1))
    chosen = tf.where(heads[:, None], flipped, tf.reshape(image, (shape[0], -1)))
    return {**element, "image": tf.ensure_shape(tf.reshape(chosen, shape), image.shape)}


@compute.register
def _(op: augment.Rotation, element: Element, draw: RandomStream) -> Element:
    image = byte_image(op, element)
    batched = image.shape.rank > len(IMAGE_AXES)
    images = tf.cast(image if batched else image[None], tf.float32)
    # In float64, because a float32 cosine depends on the example's place in the batch.
    share = tf.reshape(tf.cast(draw.uniform(element["key"]), tf.float64) * 2 - 1, (-1,))
    angle = share * (op.degrees * np.pi / 180)
    tall, wide = (tf.cast(tf.shape(images)[axis] - 1, tf.float64) for axis in (1, 2))
    cos, sin, zero = tf.cos(angle), tf.sin(angle), tf.zeros_like(angle)
    right, down = (wide - (cos * wide - sin * tall)) / 2, (tall - (sin * wide + cos * tall)) / 2
    matrix = tf.stack([cos, -sin, right, sin, cos, down, zero, zero], axis=1)
    turned = tf.raw_ops.ImageProjectiveTransformV3(
        images=images,
        transforms=tf.cast(matrix, tf.float32),
        output_shape=tf.shape(images)[1:3],
        fill_value=0.0,
        interpolation="BILINEAR",
        fill_mode="REFLECT",
    )
    turned = to_uint8(turned)
    turned.set_shape(images.shape)
    return {**element, "image": turned if batched else turned[0]}


@compute.register
def _(op: augment.Brightness, element: Element, draw: RandomStream) -> Element:
    offset = (draw.uniform(element["key"]) * 2 - 1) * (op.delta * 255)
    brighter = tf.cast(byte_image(op, element), tf.float32) + per_pixel(offset)
    return {**element, "image": to_uint8(brighter)}


@compute.register
def _(op: augment.Contrast, element: Element, draw: RandomStream) -> Element:
    image = byte_image(op, element)
    factor = per_pixel(1 + (draw.uniform(element["key"]) * 2 - 1) * op.delta)
    # Sums of integers are exact, so the mean is the same for an example alone and within a batch.
    # The sum of a row fits into 32 bits, that of an image above 8.4 megapixels does not.
    pixels = tf.cast(tf.shape(image)[-3] * tf.shape(image)[-2], tf.float32)
    rows = tf.reduce_sum(tf.cast(image, tf.int32), axis=-2, keepdims=True)
    sums = tf.reduce_sum(tf.cast(rows, tf.int64), axis=-3, keepdims=True)
    mean = tf.cast(sums, tf.float32) / pixels
    return {**element, "image": to_uint8((tf.cast(image, tf.float32) - mean) * factor + mean)}


@compute.register
def _(op: augment.Cutout, element: Element, draw: RandomStream) -> Element:
    image, side = element["image"], tf.constant(float(op.size))
    inside = _rectangle(image, element["key"], draw, height=side, width=side)
    return {**element, "image": tf.where(inside, tf.zeros_like(image), image)}


@compute.register
def _(op: augment.Mixup, element: Element, draw: RandomStream) -> Element:
    quantiles = tf.constant(beta_quantiles(op.alpha), tf.float32)
    point = draw.uniform(element["key"]) * (_TABLE - 1)
    low = tf.cast(point, tf.int32)
    share = tf.gather(quantiles, low) + (point - tf.floor(point)) * (
        tf.gather(quantiles, low + 1) - tf.gather(quantiles, low)
    )
    image = tf.cast(byte_image(op, element), tf.float32)
    label = one_hot(element["label"], op.classes)
    mixed = image * per_pixel(share) + tf.roll(image, -1, 0) * (1 - per_pixel(share))
    labels = label * share[:, None] + tf.roll(label, -1, 0) * (1 - share[:, None])
    return {**element, "image": to_uint8(mixed), "label": labels}


@compute.register
def _(op: augment.Cutmix, element: Element, draw: RandomStream) -> Element:
    image, label = element["image"], one_hot(element["label"], op.classes)
    side = tf.sqrt(draw.uniform(element["key"], 2))
    tall, wide = (tf.cast(tf.shape(image)[axis], tf.float32) for axis in (-3, -2))
    inside = _rectangle(
        image, element["key"], draw, height=tf.round(side * tall), width=tf.round(side * wide)
    )
    covered = tf.reduce_mean(tf.cast(inside, tf.float32), axis=IMAGE_AXES)[:, None]
    labels = label * (1 - covered) + tf.roll(label, -1, 0) * covered
    return {**element, "image": tf.where(inside, tf.roll(image, -1, 0), image), "label": labels}


@compute.register
def _(op: augment.Grayscale, element: Element, draw: RandomStream) -> Element:
    image = byte_image(op, element)
    if not _has_colors(op, image):
        return element
    chosen = per_pixel(draw.uniform(element["key"]) < op.probability)
    return {**element, "image": tf.where(chosen, tf.cast(luma(image), tf.uint8), image)}


@compute.register
def _(op: augment.Saturation, element: Element, draw: RandomStream) -> Element:
    image = byte_image(op, element)
    if not _has_colors(op, image):
        return element
    factor = per_pixel(1 + (draw.uniform(element["key"]) * 2 - 1) * op.delta)
    gray = tf.cast(luma(image), tf.float32)
    return {**element, "image": to_uint8((tf.cast(image, tf.float32) - gray) * factor + gray)}


@compute.register
def _(op: augment.Hue, element: Element, draw: RandomStream) -> Element:
    image = byte_image(op, element)
    if not _has_colors(op, image):
        return element
    turn = per_pixel((draw.uniform(element["key"]) * 2 - 1) * op.delta)[..., 0]
    hue, saturation, value = tf.unstack(
        tf.image.rgb_to_hsv(tf.cast(image, tf.float32) / 255), axis=-1
    )
    turned = tf.stack([tf.math.floormod(hue + turn, 1.0), saturation, value], axis=-1)
    return {**element, "image": to_uint8(tf.image.hsv_to_rgb(turned) * 255)}


@compute.register
def _(op: augment.ResizedCrop, element: Element, draw: RandomStream) -> Element:
    size = image_size(byte_image(op, element))
    boxes = draw_crop_windows(op, size, element["key"], draw)
    upright = tf.concat([boxes, tf.zeros_like(boxes[..., :1])], axis=-1)
    crop = partial(pixels.crop, method=op.method)
    return _call(op, crop, element, upright, size=(op.height, op.width))


@compute.register
def _(op: augment.Blur, element: Element, draw: RandomStream) -> Element:
    return _call(op, pixels.blur, element, draw_sigma(op, element["key"], draw))


@compute.register
def _(op: augment.RandAugment, element: Element, draw: RandomStream) -> Element:
    def change(images: np.ndarray, changes: np.ndarray, out: np.ndarray) -> None:
        randaugment.augment(images, changes, out, magnitude=op.magnitude)

    return _call(op, change, element, draw_changes(op, element["key"], draw))


def draw_crops(
    ops: Sequence[Op], sizes: tf.Tensor, key: tf.Tensor, draws: Sequence[RandomStream]
) -> tf.Tensor:
    """Return (batch, 5) int32: the box that the first op crops, and whether to flip the result."""
    flipped = tf.zeros_like(key, tf.bool)
    for draw in draws[1:]:
        flipped = tf.math.logical_xor(flipped, draw_flipped(key, draw))
    boxes = draw_crop_windows(ops[0], sizes, key, draws[0])
    return tf.concat([boxes, tf.cast(flipped, tf.int32)[..., None]], axis=-1)


def draw_sigma(op: augment.Blur, key: tf.Tensor, draw: RandomStream) -> tf.Tensor:
    """Return each example's Gaussian sigma [pixels], float32 shaped like `key`; 0: no blur."""
    least, largest = op.sigma
    sigma = least + draw.uniform(key, 1) * (largest - least)
    return tf.where(draw.uniform(key, 0) < op.probability, sigma, tf.zeros_like(sigma))


def draw_changes(op: augment.RandAugment, key: tf.Tensor, draw: RandomStream) -> tf.Tensor:
    """Return (…, 2, ops) int32: indices into `randaugment.CHANGES`, and whether to reverse each."""
    drawn = draw.uniform_vector(key, 2 * op.ops)
    which = tf.cast(drawn[..., : op.ops] * len(randaugment.CHANGES), tf.int32)
    return tf.stack([which, tf.cast(drawn[..., op.ops :] < 0.5, tf.int32)], axis=-2)  # noqa: PLR2004


def _call(
    op: Op, fn: PixelFn, element: Element, drawn: tf.Tensor, *, size: Sequence[int] = ()
) -> Element:
    """Let `fn` compute an image or a batch; `size` is the results' height and width if changed."""
    image = byte_image(op, element)
    single = image.shape.rank == len(IMAGE_AXES)

    def resized(shape: Sequence[Any]) -> tuple[Any, ...]:
        return (*shape[:-3], *(size or shape[-3:-1]), shape[-1])

    def call(image: np.ndarray, drawn: np.ndarray) -> np.ndarray:
        out = pixels.empty_images(resized(image.shape))
        each = (image, drawn, out)
        fn(*(one[None] for one in each) if single else each)
        return out

    changed = tf.numpy_function(call, [image, drawn], tf.uint8, stateful=False)
    changed.set_shape(resized(image.shape))
    return {**element, "image": changed}


def _has_colors(op: Op, image: tf.Tensor) -> bool:
    if image.shape[-1] is None:
        raise ImpossiblePlan(
            f"augment: {op.name} needs to know how many channels images have; have your op before"
            " it set the last dimension of its result's shape"
        )
    return image.shape[-1] == COLORS


def luma(image: tf.Tensor) -> tf.Tensor:
    """Return the rounded brightness (…, 1) int32 of every pixel of colors (…, 3) uint8."""
    red, green, blue = tf.split(tf.cast(image, tf.int32) * LUMA, COLORS, axis=-1)
    return tf.bitwise.right_shift(red + green + blue + (1 << 15), 16)


def draw_flipped(key: tf.Tensor, draw: RandomStream) -> tf.Tensor:
    """Return whether each example is flipped: boolean, of the shape of `key`."""
    return draw.uniform(key) < 0.5  # noqa: PLR2004


def beta_quantiles(alpha: float) -> np.ndarray:
    """Return quantiles of Beta(alpha, alpha) at evenly spaced probabilities, float64.

    With x = t^(1/alpha), the density has no singularity at zero, so plain sums integrate it.
    """
    steps = np.linspace(0, 0.5**alpha, 20_001)
    middle = ((steps[1:] + steps[:-1]) / 2) ** (1 / alpha)
    mass = np.concatenate([[0], np.cumsum((1 - middle) ** (alpha - 1))])
    lower = np.interp(np.linspace(0, mass[-1], (_TABLE + 1) // 2), mass, steps) ** (1 / alpha)
    return np.concatenate([lower, 1 - lower[-2::-1]])


def _rectangle(
    image: tf.Tensor, key: tf.Tensor, draw: RandomStream, *, height: tf.Tensor, width: tf.Tensor
) -> tf.Tensor:
    """Return a boolean mask, with one channel, of a rectangle around a random center."""
    inside = []
    for axis, size, stream in ((-3, height, 0), (-2, width, 1)):
        length = tf.shape(image)[axis]
        center = tf.floor(draw.uniform(key, stream) * tf.cast(length, tf.float32))
        first = center - tf.floor(size / 2)
        pixels = tf.cast(tf.range(length), tf.float32)
        inside.append((pixels >= first[..., None]) & (pixels < (first + size)[..., None]))
    return inside[0][..., :, None, None] & inside[1][..., None, :, None]
