"""Samplers in TensorFlow: pure functions from positions in an epoch to rows of a split.

A position is the place of an example in the order of its epoch, 0 … examples − 1. A sampler depends
on (seed, epoch, position) alone, so an epoch can be entered anywhere, repeated anywhere, and shared
by any number of workers. Positions are (steps, batch) int64; epochs are (steps, 1), or anything
that broadcasts.
"""

import itertools
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from throughline.kernels.randomness import fold, mix64

CIPHER_ROUNDS = 16  # with TensorFlow's default of 4, small splits show structure
# From this many examples on, TensorFlow's cipher pays: it maps ≥ 16 bits, repeated until in range.
CIPHER_FROM = 1 << 14
SWAP_ROUNDS = 24
CHUNKS_PER_WINDOW = 16
_GOLDEN, _MIXER = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9


def permute(positions: tf.Tensor, *, count: int, seed: int, epoch: tf.Tensor) -> tf.Tensor:
    """Map positions in [0, count) by the permutation of (seed, epoch), in constant memory.

    >>> positions = tf.range(6, dtype=tf.int64)
    >>> for epoch in (0, 1):
    ...     print(permute(positions, count=6, seed=1, epoch=tf.constant(epoch, tf.int64)).numpy())
    [4 5 3 2 1 0]
    [2 4 5 0 3 1]
    """
    key = fold(seed, epoch, "order")
    if count >= CIPHER_FROM:
        return _cipher(positions, count, key)
    return swap_or_not(positions, tf.constant(count, tf.int64), key)


def swap_or_not(positions: tf.Tensor, count: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    """Map positions in [0, count) by a bijection of `key` (uint64); counts may differ by position.

    Each round pairs every position with its mirror image about a random point and swaps the two or
    not, by a hash of the pair. Source: swap-or-not (Hoang, Morris and Rogaway, CRYPTO 2012).
    """
    swap = _swap if tf.executing_eagerly() else _swap_in_graphs
    return swap(positions, count, key)


def _swap(positions: tf.Tensor, count: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    size, position = tf.cast(count, tf.uint64), tf.cast(positions, tf.uint64)
    golden, mixer, half = (tf.constant(value, tf.uint64) for value in (_GOLDEN, _MIXER, 1 << 63))
    shift = tf.constant(32, tf.uint64)
    # One operation draws for all rounds, which halves the graph. The salts are an array, because in
    # a graph TensorFlow 2.21 changes Python integers beyond 2^63 in a list.
    salts = np.arange(1, SWAP_ROUNDS + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    draws = mix64(key + tf.constant(salts.reshape(-1, *(1 for _ in key.shape))))
    for drawn, pivot in zip(tf.unstack(draws), tf.unstack(draws % size), strict=True):
        mirrored = tf.where(pivot >= position, pivot - position, pivot + size - position)
        pair = (tf.maximum(position, mirrored) ^ drawn) * golden
        pair ^= tf.bitwise.right_shift(pair * mixer, shift)
        position = tf.where(pair * mixer >= half, mirrored, position)
    return tf.cast(position, tf.int64)


# Traced once per process, not for each dataset, which would take 0.2 s each time.
_swap_in_graphs = tf.function(_swap, autograph=False)


def _cipher(positions: tf.Tensor, count: int, key: tf.Tensor) -> tf.Tensor:
    """Like `swap_or_not`, but faster for many examples, by Simon (Beaulieu et al., 2013)."""
    words = tf.stack([key, mix64(key), mix64(mix64(key))], axis=-1)
    words = tf.cast(tf.bitwise.right_shift(words, tf.constant(32, tf.uint64)), tf.uint32)
    each = tf.broadcast_to(words, tf.concat([tf.shape(positions), [3]], axis=0))
    permuted = tf.raw_ops.RandomIndexShuffle(
        index=tf.reshape(positions, (-1,)),
        seed=tf.reshape(each, (-1, 3)),
        max_index=tf.constant(count - 1, tf.int64),
        rounds=CIPHER_ROUNDS,
    )
    return tf.reshape(permuted, tf.shape(positions))


def window_shuffle(
    positions: tf.Tensor, *, count: int, window: int, seed: int, epoch: tf.Tensor
) -> tf.Tensor:
    """Map positions to rows so that any `window` successive ones read only a few chunks of rows.

    For data larger than memory or on slow disks: chunks of a sixteenth of the window come in random
    order, and the rows within a window are permuted. A bijection, different each epoch.

    >>> positions, epoch = tf.range(12, dtype=tf.int64), tf.constant(0, tf.int64)
    >>> print(window_shuffle(positions, count=12, window=4, seed=1, epoch=epoch).numpy())
    [ 1  7 10  4  8  6 11  2  5  3  0  9]
    """
    which = positions // window
    size = tf.minimum(tf.constant(window, tf.int64), count - which * window)
    key = fold(seed, epoch, "window", which)
    row = which * window + swap_or_not(positions - which * window, size, key)
    chunk = max(1, window // CHUNKS_PER_WINDOW)
    whole = max(1, count // chunk)
    number = row // chunk
    # A smaller last chunk keeps its place. A random rotation lets every row be in it at times.
    order = fold(seed, epoch, "chunks")
    to = swap_or_not(tf.minimum(number, whole - 1), tf.constant(whole, tf.int64), order)
    rows = tf.where(number < whole, to * chunk + row % chunk, row)
    rotation = fold(seed, epoch, "rotation") % tf.constant(count, tf.uint64)
    return (rows + tf.cast(rotation, tf.int64)) % count


def lane_shuffle(
    positions: tf.Tensor, *, count: int, lanes: int, batch_size: int, seed: int, epoch: tf.Tensor
) -> tf.Tensor:
    """Map positions to rows so that a batch takes equally many rows from each of `lanes` parts.

    These parts, the lanes, are contiguous and follow each other in the batch, so that a worker with
    the same share of every batch always reads the same rows. The rows of a lane are permuted; one
    that has a row more than others leaves out another row each epoch. `batch_size` is a multiple of
    `lanes`, and there are positions for `count // lanes` rows of each lane.

    >>> positions, epoch = tf.range(8, dtype=tf.int64), tf.constant(0, tf.int64)
    >>> print(lane_shuffle(positions, count=9, lanes=2, batch_size=4, seed=1, epoch=epoch).numpy())
    [1 3 8 7 0 2 6 5]
    """
    usual = batch_size // lanes  # rows of a lane in every batch but the last
    step, place = positions // batch_size, positions % batch_size
    share = tf.minimum(tf.constant(usual, tf.int64), count // lanes - step * usual)
    lane, row = place // share, step * usual + place % share
    begin, end = lane * count // lanes, (lane + 1) * count // lanes
    return begin + swap_or_not(row, end - begin, fold(seed, epoch, "lane", lane))


@dataclass(frozen=True, kw_only=True)
class ClassIndex:
    """Draws by class as tables, so that a draw is a few look-ups.

    Attributes:
      kinds: (draws,) integers, the class of each of an epoch's draws.
      rows: (…,) integers, the rows of each class, repeated so that draws may begin at any of them.
      offsets: (classes,) int64, a draw's index in `rows` minus its index in the epoch.
      sizes: (classes,) int64, the number of rows, or 1 for a class without rows.
    """

    kinds: np.ndarray
    rows: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray


def index_by_class(labels: np.ndarray, weights: np.ndarray) -> ClassIndex:
    """Assign an epoch of len(labels) draws to classes in proportion to `weights` (classes,).

    Quotas are exact to within one draw. A class of weight 0 is not drawn; every other must occur in
    `labels`. For four rows of class 0 and two of class 1, an epoch of equal weights draws three of
    each; the rows of class 1 are listed often enough to begin at any of them.

    >>> index = index_by_class(np.array([0, 0, 0, 0, 1, 1]), np.array([0.5, 0.5]))
    >>> print(index.kinds, index.rows, index.offsets, index.sizes)
    [0 0 0 1 1 1] [0 1 2 3 0 1 2 4 5 4 5 4] [0 4] [4 2]
    """
    exact = len(labels) * weights / weights.sum()
    quotas = np.floor(exact).astype(np.int64)
    quotas[np.argsort(quotas - exact, kind="stable")[: len(labels) - quotas.sum()]] += 1
    by_class = np.argsort(labels, kind="stable")
    edges = np.searchsorted(labels[by_class], np.arange(len(weights) + 1))
    members = [by_class[start:stop] for start, stop in itertools.pairwise(edges.tolist())]
    rows = [
        np.resize(rows, len(rows) + quota) if quota else rows[:0]
        for rows, quota in zip(members, quotas.tolist(), strict=True)
    ]
    lengths = np.asarray([len(part) for part in rows])
    kinds = np.arange(len(weights), dtype=np.min_scalar_type(len(weights) - 1))
    return ClassIndex(
        kinds=np.repeat(kinds, quotas),
        rows=np.concatenate(rows).astype(np.int32 if len(labels) < 1 << 31 else np.int64),
        offsets=(np.cumsum(lengths) - lengths) - (np.cumsum(quotas) - quotas),
        sizes=np.asarray([max(1, len(part)) for part in members], np.int64),
    )


def sample_by_class(
    positions: tf.Tensor, *, index: ClassIndex, seed: int, epoch: tf.Tensor
) -> tf.Tensor:
    """Map positions (steps, batch) to rows by the quotas of classes, mixed over the whole epoch.

    Every example of a class is drawn once before any is drawn again; those drawn once more differ
    from epoch to epoch. `epoch` is (steps, 1).
    """
    draws = permute(positions, count=len(index.kinds), seed=seed, epoch=epoch)
    classes = tf.range(len(index.sizes), dtype=tf.int64)
    rotation = fold(seed, epoch, "class", classes) % tf.constant(index.sizes.astype(np.uint64))
    shifts = tf.constant(index.offsets) + tf.cast(rotation, tf.int64)
    kinds = tf.cast(tf.gather(tf.constant(index.kinds), draws), tf.int32)
    places = draws + tf.gather(shifts, kinds, axis=1, batch_dims=1)
    return tf.cast(tf.gather(tf.constant(index.rows), places), tf.int64)
