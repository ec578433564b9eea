"""A race as numbers: what each contestant's training would take by each of its rounds, ratios of
two by the rounds that both took part in, and who leaves. Pure.

A round is one turn of every contestant within seconds, so that what slows the machine down slows
all of them. Ratios are paired by rounds, with bootstrap intervals of their median
(`reporting/ranking.py`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from throughline.reporting.ranking import bootstrap_interval

DISTURBED_PCT = 10.0  # of all cores, that others took in a round
MIN_ROUNDS = 3  # from which on an interval says something


@dataclass(frozen=True, kw_only=True)
class Round:
    """One turn of each contestant: examples per second by name, and what others took of the cores
    meanwhile.
    """

    heat: str
    rates: Mapping[str, float]
    others_pct: float
    busiest: str

    @property
    def disturbed(self) -> bool:
        """Whether other programs took so much that the rates say little."""
        return self.others_pct > DISTURBED_PCT


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a training takes besides its steady epochs: `prepare_s` before it, and a first epoch of
    at least `fill_s`, in which a cache is filled.
    """

    prepare_s: float = 0.0
    fill_s: float = 0.0

    def total_s(self, rate: float, *, examples: int, epochs: int) -> float:
        """Preparation, first epoch and remaining epochs at a steady `rate` [examples/s]."""
        epoch_s = examples / rate
        return self.prepare_s + max(epoch_s, self.fill_s) + (epochs - 1) * epoch_s


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """How many times as long one training takes as another: the median over the rounds that both
    took part in, and its interval.
    """

    median: float
    low: float
    high: float
    rounds: int

    @property
    def faster(self) -> bool:
        """Whether the first certainly takes less time."""
        return self.rounds >= MIN_ROUNDS and self.high < 1

    @property
    def slower(self) -> bool:
        """Whether the first certainly takes more time."""
        return self.rounds >= MIN_ROUNDS and self.low > 1


@dataclass(frozen=True, kw_only=True)
class Race:
    """All rounds of a search, and what each contestant's training costs besides; of one that was
    not raced nothing is known.
    """

    rounds: Sequence[Round]
    costs: Mapping[str, Cost]
    examples: int
    epochs: int

    @property
    def names(self) -> list[str]:
        """Those that have taken part, in the order of their first turns."""
        return list(dict.fromkeys(name for each in self.rounds for name in each.rates))

    def rates(self, name: str) -> list[float]:
        """Examples per second in each of its rounds."""
        return [each.rates[name] for each in self.rounds if name in each.rates]

    def rate(self, name: str) -> float:
        """Examples per second: median over its rounds."""
        return statistics.median(self.rates(name))

    def seconds(self, name: str, *, epochs: int | None = None) -> float:
        """What its training takes."""
        return self.total_s(name, self.rate(name), epochs=epochs)

    def ratio(self, one: str, other: str) -> Ratio:
        """How many times as long the training of one takes as that of another."""
        ratios = self.ratios(one, other)
        if not ratios:
            return Ratio(median=math.nan, low=0.0, high=math.inf, rounds=0)
        low, high = bootstrap_interval(ratios)
        return Ratio(median=statistics.median(ratios), low=low, high=high, rounds=len(ratios))

    def ratios(self, one: str, other: str, *, epochs: int | None = None) -> list[float]:
        """The same by each round that both took part in; without `epochs`, of all of them."""
        return [
            self.total_s(one, each.rates[one], epochs=epochs)
            / self.total_s(other, each.rates[other], epochs=epochs)
            for each in self.rounds
            if one in each.rates and other in each.rates
        ]

    def fastest(self, names: Collection[str]) -> str:
        """The one whose training takes least; pairs decide, where all have met the first of
        them.
        """
        first, *others = names
        against = {name: self.ratio(name, first) for name in others}
        if all(each.rounds for each in against.values()):
            medians = {first: 1.0, **{name: each.median for name, each in against.items()}}
            return min(medians, key=lambda name: medians[name])
        return min(names, key=self.seconds)

    def survivors(self, names: Sequence[str], *, most: int) -> list[str]:
        """Who goes on, in given order: those that the fastest does not certainly beat and, of
        them, at most so many of the fastest (halving).
        """
        if not names:
            return []
        leader = self.fastest(names)
        against = {name: self.ratio(name, leader) for name in names}
        rivals = [
            name
            for name in names
            if name == leader or (against[name].rounds and not against[name].slower)
        ]
        best = sorted(rivals, key=lambda name: (name != leader, against[name].median))[:most]
        return [name for name in names if name in best]

    def disturbed_by(self) -> str | None:
        """What makes the race undecided, where other programs took over a tenth of the cores in
        most rounds.
        """
        disturbed = [each for each in self.rounds if each.disturbed]
        if 2 * len(disturbed) <= len(self.rounds):
            return None
        share = statistics.median(each.others_pct for each in disturbed)
        who = statistics.mode(each.busiest for each in disturbed)
        return (
            f"{who} took {share:.0f} % of the cores in {len(disturbed)} of {len(self.rounds)}"
            " rounds"
        )

    def total_s(self, name: str, rate: float, *, epochs: int | None = None) -> float:
        """What its training takes at this rate [examples/s]; without `epochs`, all of them."""
        return self.costs.get(name, Cost()).total_s(
            rate, examples=self.examples, epochs=epochs or self.epochs
        )
