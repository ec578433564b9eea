"""Batches of rows that several documents share, as pure functions of (seed, epoch, step).

The lengths that share a row are planned once (`best_fit.py`). Each epoch permutes the rows, and the
documents of each length among the slots of that length: partners change, the number of steps and
the padding do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import tensorflow as tf

from throughline.data.splits import count_steps
from throughline.kernels.randomness import fold
from throughline.pipelines.order.best_fit import PackPlan
from throughline.pipelines.order.samplers import permute, swap_or_not
from throughline.plan.training_workers import TrainingWorker

NO_DOCUMENT = -1


@dataclass(frozen=True, kw_only=True)
class PackedBatches:
    """The batches of a plan, `batch_size` rows each over all workers, with `segments` slots a row.

    They are in the order of the plan unless `shuffled`. A few rows may be empty, so that workers
    get equal slices and no document is left out.
    """

    plan: PackPlan
    batch_size: int
    segments: int
    seed: int
    worker: TrainingWorker
    shuffled: bool

    @property
    def examples(self) -> int:
        return len(self.plan.documents)

    @property
    def steps_per_epoch(self) -> int:
        return count_steps(self._all_rows, self.batch_size)

    def rows(self, steps: tf.Tensor) -> tf.Tensor:
        """Return this worker's documents (steps, width, segments) of `steps` (n,).

        Empty slots are NO_DOCUMENT. A step's rows are filled up with its last row.
        """
        epoch, first, stop = self._slices(steps)
        width = -(-self.batch_size // self.worker.count)
        positions = first[:, None] + tf.range(width, dtype=tf.int64)
        positions = tf.minimum(positions, stop[:, None] - 1)
        if self.shuffled:
            positions = permute(
                positions, count=self._all_rows, seed=self.seed, epoch=epoch[:, None]
            )
        flat = tf.reshape(positions, (-1,))
        begin, end = tf.gather(self._starts, flat), tf.gather(self._starts, flat + 1)
        slots = tf.ragged.range(begin, end)
        epochs = tf.gather(tf.repeat(epoch, width), slots.value_rowids())
        documents = slots.with_values(self._documents(slots.flat_values, epochs))
        dense = documents.to_tensor(NO_DOCUMENT, shape=(None, self.segments))
        return tf.reshape(dense, (-1, width, self.segments))

    def size(self, step: tf.Tensor) -> tf.Tensor:
        """Return how many rows this worker has in a step (scalar, or several)."""
        _, first, stop = self._slices(step)
        return stop - first

    def trim(self, rows: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        """Return the rows (width, segments) of a step (scalar) without the repeated ones."""
        return rows[: self.size(step)]

    @property
    def _all_rows(self) -> int:
        return -(-self.plan.rows // self.worker.multiple) * self.worker.multiple

    @cached_property
    def _starts(self) -> np.ndarray:
        """Return the first slots of all rows, including the empty rows at the end."""
        starts = self.plan.starts
        return np.pad(starts, (0, self._all_rows - self.plan.rows), mode="edge")

    def _documents(self, slots: tf.Tensor, epochs: tf.Tensor) -> tf.Tensor:
        lengths, ranks = tf.gather(self.plan.lengths, slots), tf.gather(self.plan.ranks, slots)
        first, after = (
            tf.gather(self.plan.firsts, lengths),
            tf.gather(self.plan.firsts, lengths + 1),
        )
        if self.shuffled:
            ranks = swap_or_not(ranks, after - first, fold(self.seed, epochs, "length", lengths))
        return tf.gather(self.plan.documents, first + ranks)

    def _slices(self, steps: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return epochs and this worker's rows in them as [first, stop), all int64."""
        epoch, start = steps // self.steps_per_epoch, steps % self.steps_per_epoch * self.batch_size
        size = tf.minimum(tf.constant(self.batch_size, tf.int64), self._all_rows - start)
        return epoch, *self.worker.cut(start, size)
