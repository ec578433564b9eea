"""Arithmetic that assigns examples to splits, shards and steps. Pure functions, no I/O."""

import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd


def assign_split(digest: str, *, shares: Mapping[str, float], seed: int) -> str:
    """Assign an example to a split by its content digest or group.

    `shares` maps each split except `train` to its share in [0, 1]; all other examples are for
    training. Equal digests always get the same split, and adding data never moves an example.
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
    """Return [first, stop) of the time steps of each split of a series.

    `shares` has the shares of validation and test, which come last.
    """
    edges = [
        0,
        round(count * (1 - shares["validation"] - shares["test"])),
        round(count * (1 - shares["test"])),
        count,
    ]
    return dict(zip(("train", "validation", "test"), itertools.pairwise(edges), strict=True))


def shard_order(examples: pd.DataFrame) -> np.ndarray:
    """Return the indices (examples,) of a global shuffle that depends on contents alone.

    `examples` has the columns digest (hexadecimal) and id. Sorting by digest is a shuffle, since
    digests are as good as random numbers; equal contents are ordered by id.
    """
    first = first_of_digests(examples["digest"].tolist())
    order = np.argsort(first)
    ordered = first[order]
    if np.any(ordered[1:] == ordered[:-1]):
        both = list(zip(examples["digest"].tolist(), examples["id"].tolist(), strict=True))
        return np.asarray(sorted(range(len(both)), key=both.__getitem__))
    return order


def first_of_digests(digests: Sequence[str]) -> np.ndarray:
    """Return the first 64 bits of hexadecimal digests, (examples,) uint64."""
    joined = np.frombuffer(bytes.fromhex("".join(digests)), ">u8")
    return joined.reshape(len(digests), -1)[:, 0].astype(np.uint64)


def shard_ranges(
    first: np.ndarray, sizes: Sequence[int], *, target_bytes: float, min_shards: int
) -> list[tuple[int, int]]:
    """Cut examples in `shard_order` into [start, stop) by equal ranges of all possible digests.

    An example's content decides its shard. There are `min_shards` ranges or, if shards would exceed
    `target_bytes` on average, the least power of two with which they do not. While the number of
    ranges stays the same, a new example changes only its shard. A range without examples makes no
    shard; a range of more than twice `target_bytes`, such as of equal contents, makes several.
    `first` has the first 64 bits of each digest, ascending, `sizes` the examples' sizes [bytes].
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
    """Cut a sequence, such as the blocks of a series, into [start, stop) of about equal bytes.

    Makes as few shards as keep the average size within `target_bytes`, at least `min_shards`, and
    at most one per item. `sizes` are the sizes of the items [bytes].
    """
    passed = np.cumsum(np.asarray(sizes, np.int64))
    blocks, total = len(sizes), int(passed[-1])
    count = min(max(min_shards, -(-total // max(1, int(target_bytes)))), blocks)
    numbers = np.arange(1, count)
    stops = np.searchsorted(passed, total * numbers / count) + 1
    # Every shard gets a block, whatever the sizes: stops must increase and leave enough blocks for
    # later shards.
    stops = np.minimum(np.maximum.accumulate(stops - numbers) + numbers, blocks - count + numbers)
    return list(itertools.pairwise([0, *stops.tolist(), blocks]))


def count_steps(examples: int, batch_size: int) -> int:
    """Return the number of batches in an epoch; the last may be smaller."""
    return -(-examples // batch_size)
