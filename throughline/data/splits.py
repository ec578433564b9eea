"""The order of examples as arithmetic on indices: splits, shard order, epochs and steps. Pure
functions, no I/O.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd


def assign_split(digest: str, *, shares: Mapping[str, float], seed: int) -> str:
    """Assign an example to a split by its content digest.

    `shares` maps each split but `train` to its share in [0, 1]; the rest is train. Equal content
    always lands in the same split, and adding data never moves an example.
    """
    mixed = hashlib.blake2b(f"{seed}:{digest}".encode(), digest_size=8).digest()
    position = int.from_bytes(mixed, "little") / 2**64
    edge = 0.0
    for split, share in shares.items():
        edge += share
        if position < edge:
            return split
    return "train"


def shard_order(examples: pd.DataFrame) -> np.ndarray:
    """Return the indices (examples,) in a global shuffle keyed by content: the same data, the same
    order.

    `examples` has the columns digest (hexadecimal) and id. A digest is as good as a random number,
    so sorting by it is a shuffle; equal contents follow their ids.
    """
    first = (
        np.frombuffer(bytes.fromhex("".join(examples["digest"].tolist())), ">u8")
        .reshape(len(examples), -1)[:, 0]
        .astype(np.uint64)
    )
    order = np.argsort(first)
    ordered = first[order]
    if np.any(ordered[1:] == ordered[:-1]):
        both = list(zip(examples["digest"].tolist(), examples["id"].tolist(), strict=True))
        return np.asarray(sorted(range(len(both)), key=both.__getitem__))
    return order


def shard_bounds(
    sizes: Sequence[int], *, target_bytes: float, min_shards: int
) -> list[tuple[int, int]]:
    """Cut a sequence of example sizes [bytes] into consecutive [start, stop) ranges of about equal
    bytes.

    As many shards as reach `target_bytes` each, at least `min_shards`, never more than there are
    examples.
    """
    passed = np.cumsum(np.asarray(sizes, np.int64))
    examples, total = len(sizes), int(passed[-1])
    count = min(max(min_shards, -(-total // max(1, int(target_bytes)))), examples)
    numbers = np.arange(1, count)
    stops = np.searchsorted(passed, total * numbers / count) + 1
    # Every shard gets an example, whatever the sizes: stops must increase, and leave enough for the
    # later shards.
    stops = np.minimum(np.maximum.accumulate(stops - numbers) + numbers, examples - count + numbers)
    edges = [0, *stops.tolist(), examples]
    return list(itertools.pairwise(edges))


def count_steps(examples: int, batch_size: int) -> int:
    """Number of batches in an epoch; the last may be smaller."""
    return -(-examples // batch_size)
