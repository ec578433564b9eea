"""Which configuration is best, which are as good within the noise, and after how many epochs a
snapshot or a cache has paid.

Configurations were measured minutes apart, on a machine whose speed drifts and on which other
programs come and go. So they are compared by pairs:
each round of a profile timed training and the reference model alone, the same work for every
configuration, within a second. `relative_rates` are those ratios; one reference rate for all turns
them into examples per second. A ratio of two configurations comes with an interval that allows for
the best having been chosen among all (`comparison_noise.py`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Protocol, TypeVar

import numpy as np

from throughline.reporting.comparison_noise import COVERAGE_PCT, critical_value, spread_of_center
from throughline.results.comparison import MeasuredRow, Row
from throughline.results.train import SIGNIFICANT_STDERRS, standard_error

BASELINE = "naive"
RESAMPLES = 4000


class Ranked(Protocol):
    """The values that decide the rank of a configuration."""

    @property
    def pipeline(self) -> str:
        """Its name."""
        ...

    @property
    def relative_rates(self) -> Sequence[float]:
        """Training's speed in each round, as a fraction of the reference model's."""
        ...

    @property
    def rate_doubt(self) -> float:
        """By how much its speed may be another besides noise, as a logarithm: where the steady
        state is undecided, which both sides of the measurement only enclose.
        """
        ...

    @property
    def reference_examples_per_s(self) -> float:
        """The reference model's speed in its rounds."""
        ...

    @property
    def stall_pct(self) -> float:
        """Its stall, which decides between equals."""
        ...


SomeRow = TypeVar("SomeRow", bound=Ranked)


def find_baseline(rows: Sequence[SomeRow]) -> SomeRow:
    """The configuration that the others are compared with: naive; without it, the first."""
    return next((row for row in rows if row.pipeline == BASELINE), rows[0])


def relative_rate(row: Ranked) -> float:
    """Training's speed as a fraction of the reference model's, measured in the same moments: median
    over the rounds.
    """
    return statistics.median(row.relative_rates)


def reference_rate(rows: Sequence[Ranked]) -> float:
    """The one rate of the reference model by which relative rates become examples per second."""
    return statistics.median(row.reference_examples_per_s for row in rows)


def bootstrap_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the median of a few values, by resampling them (the bootstrap: Efron and
    Tibshirani, 1993).
    """
    given = np.asarray(values)
    drawn = np.random.default_rng(0).integers(0, len(given), (RESAMPLES, len(given)))
    tail = (100 - COVERAGE_PCT) / 2
    low, high = np.percentile(np.median(given[drawn], axis=1), (tail, 100 - tail))
    return float(low), float(high)


def ratio_interval(
    row: Ranked, other: Ranked, *, among: Sequence[Ranked], doubt: bool = True
) -> tuple[float, float]:
    """The interval of how many times as fast one configuration trains as another, of a comparison
    of those `among`: in 95 of 100 comparisons all such intervals with the fastest and with the
    baseline hold. Without `doubt` it is that of noise alone.
    """
    base = find_baseline(among)
    ordered = [base, *(each for each in among if each is not base)]
    critical = critical_value(tuple(tuple(each.relative_rates) for each in ordered))
    margin = critical * math.hypot(
        spread_of_center(row.relative_rates), spread_of_center(other.relative_rates)
    )
    margin += row.rate_doubt + other.rate_doubt if doubt else 0.0
    ratio = relative_rate(row) / relative_rate(other)
    if not math.isfinite(margin):
        return 0.0, math.inf
    return ratio * math.exp(-margin), ratio * math.exp(margin)


def find_best(rows: Sequence[SomeRow]) -> SomeRow:
    """The configuration to use: of those that are tied for the highest training throughput, the one
    with the lowest stall. One that certainly beats the baseline comes before others, whose
    measurement may say little.
    """
    names, winners = find_tied(rows), find_winners(rows)
    tied = [row for row in rows if row.pipeline in names]
    candidates = [row for row in tied if row in winners] or winners or tied
    return min(candidates, key=lambda row: row.stall_pct)


def find_winners(rows: Sequence[SomeRow]) -> list[SomeRow]:
    """The configurations that train faster than the baseline beyond the noise."""
    base = find_baseline(rows)
    return [row for row in rows if row is not base and ratio_interval(row, base, among=rows)[0] > 1]


def find_tied(rows: Sequence[Ranked]) -> list[str]:
    """The fastest configuration and all that it does not beat beyond the noise, in given order.

    Beyond the noise: the interval of their ratio does not hold 1. The baseline is not among them
    where another one beats it.
    """
    top, beaten = max(rows, key=relative_rate), find_baseline(rows) if find_winners(rows) else None
    return [
        row.pipeline
        for row in rows
        if row is top
        or (row is not beaten and ratio_interval(top, row, among=rows, doubt=False)[0] <= 1)
    ]


def drift_pct(rows: Sequence[Ranked]) -> float:
    """How much the machine's own speed varied during the comparison: the spread of the reference
    model alone.
    """
    rates = [row.reference_examples_per_s for row in rows]
    return 100 * (max(rates) - min(rates)) / statistics.median(rates)


def break_even_epoch(row: Row, base: Row, *, setup_s: float) -> int | None:
    """The epoch from which on all that was spent is less than with the baseline; None: never, or
    there is nothing to pay back.

    `setup_s` is what was spent before the first epoch. A cache is paid in the first epoch, which is
    as slow as reading it cold.
    """
    epoch, other = (item.examples / item.steady_examples_per_s for item in (row, base))
    spent = _spent_s(row, setup_s) - _spent_s(base, setup_s)
    return math.ceil(spent / (other - epoch)) if spent > 0 and other > epoch else None


def _spent_s(row: Row, setup_s: float) -> float:
    """What a configuration takes once, beyond its epochs."""
    if row.gathers:
        return setup_s
    cold, warm = row.examples / row.cold_examples_per_s, row.examples / row.input_examples_per_s
    return max(0.0, cold - warm) if row.caches else 0.0


def count_validation_trials(row: MeasuredRow) -> int:
    """Of how many independent trials a validation accuracy is a share: as many for each example as
    of those that are held out.
    """
    held_out = row.held_out
    return max(1, round(row.validation_examples * held_out.trials / max(1, held_out.examples)))


def accuracy_warning(rows: Sequence[MeasuredRow]) -> str | None:
    """Say so where a configuration's validation accuracy is further from the others' median than
    chance explains.

    """
    scores = {row.pipeline: row.val_metric for row in rows if row.metric == "accuracy"}
    if len(scores) < 2:  # noqa: PLR2004 - one result is like itself
        return None
    middle, examples = statistics.median(scores.values()), rows[0].validation_examples
    allowed = SIGNIFICANT_STDERRS * stderr_of_difference(middle, count_validation_trials(rows[0]))
    far = [f"{name} {score:.4f}" for name, score in scores.items() if abs(score - middle) > allowed]
    return (
        f"validation accuracy differs by more than chance (± {allowed:.4f} around {middle:.4f},"
        f" {examples:,} held-out examples): {', '.join(far)}"
        if far
        else None
    )


def stderr_of_difference(share: float, examples: int) -> float:
    """Standard error of the difference of two shares counted on held-out examples: of two models,
    since those of one dataset also differ by order and augmentation.
    """
    return math.sqrt(2) * standard_error(share, examples)
