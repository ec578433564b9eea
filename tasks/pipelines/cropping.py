"""Cropping rectangles out of images: as the kernels of ops, and for whole batches straight from the
mapped columns of a snapshot, of which nothing else is read then.

Which rectangle is drawn by TensorFlow (`boxes.py`); its pixels are computed by one Python call for
an image or a batch (`pixels.py`). A loop of TensorFlow's ops over images takes several times as
long: docs/performance.md, "Random crops of photos".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tasks.pipelines import pixels
from tasks.pipelines.augmentations import Method, ResizedCrop
from tasks.pipelines.boxes import draw_boxes, image_size
from tasks.pipelines.kernels import Element, compute, draw_flipped
from tasks.pipelines.ops import Op
from tasks.pipelines.prepared_data import PreparedData
from tasks.pipelines.randomness import RandomStream

# Rows (batch,), boxes (batch, 5) → images.
CropFn = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


@compute.register
def _(op: ResizedCrop, element: Element, draw: RandomStream) -> Element:
    image = element["image"]
    boxes = draw_boxes(op, image_size(image), element["key"], draw)
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
    """What an op that crops and those that flip its result do to images of `sizes` (batch, 2) or
    (2,): (batch, 5) int32, a box and whether it is flipped.
    """
    flipped = tf.zeros_like(key, tf.bool)
    for draw in draws[1:]:
        flipped = tf.math.logical_xor(flipped, draw_flipped(key, draw))
    boxes = draw_boxes(ops[0], sizes, key, draws[0])
    return tf.concat([boxes, tf.cast(flipped, tf.int32)[..., None]], axis=-1)


def make_crop_fn(data: PreparedData, split: str, op: Op) -> CropFn:
    """The function that crops boxes out of rows of the split's images: (batch, height, width,
    channels) uint8.

    The arrays are those of the mapped files, so that nothing but the pixels in the boxes is read.
    """
    column = data.column(data.shards.schema.feature)
    values = np.asarray(data.memmap(split, column.name))
    starts_and_shapes = (
        np.asarray(data.memmap(split, column.extent.name)) if column.ragged else None
    )
    shape = op.shape(column.shape) or ()
    height, width, channels = (int(size or 0) for size in shape)
    method: Method = getattr(op, "method", "area")

    def images_of(rows: np.ndarray) -> list[np.ndarray]:
        if starts_and_shapes is None:
            return [values[row] for row in rows.tolist()]
        return [
            values[start : start + tall * wide * depth].reshape(tall, wide, depth)
            for start, tall, wide, depth in starts_and_shapes[rows].tolist()
        ]

    def call(rows: np.ndarray, boxes: np.ndarray) -> np.ndarray:
        out = pixels.empty_images((len(rows), height, width, channels))
        pixels.crop(images_of(rows), boxes, out, method=method)
        return out

    def crop(rows: tf.Tensor, boxes: tf.Tensor) -> tf.Tensor:
        images = tf.numpy_function(call, [rows, boxes], tf.uint8, stateful=False)
        images.set_shape((rows.shape[0], height, width, channels))
        return images

    return crop
