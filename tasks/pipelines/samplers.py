"""Which rows a step reads: samplers as pure functions from positions in an epoch to rows of a split, in TensorFlow.

A position is the place of an example in the order of its epoch, 0 … examples − 1. Every sampler is a pure function of
(seed, epoch, position): an epoch can be entered anywhere, repeated anywhere, and dealt to any number of hosts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from tasks.pipelines.kernels import mix64

ROUNDS = 16  # of the index cipher; with TensorFlow's default of 4, small splits show structure
CHUNKS_PER_WINDOW = 16


def permuted(positions: tf.Tensor, *, count: tf.Tensor | int, seed: int, epoch: tf.Tensor, part: tf.Tensor | int = 0) -> tf.Tensor:
    """Map positions (n,) int64 in [0, count) to their places in the permutation of (seed, epoch, part).

    `count`, `epoch` and `part` may be one for all, or one per position (then each set of equals is permuted by itself). A
    bijection in constant memory: a block cipher over the range. Source: Simon (Beaulieu et al., 2013) as in TensorFlow's
    RandomIndexShuffle.
    """
    # Folded one after the other, not added: (seed 1, epoch 0) and (seed 0, epoch 1) are unlike.
    mixed = mix64(mix64(tf.constant(seed + 1, tf.uint64)) ^ tf.cast(epoch, tf.uint64))
    mixed = mix64(mixed ^ tf.cast(part, tf.uint64)) if tf.is_tensor(part) or part else mixed
    words = tf.stack([mixed, mix64(mixed), mix64(mix64(mixed))], axis=-1)
    words = tf.cast(tf.bitwise.right_shift(words, tf.constant(32, tf.uint64)), tf.uint32)
    return tf.raw_ops.RandomIndexShuffle(index=positions, seed=words, max_index=tf.cast(count, tf.int64) - 1, rounds=ROUNDS)


def permuted_within_windows(positions: tf.Tensor, *, count: int, window: int, seed: int, epoch: tf.Tensor) -> tf.Tensor:
    """Map positions (n,) to rows so that every stretch of `window` positions reads only a few chunks of neighbouring rows.

    For data beyond memory or on slow disks: chunks of a sixteenth of the window come in random order, and the rows of a
    window are permuted. A bijection, another one each epoch (`epoch` (n,), one per position).
    """
    which = positions // window
    size = tf.minimum(tf.constant(window, tf.int64), count - which * window)
    place = which * window + permuted(positions - which * window, count=size, seed=seed, epoch=epoch, part=which + 1)
    chunk = max(1, window // CHUNKS_PER_WINDOW)
    whole = max(1, count // chunk)
    number = place // chunk
    # A last, smaller chunk keeps its place; turning the whole circle by a random amount gives every row a chance to be in it.
    moved = permuted(tf.minimum(number, whole - 1), count=whole, seed=seed, epoch=epoch) * chunk + place % chunk
    rows = tf.where(number < whole, moved, place)
    turn = permuted(tf.zeros_like(positions), count=count, seed=seed + 1, epoch=epoch)
    return (rows + turn) % count


@dataclass(frozen=True, kw_only=True)
class ClassIndex:
    """The rows of a split ordered by class, and how many draws each class gets in an epoch.

    rows (examples,) int64; sizes, quotas (classes,) int64, both without the classes that get no draw.
    """

    rows: np.ndarray
    sizes: np.ndarray
    quotas: np.ndarray


def class_index(labels: np.ndarray, weights: np.ndarray) -> ClassIndex:
    """Deal an epoch of len(labels) draws to classes in proportion to `weights` (classes,), exactly to within one draw.

    A class of weight 0 is not drawn; every other must occur in `labels`.
    """
    order = np.argsort(labels, kind="stable").astype(np.int64)
    sizes = np.bincount(labels, minlength=len(weights)).astype(np.int64)
    order = order[weights[labels[order]] > 0]
    exact = len(labels) * weights / weights.sum()
    quotas = np.floor(exact).astype(np.int64)
    quotas[np.argsort(quotas - exact, kind="stable")[: len(labels) - quotas.sum()]] += 1
    drawn = weights > 0
    return ClassIndex(rows=order, sizes=sizes[drawn], quotas=quotas[drawn])


def drawn_by_class(positions: tf.Tensor, *, index: ClassIndex, seed: int, epoch: tf.Tensor) -> tf.Tensor:
    """Map positions (n,) to rows so that each class comes as often as its quota says, mixed over the whole epoch.

    Within a class every example is drawn once before any is drawn again.
    """
    count = int(index.quotas.sum())
    place = permuted(positions, count=count, seed=seed, epoch=epoch)
    ends = tf.constant(np.cumsum(index.quotas))
    kind = tf.searchsorted(ends, place, side="right")
    sizes = tf.gather(tf.constant(index.sizes), kind)
    draw = place - tf.gather(ends - tf.constant(index.quotas), kind)
    part = tf.cast(kind + 1, tf.int64) * (1 << 32) + draw // sizes
    within = permuted(draw % sizes, count=sizes, seed=seed, epoch=epoch, part=part)
    return tf.gather(tf.constant(index.rows), tf.gather(tf.constant(np.cumsum(index.sizes) - index.sizes), kind) + within)
