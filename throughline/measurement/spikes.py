"""Finds the steps of a training whose loss stands out from that of the steps around them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.ndimage import median_filter

AROUND = 31  # steps whose median is the usual loss, and the usual deviation from it
APART = 3  # steps within this distance are one spike


@dataclass(frozen=True, kw_only=True)
class Spike:
    """A step, counted from 0 over all epochs, its loss, and the usual loss around it."""

    step: int
    loss: float
    usual: float


def find_usual(losses: np.ndarray) -> np.ndarray:
    """Return the median loss around each step, (steps,); infinite or NaN: as the overall median."""
    finite = np.isfinite(losses)
    middle = np.median(losses[finite]) if finite.any() else np.nan
    return median_filter(np.where(finite, losses, middle), AROUND, mode="nearest")


def find_spikes(losses: Sequence[float] | np.ndarray, *, most: int = 5) -> list[Spike]:
    """Return the steps with the highest losses for their place, from `losses` (steps,) float32.

    Steps are ranked by the distance of their loss above the median around them. Its unit is the
    median deviation there, or the mean of these over the training if larger, so that nothing stands
    out from losses of nearly 0. A loss that is not finite ranks highest; of several, the first.
    """
    values = np.asarray(losses, np.float64)
    finite = np.isfinite(values)
    if not finite.any():
        return []
    usual = find_usual(values)
    above = np.where(finite, values - usual, np.inf)
    deviation = find_usual(np.abs(values - usual))
    height = above / np.maximum(deviation, deviation.mean() + np.finfo(np.float32).eps)
    found: list[int] = []
    for step in np.argsort(-height, kind="stable").tolist():
        if len(found) == most or height[step] <= 0:
            break
        if all(abs(step - other) > APART for other in found):
            found.append(step)
    return [Spike(step=step, loss=float(values[step]), usual=float(usual[step])) for step in found]
