"""The arithmetic of a race: training times, ratios with intervals, and who leaves. Pure.

A round is one turn of every contestant within seconds, so a slow machine slows all of them. A rate
is the sum of examples over the sum of seconds, not a median over turns: a turn in which an epoch
begins, and buffers fill, belongs to the pace of a training. A contestant that missed rounds counts
by its pace relative to the one with most rounds. Intervals are Student's, from leaving out one
round at a time (the jackknife: Quenouille 1956, Tukey 1958). Intervals of several comparisons that
must hold together share their error probability (Bonferroni).
"""

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from scipy.special import stdtrit

from throughline.results.base import Estimate
from throughline.results.race import Cost, Round

# Share of intervals that miss the true value after a fixed number of rounds. In races that end as
# soon as all is decided, 5 % miss it (`python -m benchmarks.ranking --simulate`).
WRONG = 0.035
WIDEST = 700.0  # half width of a logarithm's interval whose ends are still numbers


def estimate(
    measure: Callable[[Sequence[Round]], float],
    rounds: Sequence[Round],
    *,
    fewest: int | None = None,
    compared: int = 1,
) -> Estimate:
    """Estimate a positive number that `measure` computes from rounds, with an interval.

    Every part of the number rests on `fewest` or more rounds, by default on all. The interval is
    one of `compared` intervals that must hold together.
    """
    count = len(rounds) if fewest is None else fewest
    if not count:
        return Estimate(value=math.nan, low=0.0, high=math.inf, rounds=0)
    value, margin = measure(rounds), math.inf
    if count > 1:
        without = [
            math.log(measure([*rounds[:left_out], *rounds[left_out + 1 :]]))
            for left_out in range(len(rounds))
        ]
        error = math.sqrt((len(rounds) - 1) * statistics.pvariance(without))
        margin = min(float(stdtrit(count - 1, 1 - WRONG / compared / 2)) * error, WIDEST)
    return Estimate(
        value=value, low=value * math.exp(-margin), high=value * math.exp(margin), rounds=count
    )


@dataclass(frozen=True, kw_only=True)
class Race:
    """The rounds of a race, and the costs of trainings of `epochs` epochs besides steady epochs."""

    rounds: Sequence[Round]
    costs: Mapping[str, Cost] = field(default_factory=dict)
    examples: int = 1
    epochs: int = 1

    @property
    def names(self) -> list[str]:
        """The contestants, in the order of their first turns."""
        return list(dict.fromkeys(name for each in self.rounds for name in each.turns))

    @cached_property
    def reference(self) -> str:
        """The first of the contestants with most rounds."""
        return max(self.names, key=lambda name: len(self._rounds_of(name)))

    def speed(self, name: str) -> Estimate:
        """Return a contestant's examples per second, scaled to all rounds of the reference."""
        return self._at_one_pace(name, lambda rate: rate)

    def gain(self, one: str, other: str, *, compared: int = 1) -> Estimate:
        """Return the speed of contestant `one` ÷ that of `other`."""
        return self._estimate(
            lambda rounds: self._relative(one, rounds) / self._relative(other, rounds),
            one,
            other,
            compared,
        )

    def seconds(self, name: str) -> Estimate:
        """Return how long a training takes [s], scaled to all rounds of the reference."""
        return self._at_one_pace(name, lambda rate: self._total_s(name, rate))

    def ratio(self, one: str, other: str, *, compared: int = 1) -> Estimate:
        """Return the training time of `one` ÷ that of `other`, from rounds with both of them."""
        return estimate(
            lambda rounds: (
                self._total_s(one, _rate(one, rounds)) / self._total_s(other, _rate(other, rounds))
            ),
            self._rounds_of(one, other),
            compared=compared,
        )

    def break_even(self, one: str, other: str) -> int | None:
        """Return the first epoch after which `one` took no more time than `other`, or None."""
        rounds = self._rounds_of(one, other)
        if not rounds:
            return None
        ours, theirs = (
            [self._total_s(name, _rate(name, rounds), epochs) for epochs in (1, 2)]
            for name in (one, other)
        )
        ahead = ours[0] - theirs[0]
        each = (theirs[1] - theirs[0]) - (ours[1] - ours[0])
        if ahead <= 0:
            return 1
        return 1 + math.ceil(ahead / each) if each > 0 else None

    def fastest(self, names: Collection[str]) -> str:
        """Return the contestant whose training is shortest, compared by shared rounds if any."""
        leader, *others = names
        for name in others:
            times = self.ratio(name, leader).value
            if math.isnan(times):  # no shared round
                times = self.seconds(name).value / self.seconds(leader).value
            leader = name if times < 1 else leader
        return leader

    def survivors(self, names: Sequence[str], *, most: int, compared: int = 1) -> list[str]:
        """Return up to `most` of `names` that raced the fastest and are not certainly slower."""
        if not names:
            return []
        leader = self.fastest(names)
        against = {name: self.ratio(name, leader, compared=compared) for name in names}
        rivals = [name for name in names if against[name].rounds and not against[name].above_one]
        best = sorted(rivals, key=lambda name: (name != leader, against[name].value))[:most]
        return [name for name in names if name in best]

    def drift(self, name: str) -> float:
        """Return the factor by which a rate varied, but for the outer tenths of the rounds."""
        rates = sorted(_rate(name, [each]) for each in self._rounds_of(name))
        spare = len(rates) // 10
        return math.sqrt(rates[-1 - spare] / rates[spare]) if rates else 1.0

    def disturbed_by(self) -> str | None:
        """Say who disturbed the race, if others used over a tenth of the cores in most rounds."""
        disturbed = [each for each in self.rounds if each.disturbed]
        if 2 * len(disturbed) <= len(self.rounds):
            return None
        share = statistics.median(each.others_pct for each in disturbed)
        who = statistics.mode(each.busiest for each in disturbed)
        often = f"{len(disturbed)} of {len(self.rounds)} rounds"
        return f"{who} used {share:.0f} % of the cores in {often}"

    def _rounds_of(self, *names: str) -> list[Round]:
        return _with(self.rounds, *names)

    def _at_one_pace(self, name: str, measure: Callable[[float], float]) -> Estimate:
        """Estimate `measure` of a rate, scaled to all rounds of the reference if they met."""
        reference = self.reference
        if not self._rounds_of(name, reference):
            return estimate(lambda rounds: measure(_rate(name, rounds)), self._rounds_of(name))

        def of(rounds: Sequence[Round]) -> float:
            return measure(
                self._relative(name, rounds) * _rate(reference, _with(rounds, reference))
            )

        return self._estimate(of, name, reference)

    def _estimate(
        self, measure: Callable[[Sequence[Round]], float], one: str, other: str, compared: int = 1
    ) -> Estimate:
        """Estimate `measure` from rounds in which the reference raced against `one` or `other`."""
        met = self._rounds_of(self.reference) if self.names else []
        fewest = min(len(_with(met, one)), len(_with(met, other)))
        rounds = [each for each in met if one in each.turns or other in each.turns]
        return estimate(measure, rounds, fewest=fewest, compared=compared)

    def _relative(self, name: str, rounds: Sequence[Round]) -> float:
        shared = _with(rounds, name, self.reference)
        return _rate(name, shared) / _rate(self.reference, shared)

    def _total_s(self, name: str, rate: float, epochs: int | None = None) -> float:
        cost = self.costs.get(name, Cost())
        return cost.total_s(rate, examples=self.examples, epochs=epochs or self.epochs)


def _with(rounds: Sequence[Round], *names: str) -> list[Round]:
    return [each for each in rounds if all(name in each.turns for name in names)]


def _rate(name: str, rounds: Sequence[Round]) -> float:
    turns = [each.turns[name] for each in rounds]
    return sum(turn.examples for turn in turns) / sum(turn.seconds for turn in turns)
