"""Mean and standard deviation of data that arrives in pieces of any size. Needs no TensorFlow."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from throughline.data.columns.index import Statistics

_LEVELS = 256


@dataclass(frozen=True, kw_only=True)
class Moments:
    """Number of values per channel, their mean, and the sum of their squared distances from it."""

    count: int
    mean: tuple[float, ...]
    sum_sq_dev: tuple[float, ...]


def compute_moments(values: np.ndarray) -> Moments:
    """Return moments of values (…, channels) over all axes but the last, in float64."""
    flat = values.reshape(-1, values.shape[-1])
    if values.dtype == np.uint8:
        levels = np.arange(_LEVELS, dtype=np.float64)
        counts = np.stack(
            [np.bincount(flat[:, channel], minlength=_LEVELS) for channel in range(flat.shape[1])]
        )
        mean = counts @ levels / len(flat)
        sum_sq_dev = (counts * (levels - mean[:, None]) ** 2).sum(axis=1)
    else:
        mean = flat.mean(axis=0, dtype=np.float64)
        sum_sq_dev = ((flat - mean) ** 2).sum(axis=0)
    return Moments(
        count=len(flat), mean=tuple(mean.tolist()), sum_sq_dev=tuple(sum_sq_dev.tolist())
    )


def merge_moments(parts: Iterable[Moments]) -> Statistics:
    """Return the statistics of all parts together. Source: Chan, Golub and LeVeque, 1979."""
    count, mean, sum_sq_dev = 0, np.zeros(1), np.zeros(1)
    for part in parts:
        difference = np.asarray(part.mean) - mean
        total = count + part.count
        sum_sq_dev = (
            sum_sq_dev + np.asarray(part.sum_sq_dev) + difference**2 * (count * part.count / total)
        )
        mean = mean + difference * (part.count / total)
        count = total
    deviation = np.sqrt(sum_sq_dev / max(1, count))
    return Statistics(mean=tuple(mean.tolist()), deviation=tuple(deviation.tolist()))
