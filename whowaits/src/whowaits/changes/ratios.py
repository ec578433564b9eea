"""Gains of changes: each block on a changed input is compared with the unchanged blocks around."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping

from whowaits.timing.blocks import statistics  # the script may have a module of this name
from whowaits.timing.rounds import median_interval

from .advice import THREADS, WORTH, Tried, find_first

MORE_ROUNDS = 3  # further rounds of the best change, so that its gain is not chance
# With fewer pairs than FEW the interval is wider: by FEW_FACTOR, or, if that is more, by SPREADS
# times the root mean square difference between successive blocks of the unchanged input.
FEW, FEW_FACTOR, SPREADS = 3, 1.15, 1.73


class Ratios:
    """Rates of changed inputs, each divided by the unchanged input's mean rate before and after."""

    def __init__(self, pace: float) -> None:
        self._paces = [pace]  # rates of the unchanged input
        self._factors: defaultdict[int, list[float]] = defaultdict(list)  # by number of the change

    def add(self, change: int, *, changed: float, unchanged: float) -> None:
        self._paces.append(unchanged)
        self._factors[change].append(changed / statistics.fmean(self._paces[-2:]))

    @property
    def tried(self) -> list[int]:
        """Numbers of the changes that were timed."""
        return list(self._factors)

    def interval(self, change: int) -> tuple[float, float, float]:
        """Return the median gain, and the ends of its interval."""
        factors = self._factors[change]
        low, high = median_interval(factors)
        if len(factors) < FEW:
            wider = max(FEW_FACTOR, math.exp(SPREADS * self._spread))
            low, high = low / wider, high * wider
        return statistics.median(factors), low, high

    def find_doubtful(self, known: Mapping[int, Tried]) -> int | None:
        """Return the number of a change that may lead by chance, or None.

        It has few pairs, and the highest gain of all or of the advisable, or would be named first.
        """
        named = find_first(list(known.values()))
        plain = [at for at in known if known[at].may_be_proven and known[at].meaning != THREADS]
        best = [max(group, key=lambda at: known[at].gain) for group in (plain, known) if group]
        best += [at for at, each in known.items() if each is named]
        few = (at for at in best if len(self._factors[at]) <= MORE_ROUNDS)
        return next((at for at in few if known[at].gain >= WORTH), None)

    @property
    def _spread(self) -> float:
        """Root mean square of log(pace / previous pace) of the unchanged input."""
        steps = [math.log(after / before) for before, after in zip(self._paces, self._paces[1:])]
        return math.sqrt(statistics.fmean(each * each for each in steps)) if steps else 0.0
