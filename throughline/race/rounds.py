"""A race as numbers: what each contestant's training would take, ratios of two with intervals, and
who leaves. Pure.

A round is one turn of every contestant within seconds, so what slows the machine down slows all of
them. A rate is all examples by all seconds of the rounds that count, not a median over turns: a
turn in which an epoch begins, and its buffers fill, belongs to the pace of a training. Intervals
are Student's, from leaving out one round at a time (the jackknife: Quenouille 1956, Tukey 1958).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

DISTURBED_PCT = 10.0  # of all cores, that others took in a round
MIN_ROUNDS = 3  # from which on an interval says something
COVERAGE = 0.95


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A moment of training: examples, and the seconds from waking its process to freezing it; of a
    step the work on all cores [ms], and how long the call of the first one held the thread that
    trains [ms].
    """

    examples: float
    seconds: float
    core_ms: float = 0.0
    held_ms: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Round:
    """One turn of each contestant, by name, and what others took of the cores meanwhile."""

    heat: str
    turns: Mapping[str, Turn]
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
class Estimate:
    """A value by some rounds, and the interval that holds it in 95 of 100 races."""

    value: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, measure: Callable[[Sequence[Round]], float], rounds: Sequence[Round]) -> Estimate:
        """What `measure`, a positive number, says of the rounds."""
        count = len(rounds)
        if not count:
            return cls(value=math.nan, low=0.0, high=math.inf, rounds=0)
        value, margin = measure(rounds), math.inf
        if count > 1:
            without = [
                math.log(measure([*rounds[:left_out], *rounds[left_out + 1 :]]))
                for left_out in range(count)
            ]
            error = math.sqrt((count - 1) * statistics.pvariance(without))
            margin = float(stdtrit(count - 1, (1 + COVERAGE) / 2)) * error
        return cls(
            value=value, low=value * math.exp(-margin), high=value * math.exp(margin), rounds=count
        )

    @property
    def below_one(self) -> bool:
        """Whether it is a ratio that is certainly below 1."""
        return self.rounds >= MIN_ROUNDS and self.high < 1

    @property
    def above_one(self) -> bool:
        """Whether it is a ratio that is certainly above 1."""
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
        return list(dict.fromkeys(name for each in self.rounds for name in each.turns))

    def rate(self, name: str) -> float:
        """Examples per second over all of its rounds."""
        return _rate(name, self._rounds_of(name))

    def seconds(self, name: str) -> Estimate:
        """What its training takes [s]."""
        return Estimate.of(
            lambda rounds: self._total_s(name, rounds, self.epochs), self._rounds_of(name)
        )

    def ratio(self, one: str, other: str) -> Estimate:
        """How many times as long the training of one takes as that of another, by the rounds that
        both took part in.
        """
        return Estimate.of(
            lambda rounds: self._divide(one, other, rounds, self.epochs),
            self._rounds_of(one, other),
        )

    def ratio_after(self, epochs: int, one: str, other: str) -> float:
        """The same of trainings of so many epochs, which have met, without an interval."""
        return self._divide(one, other, self._rounds_of(one, other), epochs)

    def fastest(self, names: Collection[str]) -> str:
        """The one whose training takes least; pairs decide, where all have met the first of
        them.
        """
        first, *others = names
        against = {name: self.ratio(name, first) for name in others}
        if all(each.rounds for each in against.values()):
            times = {first: 1.0, **{name: each.value for name, each in against.items()}}
            return min(times, key=lambda name: times[name])
        return min(names, key=lambda name: self.seconds(name).value)

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
            if name == leader or (against[name].rounds and not against[name].above_one)
        ]
        best = sorted(rivals, key=lambda name: (name != leader, against[name].value))[:most]
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

    def _rounds_of(self, *names: str) -> list[Round]:
        return [each for each in self.rounds if all(name in each.turns for name in names)]

    def _divide(self, one: str, other: str, rounds: Sequence[Round], epochs: int) -> float:
        return self._total_s(one, rounds, epochs) / self._total_s(other, rounds, epochs)

    def _total_s(self, name: str, rounds: Sequence[Round], epochs: int) -> float:
        cost, rate = self.costs.get(name, Cost()), _rate(name, rounds)
        return cost.total_s(rate, examples=self.examples, epochs=epochs)


def _rate(name: str, rounds: Sequence[Round]) -> float:
    turns = [each.turns[name] for each in rounds]
    return sum(turn.examples for turn in turns) / sum(turn.seconds for turn in turns)
