"""Ranks configurations: which is best, and which are as good within the noise.

Rates are compared by their paces relative to the contestant with most rounds. A ratio's interval
allows for choosing the best of several: all ratios' intervals hold together in 95 of 100 races.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from throughline.measurement.rounds import Race
from throughline.results.base import Estimate
from throughline.results.comparison import Row
from throughline.results.race import OWN, Raced, RaceResult
from throughline.results.train import SIGNIFICANT_STDERRS, standard_error
from whowaits.timing.verdict import UNDECIDED

BASELINE = "naive"
# Two configurations count as equally fast if the interval of their ratio contains 1, unless the
# interval, high end ÷ low end, is at least this wide and so says nothing.
WIDE = 1.3


@dataclass(frozen=True)
class Ranking:
    """Ranks the configurations of a race; those with contradictory figures have no place."""

    result: RaceResult

    @property
    def raced(self) -> Mapping[str, Raced]:
        return self.result.configurations

    @property
    def names(self) -> list[str]:
        """The configurations without contradictory figures, in the given order; if none, all."""
        sound = [name for name, raced in self.raced.items() if not raced.contradiction]
        return sound or list(self.raced)

    @property
    def baseline(self) -> str:
        """The configuration that others are compared with: `naive`, or else the first."""
        return BASELINE if BASELINE in self.raced else next(iter(self.raced))

    @cached_property
    def race(self) -> Race:
        return Race(rounds=[each for each in self.result.rounds if each.phase == OWN])

    def gain(self, one: str, other: str) -> Estimate:
        """Return the speed of `one` ÷ that of `other`, by common rounds, or else by their rates."""
        if one == other:
            return Estimate(value=1.0, low=1.0, high=1.0, rounds=len(self.race.rounds))
        count = len(self.raced)
        compared = max(1, count * (count - 1) // 2)
        gain = self.race.gain(one, other, compared=compared)
        if gain.rounds:
            return gain
        mine, yours = self.raced[one].training, self.raced[other].training
        return Estimate(
            value=mine.value / yours.value,
            low=mine.low / yours.high,
            high=mine.high / yours.low if yours.low else math.inf,
            rounds=0,
        )

    @cached_property
    def gains(self) -> Mapping[str, Estimate]:
        return {name: self.gain(name, self.baseline) for name in self.raced}

    @cached_property
    def winners(self) -> list[str]:
        """The configurations that are faster than the baseline beyond the noise."""
        return [name for name in self.names if self.gains[name].low > 1 and name != self.baseline]

    @cached_property
    def tied(self) -> list[str]:
        """The fastest, and all that it does not beat beyond the noise, but no beaten baseline."""
        beaten = self.baseline if self.winners else None
        top = max(self.names, key=lambda name: self.gains[name].value)
        return [
            name
            for name in self.names
            if name == top or (name != beaten and self.gain(top, name).low <= 1)
        ]

    @property
    def best(self) -> str:
        """The configuration to use: the winner with the lowest stall among the tied ones."""
        candidates = [name for name in self.tied if name in self.winners] or self.winners
        return min(candidates or self.tied, key=lambda name: self.raced[name].stall_pct)

    @cached_property
    def open(self) -> list[str]:
        """The configurations that may or may not be faster: a wide interval contains 1."""
        return [
            name
            for name in self.names
            if self.gains[name].low <= 1 <= self.gains[name].high
            and self.gains[name].high >= WIDE * self.gains[name].low
        ]

    @property
    def undecided(self) -> list[str]:
        raced = self.raced.items()
        return [name for name, one in raced if name in self.open or one.verdict == UNDECIDED]

    def break_even(self, name: str, *, examples: int, prepare_s: Mapping[str, float]) -> int | None:
        """Return the first epoch after which no more time was spent than with the baseline.

        None if there is none, it is epoch 1, or the configuration is not certainly faster.
        `prepare_s` [s] was spent before epoch 1.
        """
        if name not in self.winners:
            return None
        costs = {
            each: replace(raced.cost, prepare_s=raced.cost.prepare_s + prepare_s.get(each, 0.0))
            for each, raced in self.raced.items()
        }
        race = Race(rounds=self.race.rounds, costs=costs, examples=examples)
        epoch = race.break_even(name, self.baseline)
        return epoch if epoch is not None and epoch > 1 else None


def count_validation_trials(row: Row) -> int:
    """Return the number of independent trials behind a validation accuracy."""
    held_out = row.held_out
    return max(1, round(row.validation_examples * held_out.trials / max(1, held_out.examples)))


def accuracy_warning(rows: Sequence[Row]) -> str | None:
    """Return a warning about validation accuracies beyond chance of the median; None if none is."""
    scores = {row.pipeline: row.val_metric for row in rows if row.metric == "accuracy"}
    if len(scores) < 2:  # noqa: PLR2004 - one result is like itself
        return None
    middle, examples = statistics.median(scores.values()), rows[0].validation_examples
    allowed = SIGNIFICANT_STDERRS * stderr_of_difference(middle, count_validation_trials(rows[0]))
    far = [f"{name} {score:.4f}" for name, score in scores.items() if abs(score - middle) > allowed]
    if not far:
        return None
    return (
        f"validation accuracy differs by more than chance (± {allowed:.4f} around {middle:.4f},"
        f" {examples:,} held-out examples): {', '.join(far)}"
    )


def stderr_of_difference(share: float, examples: int) -> float:
    """Return the standard error of the difference of two models' shares: both have errors."""
    return math.sqrt(2) * standard_error(share, examples)
