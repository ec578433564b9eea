"""The order of examples as arithmetic on indices: splits, shard order, epochs and steps. Pure
functions, no I/O.
"""

from __future__ import annotations

import hashlib
import itertools
import math
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


def split_steps(count: int, shares: Mapping[str, float]) -> dict[str, tuple[int, int]]:
    """The first time step of each split of a series, and the one after its last; `shares` are those
    of validation and test, which come last.
    """
    edges = [
        0,
        round(count * (1 - shares["validation"] - shares["test"])),
        round(count * (1 - shares["test"])),
        count,
    ]
    return dict(zip(("train", "validation", "test"), itertools.pairwise(edges), strict=True))


def shard_order(examples: pd.DataFrame) -> np.ndarray:
    """Return the indices (examples,) in a global shuffle keyed by content: the same data, the same
    order.

    `examples` has the columns digest (hexadecimal) and id. A digest is as good as a random number,
    so sorting by it is a shuffle; equal contents follow their ids.
    """
    first = first_of_digests(examples["digest"].tolist())
    order = np.argsort(first)
    ordered = first[order]
    if np.any(ordered[1:] == ordered[:-1]):
        both = list(zip(examples["digest"].tolist(), examples["id"].tolist(), strict=True))
        return np.asarray(sorted(range(len(both)), key=both.__getitem__))
    return order


def first_of_digests(digests: Sequence[str]) -> np.ndarray:
    """The first 64 bits of hexadecimal digests, (examples,) uint64."""
    joined = np.frombuffer(bytes.fromhex("".join(digests)), ">u8")
    return joined.reshape(len(digests), -1)[:, 0].astype(np.uint64)


def shard_ranges(
    first: np.ndarray, sizes: Sequence[int], *, target_bytes: float, min_shards: int
) -> list[tuple[int, int]]:
    """Cut examples in `shard_order` into [start, stop) by ranges of their digests: equal parts of
    all digests that there can be. `first` has the first 64 bits of each, ascending, `sizes` their
    sizes [bytes].

    So that an example's content decides its shard, and a new one changes no other shard, the number
    of ranges depends on little else than `min_shards`: where shards would exceed `target_bytes` on
    average, it is the least power of two with which they do not. A range without any example makes
    no shard; one of more than twice `target_bytes`, such as of equal contents, makes several.
    """
    passed = np.concatenate([[0], np.cumsum(np.asarray(sizes, np.int64))])
    needed = max(1, math.ceil(passed[-1] / target_bytes))
    ranges = min_shards if needed <= min_shards else 1 << (needed - 1).bit_length()
    edges = [-(-(number << 64) // ranges) for number in range(1, ranges)]
    stops = np.searchsorted(first, np.asarray(edges, np.uint64))
    bounds = []
    for start, stop in itertools.pairwise([0, *stops.tolist(), len(first)]):
        if passed[stop] - passed[start] > 2 * target_bytes:
            parts = block_ranges(sizes[start:stop], target_bytes=target_bytes, min_shards=1)
            bounds += [(start + begin, start + end) for begin, end in parts]
        elif stop > start:
            bounds.append((start, stop))
    return bounds


def block_ranges(
    sizes: Sequence[int], *, target_bytes: float, min_shards: int
) -> list[tuple[int, int]]:
    """Cut what is in order, such as the blocks of a series, by its sizes [bytes] into [start, stop)
    of about equal bytes.

    As many shards as reach `target_bytes` each, at least `min_shards`, never more than there are
    blocks.
    """
    passed = np.cumsum(np.asarray(sizes, np.int64))
    blocks, total = len(sizes), int(passed[-1])
    count = min(max(min_shards, -(-total // max(1, int(target_bytes)))), blocks)
    numbers = np.arange(1, count)
    stops = np.searchsorted(passed, total * numbers / count) + 1
    # Every shard gets a block, whatever the sizes: stops must increase, and leave enough for the
    # later shards.
    stops = np.minimum(np.maximum.accumulate(stops - numbers) + numbers, blocks - count + numbers)
    return list(itertools.pairwise([0, *stops.tolist(), blocks]))


def count_steps(examples: int, batch_size: int) -> int:
    """Number of batches in an epoch; the last may be smaller."""
    return -(-examples // batch_size)
