"""The order of examples as arithmetic on indices: splits, shard order, epochs and steps. Pure functions, no I/O."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence


def split_of(digest: str, *, shares: Mapping[str, float], seed: int) -> str:
    """Deal an example to a split by its content digest.

    `shares` maps each split but `train` to its share in [0, 1]; the rest is train. Equal content always lands in the
    same split, and adding data never moves an example.
    """
    mixed = hashlib.blake2b(f"{seed}:{digest}".encode(), digest_size=8).digest()
    position = int.from_bytes(mixed, "little") / 2**64
    edge = 0.0
    for split, share in shares.items():
        edge += share
        if position < edge:
            return split
    return "train"


def shard_order(digests: Sequence[str], ids: Sequence[str]) -> list[int]:
    """Return the indices of the examples in a global shuffle keyed by content: the same data, the same order."""

    def rank(index: int) -> tuple[bytes, str]:
        return hashlib.blake2b(f"{digests[index]}:{ids[index]}".encode(), digest_size=16).digest(), ids[index]

    return sorted(range(len(ids)), key=rank)


def shard_bounds(sizes: Sequence[int], *, target_bytes: float, min_shards: int) -> list[tuple[int, int]]:
    """Cut a sequence of example sizes [bytes] into consecutive [start, stop) ranges of about equal bytes.

    As many shards as reach `target_bytes` each, at least `min_shards`, never more than there are examples.
    """
    total = sum(sizes)
    count = min(max(min_shards, -(-total // max(1, int(target_bytes)))), max(1, len(sizes)))
    bounds, start, passed = [], 0, 0
    for index, size in enumerate(sizes):
        passed += size
        remaining_shards, remaining = count - len(bounds), len(sizes) - index - 1
        full = passed * count >= total * (len(bounds) + 1)
        if remaining_shards > 1 and (full or remaining < remaining_shards):
            bounds.append((start, index + 1))
            start = index + 1
    bounds.append((start, len(sizes)))
    return [(low, high) for low, high in bounds if high > low]


def steps_per_epoch(examples: int, batch_size: int) -> int:
    """Number of batches in an epoch; the last may be smaller."""
    return -(-examples // batch_size)
