"""Races of given rates, and contestants that are no processes, for the tests of a search."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from throughline.race.contestant import ContestantLost
from throughline.race.jobs import Entry, Opened
from throughline.race.rounds import Race, Round, Turn


def rounds(rates, others=0.0, busiest="make"):
    """Rounds of equally long lists of rates; None: not in that round."""
    length = max(map(len, rates.values()))
    return [
        Round(
            heat="final",
            turns={
                name: Turn(examples=values[number] / 2, seconds=0.5)
                for name, values in rates.items()
                if number < len(values) and values[number] is not None
            },
            others_pct=others,
            busiest=busiest,
        )
        for number in range(length)
    ]


def race(rates, *, costs=None, epochs=10, **options):
    return Race(rounds=rounds(rates, **options), costs=costs or {}, examples=1000, epochs=epochs)


class Others:
    """What other programs take while something is measured: nothing, or a share of the cores."""

    idle_pct = 0.0

    def __init__(self, cpu_pct: float = 0.0, busiest: str = "make") -> None:
        self.cpu_pct, self.busiest = cpu_pct, busiest

    def __enter__(self) -> Others:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Contestants:
    """Contestants that are no processes: each trains at the rate of its name, unless it is one of
    the `killed`. Those in `caches` fill one.
    """

    def __init__(self, rate_of: Callable[[str], float]) -> None:
        self.rate_of, self.killed, self.caches = rate_of, set[str](), set[str]()

    def __call__(self, job: str, arguments: tuple[Entry, ...], *, log: Path) -> FakeContestant:
        return FakeContestant(self, arguments[0].name)


class FakeContestant:
    """One of them, with the methods of `Contestant`."""

    def __init__(self, contestants: Contestants, name: str) -> None:
        self._all, self._name = contestants, name

    def __enter__(self) -> FakeContestant:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    kill = stop = __exit__

    def wait_until_open(self) -> Opened:
        return Opened(has_cache=self._name in self._all.caches)

    def ask(self, order: str, timeout_s: float = 0.0) -> float:
        if self._name in self._all.killed:
            raise ContestantLost("was killed by SIGKILL, perhaps for its memory")
        return 1.0

    def take_turn(self) -> Turn:
        self.ask("turn")
        return Turn(examples=self._all.rate_of(self._name), seconds=1.0, core_ms=1.0, held_ms=1.0)

    def memory_bytes(self) -> int:
        return 2**20
