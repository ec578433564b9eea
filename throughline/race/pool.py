"""The open contestants of a race: opened in batches, raced in rounds, then ended.

Imports no TensorFlow.
"""

import math
import random
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Self

from throughline.measurement.other_processes import OtherProcesses
from throughline.race.contestant import OPENING_S, TURN_S, Contestant, ContestantLost
from throughline.race.jobs import Opened
from throughline.results.race import Cost, Round, Turn
from throughline.shared.limits import available_memory, usable_cores

MEMORY_SHARE = 0.5  # share of available memory for all open contestants

# Maps the name of a contestant to its job and the arguments of each of its processes.
Jobs = Callable[[str], tuple[str, Sequence[tuple[Any, ...]]]]


class Pool:
    """Open contestants by name; `jobs` gives the job of each, and their logs are in `folder`.

    Attributes:
      opened: The first answers of the contestants that have opened.
      costs: The costs of their trainings besides steady epochs.
      lost: Why contestants were lost, by name.
    """

    def __init__(self, jobs: Jobs, folder: Path) -> None:
        self._jobs, self._folder = jobs, folder
        self._room = MEMORY_SHARE * available_memory()
        self._open: dict[str, Contestant] = {}
        self._last = ""  # the contestant that had the last turn
        self.opened: dict[str, Opened] = {}
        self.costs: dict[str, Cost] = {}
        self.lost: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for contestant in self._open.values():  # all at once, even if the loop below is interrupted
            contestant.kill()
        for name in list(self._open):
            self.end(name)

    @property
    def names(self) -> list[str]:
        return list(self._open)

    def open(self, names: Sequence[str], *, until: float = math.inf) -> None:
        """Open the contestants that are neither open nor out, and freeze them.

        As many open at a time as there are cores. After `until`, a time of the monotonic clock,
        only the first batch opens, and only its first contestant may fill a cache; others that
        have one are ended. A contestant that fails is lost.
        """
        waiting = [name for name in names if name not in self._open and not self.is_out(name)]
        cores = usable_cores()
        for start in range(0, len(waiting), cores):
            if start and time.monotonic() > until:
                return
            batch = waiting[start : start + cores]
            for name in batch:
                self.start(name)
            ready = {name: self.wait_for(name) for name in batch}
            for number, (name, opened) in enumerate(ready.items()):
                if opened and opened.has_cache and start + number and time.monotonic() > until:
                    self.end(name)
                elif opened:  # caches are filled one after another
                    self.admit(name, opened, until)

    def is_out(self, name: str) -> bool:
        return name in self.lost

    def has_room(self, count: int) -> bool:
        """Return whether `count` more contestants as large as the largest open one would fit."""
        held = [contestant.memory_bytes() for contestant in self._open.values()]
        return sum(held) + count * max(held, default=0) <= self._room

    def admit(self, name: str, opened: Opened, until: float) -> None:
        """Let an open contestant fill its cache, or load its data, and note how long that takes."""
        try:
            seconds = max(self.ask(name, opened.order, timeout_s=OPENING_S)) if opened.order else 0
        except ContestantLost as lost:
            self.lose(name, lost)
            return
        self.opened[name] = opened
        self.costs[name] = opened.cost(seconds)

    def lose(self, name: str, lost: ContestantLost) -> None:
        self.lost[name] = str(lost)
        self.end(name)

    def watch(self, name: str) -> None:
        """Hook for subclasses, called after a round for each that had a turn: check its memory."""

    def end(self, name: str) -> None:
        if name in self._open:
            self._open.pop(name).close()

    def ask(self, name: str, order: str, *, timeout_s: float) -> list[Any]:
        return self._open[name].ask(order, timeout_s=timeout_s)

    def memory_bytes(self, name: str) -> int:
        return self._open[name].memory_bytes()

    def race(
        self,
        names: Sequence[str],
        phase: str,
        *,
        pulling: Collection[str] = (),
        turn_s: float = TURN_S,
    ) -> Round:
        """Give open contestants a turn each, in random order; no training for `pulling`.

        None has two turns in a row, which would start with what its last turn left in CPU caches.
        """
        order = [name for name in names if name in self._open]
        random.shuffle(order)
        if order[:1] == [self._last]:
            order.append(order.pop(0))
        turns: dict[str, Turn] = {}
        with OtherProcesses() as others:
            for name in order:
                self._last = name
                kind = "pull" if name in pulling else "train"
                try:
                    turns[name] = self._open[name].take_turn(kind, turn_s=turn_s)
                except ContestantLost as lost:
                    self.lose(name, lost)
        turns = {name: turns[name] for name in names if name in turns}
        for name in turns:
            self.watch(name)
        return Round(phase=phase, turns=turns, others_pct=others.missed_pct, busiest=others.busiest)

    def start(self, name: str) -> None:
        job, arguments = self._jobs(name)
        file = name.replace(" ", "-").replace("/", "-")
        self._open[name] = Contestant(job, arguments, log=self._folder / f"{file}.log")

    def wait_for(self, name: str) -> Opened | None:
        """Wait until a contestant is open, freeze it, and return its answer; None if it is lost."""
        contestant = self._open[name]
        try:
            opened: Opened = contestant.wait_until_open()
        except ContestantLost as lost:
            self.lose(name, lost)
            return None
        contestant.stop()
        return opened
