"""Batches that are kept in memory, so that a model can be timed on them alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
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
    """Batches in the order in which they came, the iterator that they came from, and whether that
    ended after them.
    """

    batches: list[Any] = field(default_factory=list)
    iterator: Any = None
    ended: bool = False

    def of(self, iterator: Any) -> BatchesTaken:
        """The same, from this iterator."""
        return replace(self, iterator=iterator)

    def drop_remainder(self, examples: int | None) -> None:
        """Drop the last batch of an input if it has fewer examples than a full one: it may be the
        only one, and is no step of the model. Others may differ, as those of sequences do.
        """
        if self.ended and self.batches:
            count = count_examples(self.batches[-1])
            if count is not None and count < (examples or 0):
                self.batches.pop()


def keep_batches(
    take: Callable[[], Any],
    copy: Callable[[Any], Any] = lambda batch: batch,
    clock: Callable[[], float] = perf_counter,
) -> BatchesTaken:
    """Take batches up to a number, an amount of memory and a time. `take` returns a tuple of the
    next one, or None at the end. A `copy` is kept, so that a batch that lies in memory shared with
    workers gives that back.
    """
    most, taken, size, began = most_bytes(), BatchesTaken(), 0, clock()
    while len(taken.batches) < MAX_BATCHES and size < most:
        batch = take()
        if batch is None:
            taken.ended = True
            break
        taken.batches.append(copy(batch[0]))
        size += count_bytes(batch[0])
        if clock() - began > MAX_SECONDS:
            break
    return taken


def most_bytes() -> float:
    """That may be kept."""
    left = memory_left_bytes()
    return MAX_BYTES if left is None else min(MAX_BYTES, MEMORY_FRACTION * left)


def copy_batch(torch: Any, batch: Any) -> Any:
    """A batch of PyTorch as its own, pinned where the original is: the script may change it, and it
    may lie in memory shared with workers.
    """
    pinned: dict[int, Any] = {}
    for leaf in leaves(batch) if torch.cuda.is_initialized() else ():
        if getattr(leaf, "layout", None) is torch.strided and leaf.is_pinned():
            pinned[id(leaf)] = made = deepcopy(leaf)
            made.data = made.data.pin_memory()
    return deepcopy(batch, pinned)


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


def count_bytes(batch: Any) -> int:
    """The size of a batch."""
    return sum(map(_bytes_of, leaves(batch)))


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
