"""Batches of rows that several documents share, as pure functions of (seed, epoch, step).

Documents of equal length are interchangeable, so a plan gives each slot of a row a length, not a
document; it is made once, from the lengths alone, before any token is read. Each epoch permutes the
rows, and the documents of each length among the slots of that length: which documents share a row
changes, the number of steps and the padding do not.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import tensorflow as tf

from throughline.kernels.randomness import fold
from throughline.pipelines.order.epoch_order import EpochOrder
from throughline.pipelines.order.samplers import swap_or_not
from throughline.plan.training_workers import TrainingWorker

NO_DOCUMENT = -1


@dataclass(frozen=True, kw_only=True)
class PackPlan:
    """Rows of `row_length` tokens as tables, slot by slot and row by row.

    Attributes:
      starts: (rows + 1,) int64, the first slot of each row.
      lengths: (slots,) int64, the tokens that a slot has room for.
      ranks: (slots,) int64, a slot's index among the slots of its length.
      documents: (slots,) int64, examples from the shortest to the longest.
      firsts: (row_length + 2,) int64, where each length begins in `documents`.
    """

    row_length: int
    starts: np.ndarray
    lengths: np.ndarray
    ranks: np.ndarray
    documents: np.ndarray
    firsts: np.ndarray

    @property
    def rows(self) -> int:
        return len(self.starts) - 1

    def count_rows(self, multiple: int) -> int:
        """Return the number of rows with empty ones at the end, so that `multiple` divides it.

        Workers then get equal slices, and no document is left out.
        """
        return -(-self.rows // multiple) * multiple

    @property
    def most_segments(self) -> int:
        """The largest number of documents in a row."""
        return int(np.diff(self.starts).max(initial=0))


@dataclass(frozen=True, kw_only=True)
class PackedBatches:
    """The batches of a plan, whose rows come in this `order`, with `segments` slots a row.

    A few rows may be empty (`PackPlan.count_rows`).
    """

    plan: PackPlan
    order: EpochOrder
    segments: int

    @property
    def examples(self) -> int:
        return len(self.plan.documents)

    @property
    def steps_per_epoch(self) -> int:
        return self.order.steps_per_epoch

    @property
    def worker(self) -> TrainingWorker:
        return self.order.worker

    def rows(self, steps: tf.Tensor) -> tf.Tensor:
        """Return this worker's documents (n, width, segments) of `steps` (n,).

        Empty slots are NO_DOCUMENT. A step's rows are filled up as by `EpochOrder.rows`.
        """
        rows = self.order.rows(steps)
        flat = tf.reshape(rows, (-1,))
        begin, end = tf.gather(self._starts, flat), tf.gather(self._starts, flat + 1)
        slots = tf.ragged.range(begin, end)
        epochs = tf.repeat(steps // self.steps_per_epoch, tf.shape(rows)[1])
        epochs = tf.gather(epochs, slots.value_rowids())
        documents = slots.with_values(self._documents(slots.flat_values, epochs))
        dense = documents.to_tensor(NO_DOCUMENT, shape=(None, self.segments))
        return tf.reshape(dense, (-1, rows.shape[1], self.segments))

    def size(self, step: tf.Tensor) -> tf.Tensor:
        """Return how many rows this worker has in a step (scalar, or several)."""
        return self.order.size(step)

    def trim(self, rows: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        """Return the rows (width, segments) of a step (scalar), without rows that fill it up."""
        return self.order.trim(rows, step)

    @cached_property
    def _starts(self) -> np.ndarray:
        """The first slots of all rows, including the empty rows at the end."""
        return np.pad(self.plan.starts, (0, self.order.count - self.plan.rows), mode="edge")

    def _documents(self, slots: tf.Tensor, epochs: tf.Tensor) -> tf.Tensor:
        lengths, ranks = tf.gather(self.plan.lengths, slots), tf.gather(self.plan.ranks, slots)
        first = tf.gather(self.plan.firsts, lengths)
        after = tf.gather(self.plan.firsts, lengths + 1)
        if self.order.shuffle.kind != "none":
            key = fold(self.order.seed, epochs, "length", lengths)
            ranks = swap_or_not(ranks, after - first, key)
        return tf.gather(self.plan.documents, first + ranks)


def plan_packs(lengths: np.ndarray, row_length: int) -> PackPlan:
    """Plan rows of `row_length` tokens for documents of `lengths` (documents,) up to that length.

    Every document is in one row, by best-fit decreasing. An empty document takes the room of one
    token, so that it has a place.

    >>> plan = plan_packs(np.array([5, 3, 8, 2, 2]), 10)
    >>> print(plan.rows, [part.tolist() for part in np.split(plan.lengths, plan.starts[1:-1])])
    2 [[8, 2], [5, 3, 2]]
    """
    taken = np.maximum(lengths, 1)
    counts = np.bincount(taken, minlength=row_length + 1)
    rows, slots = fill_rows(counts, row_length)
    firsts = np.concatenate([[0], np.cumsum(counts)])
    # Slots are sorted by length, so the first slot of a length is at its first occurrence.
    _, first_met, inverse = np.unique(slots, return_index=True, return_inverse=True)
    ranks = np.arange(len(slots)) - first_met[inverse]
    order = np.argsort(rows, kind="stable")
    return PackPlan(
        row_length=row_length,
        starts=np.concatenate([[0], np.cumsum(np.bincount(rows))]).astype(np.int64),
        lengths=slots[order],
        ranks=ranks[order],
        documents=np.argsort(taken, kind="stable"),
        firsts=firsts,
    )


def fill_rows(counts: np.ndarray, row_length: int) -> tuple[np.ndarray, np.ndarray]:
    """Assign documents to rows of `row_length` tokens by best-fit decreasing.

    From the longest to the shortest, each document goes to the row with the least room left that it
    fits into. `counts` (row_length + 1,) are the numbers of documents per length, 0 for length 0.
    Returns the row and the length of each document, both (documents,) int64, longest first.

    All documents of a length are assigned at once: if one fits into the tightest row, the next goes
    there, too, as long as it fits. So the work grows with the number of different lengths, not of
    documents. Source: best-fit decreasing (Johnson, 1973).
    """
    open_rows: defaultdict[int, list[np.ndarray]] = defaultdict(list)  # by the room that is left
    held = np.zeros(row_length + 1, np.int64)  # how many rows `open_rows` has
    row_of, length_of, rows = [np.empty(0, np.int64)], [np.empty(0, np.int64)], 0
    for length in np.flatnonzero(counts)[::-1].tolist():
        left = int(counts[length])
        for free in (*(np.flatnonzero(held[length:]) + length).tolist(), row_length):
            each = free // length
            needed = -(-left // each)
            if held[free]:
                chosen, open_rows[free] = _take(open_rows[free], needed)
                held[free] -= len(chosen)
            else:  # empty rows, as many as needed
                chosen = np.arange(rows, rows + needed)
                rows += needed
            filled = np.full(len(chosen), each)
            filled[-1] -= max(0, len(chosen) * each - left)
            row_of.append(np.repeat(chosen, filled))
            length_of.append(np.full(len(row_of[-1]), length))
            for part, documents in ((chosen[:-1], each), (chosen[-1:], int(filled[-1]))):
                rest = free - documents * length
                if rest and len(part):
                    open_rows[rest].append(part)
                    held[rest] += len(part)
            left -= len(row_of[-1])
            if not left:
                break
    return np.concatenate(row_of), np.concatenate(length_of)


def _take(stack: Sequence[np.ndarray], count: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the first `count` rows of a stack, or all it has, and the rest."""
    rows = np.concatenate(stack)
    return rows[:count], [rows[count:]] if len(rows) > count else []
