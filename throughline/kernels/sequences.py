"""Batches of sequences of variable length, gathered from a ragged column and padded or packed.

A ragged column stores all values back to back; a second column says where each value begins and how
long it is (`throughline/data/columns/ragged.py`). A batch is one gather, of any number of
sequences.
"""

from __future__ import annotations

import tensorflow as tf

PADDING = 0  # an id that no token has


def pad_rows(
    values: tf.Tensor, begins: tf.Tensor, lengths: tf.Tensor, length: tf.Tensor
) -> tf.Tensor:
    """Return parts of `values` (elements,), padded to `length`: (batch, length) int32.

    `begins` and `lengths` are (batch,) int64.
    """
    places = tf.range(length, dtype=tf.int64)
    return _gather(values, begins[:, None] + places, places < lengths[:, None])


def pack_rows(
    values: tf.Tensor, begins: tf.Tensor, lengths: tf.Tensor, row_length: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Pack several sequences into each row, back to back.

    The sequences are parts of `values` (elements,); `begins` and `lengths` are (rows, segments)
    int64, with length 0 for no sequence. Returns tokens, segments (counted from 1; 0: padding) and
    positions within the segment, each (rows, row_length) int32.
    """
    ends = tf.cumsum(lengths, axis=1)
    starts = ends - lengths
    shape = (tf.shape(ends)[0], row_length)
    places = tf.broadcast_to(tf.range(row_length, dtype=tf.int64), shape)
    inside = places < ends[:, -1:]
    found = tf.searchsorted(ends, places, side="right", out_type=tf.int64)
    segment = tf.minimum(found, tf.shape(ends, out_type=tf.int64)[1] - 1)
    positions = places - tf.gather(starts, segment, batch_dims=1)
    tokens = _gather(values, tf.gather(begins, segment, batch_dims=1) + positions, inside)
    return tokens, _where(inside, segment + 1), _where(inside, positions)


def _gather(values: tf.Tensor, places: tf.Tensor, inside: tf.Tensor) -> tf.Tensor:
    return _where(inside, tf.gather(values, tf.where(inside, places, 0)))


def _where(inside: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    return tf.where(inside, tf.cast(values, tf.int32), PADDING)
