"""Sequences as rectangles: padded, or several in a row with their segments and positions."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from throughline.kernels.sequences import pack_rows, pad_rows

VALUES = tf.constant([11, 12, 13, 0, 21, 22, 0, 0, 31, 32, 33, 34], tf.uint16)


def int64(values):
    return tf.constant(values, tf.int64)


def test_rows_are_padded_to_the_length_asked_for():
    rows = pad_rows(VALUES, int64([8, 4]), int64([4, 2]), int64(6))
    assert rows.numpy().tolist() == [[31, 32, 33, 34, 0, 0], [21, 22, 0, 0, 0, 0]]
    assert rows.dtype == tf.int32


def test_documents_share_rows_with_their_segments_and_positions():
    begins, lengths = (
        int64([[0, 4, 0], [8, 0, 0], [0, 0, 4]]),
        int64([[3, 2, 0], [4, 0, 0], [0, 0, 2]]),
    )
    tokens, segments, positions = (part.numpy() for part in pack_rows(VALUES, begins, lengths, 6))
    assert tokens.tolist() == [
        [11, 12, 13, 21, 22, 0],
        [31, 32, 33, 34, 0, 0],
        [21, 22, 0, 0, 0, 0],
    ]
    assert segments.tolist() == [[1, 1, 1, 2, 2, 0], [1, 1, 1, 1, 0, 0], [3, 3, 0, 0, 0, 0]]
    assert positions.tolist() == [[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 0, 0], [0, 1, 0, 0, 0, 0]]


def test_full_rows_and_empty_rows_have_no_padding_and_nothing_else():
    tokens, segments, _ = pack_rows(VALUES, int64([[8, 4], [0, 0]]), int64([[4, 2], [0, 0]]), 6)
    assert tokens.numpy().tolist() == [[31, 32, 33, 34, 21, 22], [0] * 6]
    assert np.array_equal(segments.numpy(), [[1, 1, 1, 1, 2, 2], [0] * 6])
