"""Races of given rates, what they say, and contestants that are no processes."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from throughline.measurement.rounds import Race
from throughline.race.contestant import ContestantLost
from throughline.race.jobs import Entry, Opened
from throughline.results.base import Estimate
from throughline.results.race import OWN, Cost, Raced, RaceResult, Round, Turn

MODEL = "model alone of naive"


def rounds(rates, others=0.0, busiest="make", phase="final"):
    """Rounds of equally long lists of rates; None: not in that round."""
    length = max(map(len, rates.values()), default=0)
    return [
        Round(
            phase=phase,
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


def exactly(value: float) -> Estimate:
    """A value by nine rounds, and an interval."""
    return Estimate(value=value, low=0.98 * value, high=1.02 * value, rounds=9)


def raced(
    rate: float = 100.0, stall: float = 0.0, verdict: str = "compute-bound", **more: Any
) -> Raced:
    """A configuration that has raced; `more` are its other fields."""
    usual: dict[str, Any] = {
        "cause": "none", "fix": "none", "model": MODEL, "cost": Cost(), "first_batch_s": 0.1,
        "training": exactly(rate), "input": exactly(400.0), "model_alone": exactly(100.0),
        "stall_pct": stall, "stall_pct_low": max(0.0, stall - 2), "stall_pct_high": stall + 2,
    }  # fmt: skip
    return Raced(verdict=verdict, **{**usual, **more})


def race_result(
    configurations: dict[str, Raced], *, spread: dict[str, float] | None = None, **more: Any
) -> RaceResult:
    """A race of nine rounds in which each trained at its rate, up to `spread` (of a tenth of a
    percent) from turn to turn; `more` are other fields of the result.
    """

    def noise(name: str) -> np.ndarray:
        draw = np.random.default_rng(zlib.crc32(name.encode()))
        drawn = draw.normal(size=9)
        return np.exp((spread or {}).get(name, 0.001) * (drawn - drawn.mean()))

    rates = {name: one.training.value * noise(name) for name, one in configurations.items()}
    usual: dict[str, Any] = {
        "machine": {"gpus": []}, "processes": 1, "seconds": 9.0, "disturbed_by": "", "lost": {},
    }  # fmt: skip
    turns = tuple(rounds({name: each.tolist() for name, each in rates.items()}, phase=OWN))
    return RaceResult(rounds=turns, configurations=configurations, **{**usual, **more})


class Others:
    """What other programs take while something is measured: nothing, or a share of the cores."""

    def __init__(self, missed_pct: float = 0.0, busiest: str = "make") -> None:
        self.missed_pct, self.busiest = missed_pct, busiest

    def __enter__(self) -> Others:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Contestants:
    """Contestants that are no processes: each trains at the rate of its name, unless it is one of
    the `killed`. Those in `caches` fill one; all hold `held_bytes`.
    """

    def __init__(self, rate_of: Callable[[str], float]) -> None:
        self.rate_of, self.killed, self.caches = rate_of, set[str](), set[str]()
        self.held_bytes, self.present, self.turns = 2**20, list[str](), list[str]()

    def __call__(self, job: str, arguments: list[tuple[Entry]], *, log: Path) -> FakeContestant:
        return FakeContestant(self, arguments[0][0].name, processes=len(arguments))


class FakeContestant:
    """One of them, with the methods of `Contestant`."""

    def __init__(self, contestants: Contestants, name: str, *, processes: int = 1) -> None:
        self._all, self._name, self._processes = contestants, name, processes
        self._all.present.append(name)

    def close(self) -> None:
        self._all.present.remove(self._name)

    def kill(self) -> None:
        pass

    stop = kill

    def wait_until_open(self, timeout_s: float = 0.0) -> Opened:
        return Opened(has_cache=self._name in self._all.caches)

    def ask(self, order: str, *_: float, timeout_s: float = 0.0) -> list[float]:
        if self._name in self._all.killed:
            raise ContestantLost("was killed by SIGKILL, perhaps for lack of memory")
        return [1.0] * self._processes

    def take_turn(self, order: str = "train", *, turn_s: float = 1.0) -> Turn:
        self.ask(order)
        rate = self._all.rate_of(self._name) * (3.0 if order == "pull" else 1.0)
        return Turn(examples=rate * self._processes, seconds=1.0)

    def memory_bytes(self) -> int:
        return self._all.held_bytes
