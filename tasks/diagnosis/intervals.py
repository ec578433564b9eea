"""Sets of instants as sorted, disjoint spans: arrays (spans, 2) of begin and end. What the analysis of a trace is made of."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

EMPTY = np.empty((0, 2))


def union(pairs: Iterable[tuple[float, float]]) -> np.ndarray:
    """The instants that are in any of the (begin, end) pairs, which may overlap and come in any order."""
    array = np.asarray(sorted(pairs), float).reshape(-1, 2)
    if not len(array):
        return EMPTY
    reach = np.maximum.accumulate(array[:, 1])
    opens = np.concatenate([[True], array[1:, 0] > reach[:-1]])
    first = np.flatnonzero(opens)
    return np.stack([array[first, 0], np.maximum.reduceat(array[:, 1], first)], axis=1)


def intersection(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The instants that are in both."""
    if not len(one) or not len(other):
        return EMPTY
    found, place = [], 0
    for begin, end in one.tolist():
        while place and other[place - 1, 1] > begin:
            place -= 1
        while place < len(other) and other[place, 1] <= begin:
            place += 1
        while place < len(other) and other[place, 0] < end:
            found.append((max(begin, other[place, 0]), min(end, other[place, 1])))
            place += 1
    return np.asarray(found, float).reshape(-1, 2)


def difference(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The instants that are in `one` and not in `other`."""
    if not len(one) or not len(other):
        return one
    outside = np.concatenate([[-np.inf], other.ravel(), [np.inf]]).reshape(-1, 2)
    return intersection(one, outside)


def close_gaps(array: np.ndarray, gap: float) -> np.ndarray:
    """The same instants, with gaps that are shorter than `gap` filled."""
    return union((begin, end + gap) for begin, end in array.tolist()) - (0, gap) if len(array) else EMPTY


def total_length(array: np.ndarray) -> float:
    """How long all spans last together."""
    return float((array[:, 1] - array[:, 0]).sum())
