"""Crops batches directly from the mapped columns of a snapshot, reading no other pixels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from throughline.kernels import pixels
from throughline.pipelines.read.prepared_data import PreparedData
from throughline.plan.augmentations import Method
from throughline.plan.ops import Op

# Rows (batch,), boxes (batch, 5) → images.
CropFn = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def make_crop_fn(data: PreparedData, split: str, op: Op) -> CropFn:
    """Return the function that crops boxes of images to (batch, height, width, channels) uint8.

    It reads only the pixels in the boxes.
    """
    column = data.input_column
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
