"""OpenCV's ops as matrix products, for train steps and exported models, which cannot call Python.

Resizing and blurring are linear along each axis, so each image is multiplied by one matrix for its
rows and one for its columns. Boxes, filters and borders are those of `pixels.py`, in float32
instead of fixed point: values differ by at most two levels of 255.
"""

from functools import singledispatch

import numpy as np
import tensorflow as tf

from throughline.kernels import kernels
from throughline.kernels.augmentations import draw_sigma
from throughline.kernels.crop_windows import draw_crop_windows
from throughline.kernels.kernels import IMAGE_AXES, Element, byte_image, image_size, to_uint8
from throughline.kernels.randomness import RandomStream
from throughline.plan.augmentations import Blur, ResizedCrop
from throughline.plan.ops import Op


@singledispatch
def compute_on_device(op: Op, element: Element, draw: RandomStream) -> Element:
    """Run one op on a batch on the accelerator; most ops have one kernel for host and device."""
    return kernels.compute(op, element, draw)


@compute_on_device.register
def _(op: ResizedCrop, element: Element, draw: RandomStream) -> Element:
    images = byte_image(op, element)
    size = image_size(images)
    boxes = tf.cast(draw_crop_windows(op, size, element["key"], draw), tf.float32)
    top, left, height, width = tf.unstack(boxes, axis=-1)
    shrinks = (height >= op.height) & (width >= op.width) & (op.method == "area")
    rows, columns = (
        tf.where(shrinks[:, None, None], _averages(*axis), _interpolation(*axis))
        for axis in ((top, height, size[0], op.height), (left, width, size[1], op.width))
    )
    return {**element, "image": resample(images, rows, columns)}


@compute_on_device.register
def _(op: Blur, element: Element, draw: RandomStream) -> Element:
    images = byte_image(op, element)
    sigma = draw_sigma(op, element["key"], draw)
    tall, wide = (int(side) for side in images.shape[1:3])
    rows, columns = (_gaussian(sigma, op.sigma[1], sources) for sources in (tall, wide))
    return {**element, "image": resample(images, rows, columns)}


def compute_in_tensorflow(op: Op, element: Element, draw: RandomStream) -> Element:
    """Run one op on an example or a batch without calling Python, which a SavedModel cannot do."""
    if not op.opencv or element["image"].shape.rank > len(IMAGE_AXES):
        return compute_on_device(op, element, draw)
    batch = {name: value[None] for name, value in element.items()}
    return {name: value[0] for name, value in compute_on_device(op, batch, draw).items()}


def resample(images: tf.Tensor, rows: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
    """Multiply images (batch, height, width, channels) by matrices; return uint8.

    `rows` are (batch, result height, height), `columns` (batch, result width, width).
    """
    values = tf.einsum("nih,nhwc->niwc", rows, tf.cast(images, tf.float32))
    resampled = to_uint8(tf.einsum("njw,niwc->nijc", columns, values))
    size = (rows.shape[1], columns.shape[1])
    return tf.ensure_shape(resampled, (images.shape[0], *size, images.shape[-1]))


def _interpolation(
    first: tf.Tensor, length: tf.Tensor, sources: tf.Tensor, results: int
) -> tf.Tensor:
    """Return weights (batch, results, sources) to interpolate in [first, first + length)."""
    middles = (tf.range(results, dtype=tf.float32) + 0.5) / results
    places = tf.clip_by_value(middles * length[:, None] - 0.5, 0, length[:, None] - 1)
    pixels = tf.cast(tf.range(sources), tf.float32)
    return tf.nn.relu(1 - tf.abs(pixels - (first[:, None] + places)[..., None]))


def _averages(first: tf.Tensor, length: tf.Tensor, sources: tf.Tensor, results: int) -> tf.Tensor:
    """Return weights (batch, results, sources) of means over pixels [first, first + length)."""
    covered = (length / results)[:, None]
    begins = first[:, None] + tf.range(results, dtype=tf.float32) * covered
    pixels = tf.cast(tf.range(sources), tf.float32)
    ends = tf.minimum(pixels + 1, (begins + covered)[..., None])
    overlap = ends - tf.maximum(pixels, begins[..., None])
    return tf.nn.relu(overlap) / covered[..., None]


def _gaussian(sigma: tf.Tensor, largest: float, sources: int) -> tf.Tensor:
    """Return weights (batch, sources, sources) of Gaussians of `sigma` (batch,) pixels.

    Gaussians end at three sigmas and are reflected at borders; with sigma 0 they change nothing.
    """
    most = (round(largest * 6 + 1) | 1) // 2
    taps = tf.range(-most, most + 1, dtype=tf.float32)
    wide = sigma[:, None]
    inside = tf.abs(taps) <= tf.floor(tf.round(wide * 6 + 1) / 2)
    bell = tf.where(inside, tf.exp(-(taps**2) / (2 * tf.maximum(wide, 1e-6) ** 2)), 0.0)
    weights = bell / tf.reduce_sum(bell, axis=-1, keepdims=True)
    places = np.arange(sources)[:, None] + np.arange(-most, most + 1)
    period = max(1, 2 * (sources - 1))
    reflected = np.abs((places + sources - 1) % period - (sources - 1))
    taken = tf.constant(reflected[..., None] == np.arange(sources), tf.float32)
    return tf.einsum("nt,its->nis", weights, taken)
