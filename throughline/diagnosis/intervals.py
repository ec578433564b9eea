"""Sets of instants as sorted, disjoint spans: arrays (spans, 2) of begin and end."""

import itertools
from collections.abc import Iterable

import numpy as np


def union(pairs: Iterable[Iterable[float]]) -> np.ndarray:
    """Return the union of (begin, end) pairs, which may overlap and come in any order."""
    array = np.array(list(pairs), float).reshape(-1, 2)
    if not len(array):
        return array
    array = array[array[:, 0].argsort()]
    reach = np.maximum.accumulate(array[:, 1])
    first = np.flatnonzero(np.concatenate([[True], array[1:, 0] > reach[:-1]]))
    return np.stack([array[first, 0], np.maximum.reduceat(array[:, 1], first)], axis=1)


def merge(sets: Iterable[np.ndarray]) -> np.ndarray:
    return union(itertools.chain.from_iterable(sets))


def intersection(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    met = np.searchsorted(second[:, 1], first[:, 0], side="right")
    counts = np.maximum(0, np.searchsorted(second[:, 0], first[:, 1]) - met)
    ours = np.repeat(np.arange(len(first)), counts)
    theirs = np.arange(len(ours)) + np.repeat(met + counts - np.cumsum(counts), counts)
    begins = np.maximum(first[ours, 0], second[theirs, 0])
    return np.stack([begins, np.minimum(first[ours, 1], second[theirs, 1])], axis=1)


def difference(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    complement = np.concatenate([[-np.inf], second.ravel(), [np.inf]]).reshape(-1, 2)
    return intersection(first, complement)


def close_gaps(array: np.ndarray, gap: float) -> np.ndarray:
    """Fill gaps that are shorter than `gap`."""
    return union(array + np.array([0, gap])) - (0, gap)


def total_length(array: np.ndarray) -> float:
    return float((array[:, 1] - array[:, 0]).sum())
