"""Sequences of variable length as rectangles: gathered from a ragged column, padded with 0.

A ragged column is all values back to back; a second one says where each value begins and how long
it is (`tasks/data/ragged.py`). One gather per batch, whatever the number of sequences.
"""

from __future__ import annotations

import tensorflow as tf

PADDING = 0  # the id that no token has


def pad_rows(
    values: tf.Tensor, begins: tf.Tensor, lengths: tf.Tensor, length: tf.Tensor
) -> tf.Tensor:
    """Sequences of `values` (elements,) that begin at `begins` (batch,) and are `lengths` (batch,)
    long, int64, padded to `length`, a scalar: (batch, length) int32.
    """
    places = tf.range(length, dtype=tf.int64)
    return _gather(values, begins[:, None] + places, places < lengths[:, None])


def _gather(values: tf.Tensor, places: tf.Tensor, inside: tf.Tensor) -> tf.Tensor:
    return _where(inside, tf.gather(values, tf.where(inside, places, 0)))


def _where(inside: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    return tf.where(inside, tf.cast(values, tf.int32), PADDING)
