"""Computes the rows of a step from seed, epoch and position, for random access."""

from dataclasses import dataclass

import tensorflow as tf

from throughline.data.splits import count_steps
from throughline.pipelines.order.samplers import (
    ClassIndex,
    lane_shuffle,
    permute,
    sample_by_class,
    window_shuffle,
)
from throughline.plan.steps import shuffle_buffer_size
from throughline.plan.training_workers import TrainingWorker
from throughline.settings import ShuffleSettings


@dataclass(frozen=True, kw_only=True)
class EpochOrder:
    """The order of `count` rows, or windows, in every epoch, cut into batches and workers' slices.

    With `classes`, rows are drawn by class; otherwise each comes once. Steps are int64, counted
    over all epochs; rows are int64.
    """

    count: int
    batch_size: int
    shuffle: ShuffleSettings
    seed: int
    worker: TrainingWorker
    classes: ClassIndex | None = None

    @property
    def examples(self) -> int:
        """Examples in an epoch, without those that workers or lanes cannot share equally."""
        of_lanes = self.count - self.count % (self.shuffle.lanes or 1)
        return self.worker.shared(of_lanes, self.batch_size)

    @property
    def steps_per_epoch(self) -> int:
        return count_steps(self.examples, self.batch_size)

    @property
    def region(self) -> tuple[int, int]:
        """The rows that this worker reads, as [first, stop): its `shuffle.lanes`, or all rows."""
        lanes = self.shuffle.lanes
        if lanes is None:
            return 0, self.count
        first, stop = self.worker.cut(0, lanes)
        return first * self.count // lanes, stop * self.count // lanes

    def rows(self, steps: tf.Tensor) -> tf.Tensor:
        """Return the rows (n, batch on this worker) of `steps` (n,).

        Smaller batches are filled up with the next rows of the epoch, or its last row; see `trim`.
        """
        epoch, step_of_epoch = steps // self.steps_per_epoch, steps % self.steps_per_epoch
        first, _ = self._bounds(step_of_epoch)
        width = -(-self.batch_size // self.worker.count)
        positions = tf.minimum(first[:, None] + tf.range(width, dtype=tf.int64), self.examples - 1)
        return self.rows_at(positions, epoch[:, None])

    def size(self, step: tf.Tensor) -> tf.Tensor:
        """Return how many examples this worker has in a step (scalar, or several)."""
        first, stop = self._bounds(step % self.steps_per_epoch)
        return stop - first

    def trim(self, rows: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        """Return the rows (batch,) of a step (scalar) without those that fill up a batch."""
        always_full = (
            self.examples % self.batch_size == 0 and self.batch_size % self.worker.count == 0
        )
        return rows if always_full else rows[: self.size(step)]

    def rows_at(self, positions: tf.Tensor, epochs: tf.Tensor) -> tf.Tensor:
        """Return the rows at positions (steps, batch) in the orders of epochs (steps, 1)."""
        drawn, lanes = {"seed": self.seed, "epoch": epochs}, self.shuffle.lanes
        if self.classes is not None:
            return sample_by_class(positions, index=self.classes, **drawn)
        if self.shuffle.kind == "global":
            return permute(positions, count=self.count, **drawn)
        if self.shuffle.kind == "window":
            window = shuffle_buffer_size(self.shuffle.size, examples=self.count)
            return window_shuffle(positions, count=self.count, window=window, **drawn)
        if lanes is None:
            return positions
        lanes_of_batch = {"lanes": lanes, "batch_size": self.batch_size}
        return lane_shuffle(positions, count=self.count, **lanes_of_batch, **drawn)

    def _bounds(self, step_of_epoch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return this worker's slice of a batch as positions [first, stop)."""
        start = step_of_epoch * self.batch_size
        size = tf.minimum(tf.constant(self.batch_size, tf.int64), self.examples - start)
        return self.worker.cut(start, size)
