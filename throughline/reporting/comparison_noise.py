"""What the noise of a comparison explains: how far apart two configurations must be measured before
they differ, when the best of many is chosen and all are compared with it and with the baseline.

Intervals that each hold in 95 of 100 cases do not hold together: of seven equal configurations some
pair differs "beyond the noise" in 40 of 100 comparisons. Here the largest difference that chance
makes anywhere in the comparison is simulated with as many rounds and as much spread as each
configuration has had, and only what exceeds that in 95 of 100 is a difference (the parametric
bootstrap for simultaneous intervals of unequal variances: Krishnamoorthy and Lu, 2007).
`python -m benchmarks.ranking --simulate` shows how often it is wrong, and what it still finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

SIMULATED, COVERAGE_PCT = 4000, 95
_LEAST_SPREAD = 1e-9  # of rates that are all the same


def spread_of_center(rates: Sequence[float]) -> float:
    """Standard error of the logarithm of a mean rate of some rounds; infinite for a single one."""
    logs = np.log(np.asarray(rates))
    if len(logs) < 2:  # noqa: PLR2004 - one round says nothing of the next
        return float("inf")
    return max(_LEAST_SPREAD, float(logs.std(ddof=1) / np.sqrt(len(logs))))


@lru_cache(maxsize=64)
def critical_value(rates: tuple[tuple[float, ...], ...]) -> float:
    """How many standard errors of a difference chance alone makes somewhere in a comparison of
    configurations with these rounds, the first of which is the baseline: exceeded in 5 of 100.
    """
    usable = [each for each in rates if len(each) > 1]
    if len(usable) < 2:  # noqa: PLR2004 - nothing to compare
        return float("inf")
    draw = np.random.default_rng(0)
    centers = np.empty((SIMULATED, len(usable)))
    errors = np.empty_like(centers)
    for place, each in enumerate(usable):
        spread = spread_of_center(each) * np.sqrt(len(each))
        rounds = draw.normal(scale=spread, size=(SIMULATED, len(each)))
        centers[:, place] = np.median(rounds, axis=1)
        errors[:, place] = rounds.std(axis=1, ddof=1) / np.sqrt(len(each))
    rows, top = np.arange(SIMULATED), centers.argmax(axis=1)
    with_top = np.abs(centers[rows, top][:, None] - centers) / np.hypot(
        errors[rows, top][:, None], errors
    )
    with_base = np.abs(centers - centers[:, :1]) / np.hypot(errors, errors[:, :1])
    largest = np.maximum(with_top.max(axis=1), with_base.max(axis=1))
    return float(np.percentile(largest, COVERAGE_PCT))
