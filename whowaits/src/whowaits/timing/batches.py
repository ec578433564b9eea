"""Batches that are kept in memory, to time a model on them alone."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from .machine import memory_left_bytes

MAX_BATCHES, MAX_BYTES, MAX_SECONDS = 64, 512 * 2**20, 2.0
MEMORY_FRACTION = 0.1  # share of the memory left
DRAINED_S, DRAINED_FRACTION = 0.25e-3, 0.05  # [s], share of a step: a ready batch takes less
MAX_DRAIN, MAX_DRAIN_S = 256, 1.0
LARGE_BYTES = 2**16
PRIVATE = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)
ENDS = ("OutOfRangeError", "StopIteration")  # errors by which an iterator says that it is over
MAX_DEPTH = 8  # levels of nesting; an object may contain itself


@dataclass
class BatchesTaken:
    """Batches in order, their iterator, and whether they were its last (`ended`)."""

    batches: list[Any] = field(default_factory=list)
    iterator: Any = None
    ended: bool = False

    def drop_remainder(self, examples: int | None) -> None:
        """Drop the input's last batch if it has fewer than `examples`, the number in a full one.

        Other batches may differ in size, such as those of sequences.
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
    """Take batches within limits of number, memory and time.

    `take` returns a tuple of a batch, or None at the end. What `copy` returns is kept: a copy
    releases memory that is shared with workers.
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
    left = memory_left_bytes()
    return MAX_BYTES if left is None else min(MAX_BYTES, MEMORY_FRACTION * left)


def copy_batch(torch: Any, batch: Any, *, to_keep: bool = False) -> Any:
    """Copy a PyTorch batch, since the script may change it, or workers share it; keep it pinned.

    If it is `to_keep` while a model is timed, large tensors stay apart from the heap: there they
    would fill holes that steps reuse, so steps would take memory from the system, and return it.
    """
    made: dict[int, Any] = {}
    for leaf in leaves(batch):
        if type(leaf) is not torch.Tensor or leaf.layout is not torch.strided or vars(leaf):
            continue
        if leaf.requires_grad or leaf.is_nested or leaf.is_quantized:
            continue
        apart = to_keep and PRIVATE and leaf.device.type == "cpu" and leaf.is_contiguous()
        if torch.cuda.is_initialized() and leaf.is_pinned():
            made[id(leaf)] = leaf.clone().pin_memory()
        elif apart and leaf.nbytes >= LARGE_BYTES:
            flat = torch.frombuffer(mmap.mmap(-1, leaf.nbytes, PRIVATE), dtype=leaf.dtype)
            made[id(leaf)] = flat.as_strided(leaf.shape, leaf.stride()).copy_(leaf)
        else:  # `deepcopy` would copy all that a slice is a part of
            made[id(leaf)] = leaf.clone()
    return deepcopy(batch, made)


def drain(
    take: Callable[[], Any], *, most_s: float, clock: Callable[[], float] = perf_counter
) -> None:
    """Take batches until there is none, one takes over `most_s`, or a limit is reached."""
    began = clock()
    for _ in range(MAX_DRAIN):
        asked = clock()
        if not take() or clock() - asked > most_s or clock() - began > MAX_DRAIN_S:
            return


def drained_s(step_ms: float) -> float:
    """Return the longest time [s] that taking a ready batch needs."""
    return max(DRAINED_S, DRAINED_FRACTION * step_ms / 1e3)


def leaves(batch: Any, depth: int = MAX_DEPTH) -> Iterator[Any]:
    """Yield the values of a batch, nested in mappings, lists, tuples or attributes of an object."""
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
    """Return the number of examples: the first dimension of the first array, None if unknown."""
    for leaf in leaves(batch):
        lengths = _lengths_of(leaf)
        if lengths:
            return None if lengths[0] is None else int(lengths[0])
    return None


def count_bytes(batch: Any) -> int:
    return sum(map(_bytes_of, leaves(batch)))


def _lengths_of(part: Any) -> tuple[Any, ...] | None:
    """Return an array's shape, () if it has none to read, or None for other values."""
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
