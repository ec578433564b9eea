"""Batches that are kept in memory, so that a model can be timed on them alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from .machine import memory_left_bytes

MAX_BATCHES, MAX_BYTES, MAX_SECONDS = 64, 512 * 2**20, 2.0
MEMORY_FRACTION = 0.1  # of what is left
DRAINED_S, DRAINED_FRACTION = 0.25e-3, 0.05  # taking a batch that is ready takes less; of a step
MAX_DRAIN, MAX_DRAIN_S = 256, 1.0
MAX_DEPTH = 8  # of what a batch consists of; an object may hold itself


@dataclass
class BatchesTaken:
    """Batches in the order in which they came, and the iterator that they came from."""

    batches: list[Any] = field(default_factory=list)
    iterator: Any = None

    def of(self, iterator: Any) -> BatchesTaken:
        """The same, from this iterator."""
        return BatchesTaken(self.batches, iterator)


def keep_batches(
    take: Callable[[], Any], copy: Callable[[Any], Any] = lambda batch: batch
) -> BatchesTaken:
    """Take batches up to a number, an amount of memory and a time. `take` returns a tuple of the
    next one, or None at the end. A `copy` is kept, so that a batch that lies in memory shared with
    workers gives that back.
    """
    left = memory_left_bytes()
    most = MAX_BYTES if left is None else min(MAX_BYTES, MEMORY_FRACTION * left)
    taken, size, began = BatchesTaken(), 0, perf_counter()
    while len(taken.batches) < MAX_BATCHES and size < most:
        batch = take()
        if batch is None:
            break
        taken.batches.append(copy(batch[0]))
        size += sum(map(_bytes_of, leaves(batch[0])))
        if perf_counter() - began > MAX_SECONDS:
            break
    return taken


def drained_s(step_ms: float) -> float:
    """A batch that takes longer [s] was not ready."""
    return max(DRAINED_S, DRAINED_FRACTION * step_ms / 1e3)


def leaves(batch: Any, depth: int = MAX_DEPTH) -> Iterator[Any]:
    """The arrays of a batch, nested in mappings, lists and tuples, or values of an object."""
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    elif _lengths_of(batch) is None and hasattr(batch, "__dict__"):
        batch = list(vars(batch).values())
    if isinstance(batch, (list, tuple)):
        for part in batch if depth else ():
            yield from leaves(part, depth - 1)
    elif batch is not None:
        yield batch


def count_examples(batch: Any) -> int | None:
    """In a batch: the first dimension of its first array."""
    for leaf in leaves(batch):
        lengths = _lengths_of(leaf)
        if lengths:
            return None if lengths[0] is None else int(lengths[0])
    return None


def _lengths_of(part: Any) -> tuple[Any, ...] | None:
    """The shape of an array, () where it does not say it; None of what is no array."""
    try:
        shape = getattr(part, "shape", None)
        return None if shape is None else tuple(shape)
    except Exception:  # noqa: BLE001 - a nested tensor of PyTorch has none, and raises
        return ()


def _bytes_of(leaf: Any) -> int:
    try:
        size = getattr(leaf, "nbytes", None)  # NumPy, JAX, PyTorch
    except Exception:  # noqa: BLE001 - a sparse tensor of PyTorch has none, and raises
        size = None
    if isinstance(size, int):
        return size
    dtype = getattr(leaf, "dtype", None)
    width = getattr(dtype, "size", None) or getattr(dtype, "itemsize", None) or 8
    count = 1
    for length in _lengths_of(leaf) or ():
        count *= int(length or 1)
    return count * int(width)
