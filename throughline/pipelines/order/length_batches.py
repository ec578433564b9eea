"""Batches of examples of similar length, as pure functions of (seed, epoch, step).

A bucket holds the examples for which its boundary is the smallest that suffices. This partition
depends on the lengths alone and never changes. Each epoch permutes every bucket, cuts it into
batches, the last one smaller, and permutes the batches of all buckets. So every example comes once,
the number of steps is constant, an epoch can be entered anywhere, and no order pads less with these
boundaries (docs/decisions, 2.3). For several workers, see `make_buckets`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from throughline.kernels.randomness import fold
from throughline.pipelines.order.samplers import swap_or_not
from throughline.plan.training_workers import TrainingWorker
from throughline.shared.errors import ImpossiblePlan

SHORTEST_BOUNDARY = 32  # tokens, if no boundaries are given


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """A partition by length as tables, all (buckets,) int64 except `rows`.

    Attributes:
      rows: (examples,) integers, bucket by bucket.
      boundaries: Length to which a bucket's examples are padded.
      starts: Where a bucket begins in `rows`.
      counts: Number of examples in a bucket.
      used: Number of these that an epoch uses.
      sizes: Examples in a full batch over all workers.
      first_steps: The number of a bucket's first batch in an epoch that is not shuffled.
    """

    rows: np.ndarray
    boundaries: np.ndarray
    starts: np.ndarray
    counts: np.ndarray
    used: np.ndarray
    sizes: np.ndarray
    first_steps: np.ndarray

    @property
    def examples(self) -> int:
        return int(self.used.sum())

    @property
    def steps_per_epoch(self) -> int:
        return int((-(-self.used // self.sizes)).sum())


def make_buckets(
    lengths: np.ndarray, boundaries: Sequence[int], sizes: Sequence[int], *, workers: int = 1
) -> Buckets:
    """Partition examples of `lengths` (examples,) by the smallest boundary that suffices.

    `sizes` are the examples of full batches per boundary, multiples of `workers`. To give workers
    equal slices, a bucket's surplus, its longest examples, moves up one bucket. The remaining
    examples, fewer than workers, are left out of the largest bucket; a shuffle leaves out others
    each epoch. Buckets of which an epoch uses no example are dropped.

    >>> buckets = make_buckets(np.array([3, 9, 4, 1]), [4, 8, 16], [2, 2, 2])
    >>> print(buckets.rows, buckets.boundaries, buckets.counts, buckets.first_steps)
    [3 0 2 1] [ 4 16] [3 1] [0 2]
    """
    rows = np.argsort(lengths, kind="stable")
    rows = rows.astype(np.int32) if len(rows) < 1 << 31 else rows
    ends = np.searchsorted(lengths[rows], boundaries, side="right")
    spare = len(lengths) % workers
    even = ends // workers * workers
    shifted = (ends - spare) // workers * workers  # for buckets from the largest on
    largest = int(np.argmax(np.diff(even, prepend=0)))
    left = shifted - np.concatenate([[0], even[:-1]])  # each bucket's, if it leaves out the rest
    if left[largest] <= 0:
        largest = int(np.argmax(left))
    if left[largest] <= 0:  # one bucket for all
        even, largest = np.zeros_like(even), len(ends) - 1
    above = np.arange(len(ends)) >= largest
    ends = np.where(above, shifted + spare, even)
    counts = np.diff(ends, prepend=0)
    used = counts - spare * (np.arange(len(ends)) == largest)
    occupied = used > 0
    steps = -(-used // np.asarray(sizes))[occupied]
    return Buckets(
        rows=rows,
        boundaries=np.asarray(boundaries, np.int64)[occupied],
        starts=(ends - counts)[occupied],
        counts=counts[occupied],
        used=used[occupied],
        sizes=np.asarray(sizes, np.int64)[occupied],
        first_steps=np.cumsum(steps) - steps,
    )


def double_until(longest: int) -> list[int]:
    """Return the default boundaries: each twice the one before, until the longest fits.

    >>> double_until(100)
    [32, 64, 128]
    """
    doublings = max(0, (max(1, longest) - 1).bit_length() - (SHORTEST_BOUNDARY - 1).bit_length())
    return [SHORTEST_BOUNDARY << number for number in range(doublings + 1)]


def sizes_for_tokens(tokens: int, boundaries: Sequence[int], *, workers: int = 1) -> list[int]:
    """Return how many examples, a multiple of `workers`, fit into `tokens` padded to each boundary.

    Raises:
      ImpossiblePlan: One example per worker, padded to the last boundary, does not fit.
    """
    longest = max(boundaries)
    if tokens < longest * workers:
        each = f" for each of {workers} workers" if workers > 1 else ""
        raise ImpossiblePlan(
            f"batch.tokens: {tokens:,} has no room for one example of {longest:,} tokens{each};"
            f" use at least {longest * workers:,}, or cut the documents with `truncate`"
        )
    return [tokens // boundary // workers * workers for boundary in boundaries]


@dataclass(frozen=True, kw_only=True)
class LengthBatches:
    """The batches of a partition by length on one worker, in storage order unless `shuffled`.

    Steps are int64, counted over all epochs.
    """

    buckets: Buckets
    seed: int
    worker: TrainingWorker
    shuffled: bool

    @property
    def examples(self) -> int:
        return self.buckets.examples

    @property
    def steps_per_epoch(self) -> int:
        return self.buckets.steps_per_epoch

    def rows(self, steps: tf.Tensor) -> tf.Tensor:
        """Return this worker's rows (n, width) of `steps` (n,), each filled up by its last row."""
        epoch, bucket, first, stop = self._slices(steps)
        width = -(-int(self.buckets.sizes.max()) // self.worker.count)
        positions = first[:, None] + tf.range(width, dtype=tf.int64)
        positions = tf.minimum(positions, stop[:, None] - 1)
        if self.shuffled:
            key = fold(self.seed, epoch[:, None], "bucket", bucket[:, None])
            counts = tf.gather(self.buckets.counts, bucket)[:, None]
            positions = swap_or_not(positions, counts, key)
        places = tf.gather(self.buckets.starts, bucket)[:, None] + positions
        return tf.cast(tf.gather(self.buckets.rows, places), tf.int64)

    def size(self, step: tf.Tensor) -> tf.Tensor:
        """Return how many examples this worker has in a step (scalar, or several)."""
        _, _, first, stop = self._slices(step)
        return stop - first

    def trim(self, rows: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        """Return the rows (width,) of a step (scalar) without the repeated ones."""
        return rows[: self.size(step)]

    def length(self, step: tf.Tensor) -> tf.Tensor:
        """Return the length to which the examples of each step are padded."""
        _, bucket, _, _ = self._slices(step)
        return tf.gather(self.buckets.boundaries, bucket)

    def _slices(self, steps: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return epoch, bucket, and this worker's positions [first, stop) in the bucket."""
        buckets = self.buckets
        epoch, number = steps // self.steps_per_epoch, steps % self.steps_per_epoch
        if self.shuffled:
            key = fold(self.seed, epoch, "batches")
            number = swap_or_not(number, tf.constant(self.steps_per_epoch, tf.int64), key)
        first_steps = tf.constant(buckets.first_steps, tf.int64)
        bucket = tf.math.count_nonzero(first_steps <= number[..., None], axis=-1) - 1
        full = tf.gather(buckets.sizes, bucket)
        start = (number - tf.gather(first_steps, bucket)) * full
        size = tf.minimum(full, tf.gather(buckets.used, bucket) - start)
        return epoch, bucket, *self.worker.cut(start, size)
