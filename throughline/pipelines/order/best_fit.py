"""Packing by length alone: which documents share a row, decided before any token is read. NumPy
only.

Documents of equal length are interchangeable, so a plan says of each slot of a row how long its
document is, not which one it is. The plan is the same in every epoch, and so are the number of rows
and how tight they are; `packed_batches.py` assigns documents to slots, others each epoch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class PackPlan:
    """Rows of `row_length` tokens as tables; slot after slot, row after row.

    starts (rows + 1,) int64: the first slot of each row; lengths (slots,) int64: tokens that a slot
    has room for; ranks (slots,) int64: which one it is among the slots of its length; documents
    (slots,) int64: examples from the shortest to the longest; firsts (row_length + 2,) int64: where
    those of each length begin in `documents`.
    """

    row_length: int
    starts: np.ndarray
    lengths: np.ndarray
    ranks: np.ndarray
    documents: np.ndarray
    firsts: np.ndarray

    @property
    def rows(self) -> int:
        """Rows of the plan."""
        return len(self.starts) - 1

    @property
    def most_segments(self) -> int:
        """Documents in the row that has most of them."""
        return int(np.diff(self.starts).max(initial=0))


def plan_packs(lengths: np.ndarray, row_length: int) -> PackPlan:
    """Plan rows of `row_length` tokens for documents of `lengths` (documents,) tokens, none of them
    longer: every document in one row, by best-fit decreasing.

    An empty document takes the room of one token, so that it has a place.

    >>> plan = plan_packs(np.array([5, 3, 8, 2, 2]), 10)
    >>> print(plan.rows, [part.tolist() for part in np.split(plan.lengths, plan.starts[1:-1])])
    2 [[8, 2], [5, 3, 2]]
    """
    taken = np.maximum(lengths, 1)
    counts = np.bincount(taken, minlength=row_length + 1)
    rows, slots = fill_rows(counts, row_length)
    firsts = np.concatenate([[0], np.cumsum(counts)])
    # Slots come length by length, so the first one of each length is where that is first met.
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
    """Assign documents to rows of `row_length` tokens by best-fit decreasing: from the longest to
    the shortest, each into the row that has the least room left of those it fits into.

    counts (row_length + 1,): documents of each length, none of length 0. Returns the row of each
    document and its length, both (documents,) int64, from the longest to the shortest.

    All documents of a length are assigned at once: where one fits into the tightest row, the next
    one goes there, too, as long as it fits. So the work grows with the lengths that differ, not
    with the documents. Source of the method: best-fit decreasing (Johnson, 1973).
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
            else:  # all of them empty, and as many as it takes
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
    """The first `count` rows of a stack, or all it has, and what stays."""
    rows = np.concatenate(stack)
    return rows[:count], [rows[count:]] if len(rows) > count else []
