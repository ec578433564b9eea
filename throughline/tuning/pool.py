"""The contestants of a search that are open: opened as far as memory allows, raced round by round,
ended when they are out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from throughline.measurement.other_processes import OtherProcesses
from throughline.race.contestant import OPENING_S, Contestant, ContestantLost
from throughline.race.jobs import Opened
from throughline.race.rounds import Cost, Round, Turn
from throughline.shared.limits import available_memory, usable_cores
from throughline.tuning.journal import Entrance, Journal
from throughline.tuning.needs import Need
from throughline.tuning.space import CEILING

FILL = "fill"  # the heat in which caches are filled
LEAST_FILL_S = 60.0  # that filling a cache may take, also when the time is up
FILL_SHARE = 0.5  # of the whole time, within which it would have to be full
MEMORY_SHARE = 0.5  # of what is available, that all open contestants may take


class Pool:
    """Open contestants by their names, as a context manager; what happens to them is journaled.

    `jobs` gives the job of a name with its arguments, `needs` what its training is expected to
    need: of memory `besides_steps_bytes` more than the contestant holds, and all of what is kept
    where that holds a `sampled_share`. One whose training takes more than `ram_bytes` is ended; one
    of one's `own` may be the fastest, however long its cache takes.
    """

    def __init__(  # noqa: PLR0913 - what a search knows of its contestants
        self,
        jobs: Callable[[str], tuple[str, Any]],
        needs: Mapping[str, Need],
        journal: Journal,
        *,
        ram_bytes: float,
        besides_steps_bytes: float,
        sampled_share: float,
        own: Collection[str] = (),
    ) -> None:
        self._jobs, self._needs, self._journal = jobs, needs, journal
        self._ram_bytes, self._besides_steps_bytes = ram_bytes, besides_steps_bytes
        self._sampled_share, self._own = sampled_share, own
        self._room = MEMORY_SHARE * available_memory()
        self._open: dict[str, tuple[Contestant, ExitStack]] = {}
        self._turns: dict[str, Turn] = {}
        self._opened_at = time.monotonic()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *error: object) -> None:
        for contestant, _ in self._open.values():  # at once, whatever interrupts this
            contestant.kill()
        for name in list(self._open):
            self.end(name)

    @property
    def names(self) -> list[str]:
        """Those that are open."""
        return list(self._open)

    def last_turn(self, name: str) -> Turn | None:
        """The last turn that it has raced; None before its first."""
        return self._turns.get(name)

    def groups(self, names: Sequence[str], *, together_with: Sequence[str]) -> Iterator[list[str]]:
        """Names in groups that can be open at once `together_with` others, at least one each."""
        taken = sum(self._bytes(name) for name in together_with)
        group: list[str] = []
        for name in names:
            held = taken + sum(map(self._bytes, [*group, name]))
            if group and held > self._room:
                yield group
                group = []
            group.append(name)
        if group:
            yield group

    def open(self, names: Sequence[str], *, until: float = math.inf) -> None:
        """Open those of the names that are not, as many at a time as there are cores, the first of
        them and then more `until` a moment of the monotonic clock, after which no cache is filled
        either, and one that is not full a minute later is given up; all are stopped afterwards. One
        that fails is dropped.
        """
        waiting = [
            name
            for name in names
            if name not in self._open and name not in self._journal.pages.dropped
        ]
        cores = usable_cores()
        for start in range(0, len(waiting), cores):
            if start and time.monotonic() > until:
                return
            batch = waiting[start : start + cores]
            for name in batch:
                self._start(name)
            ready = {name: self._wait_for(name) for name in batch}
            for number, (name, opened) in enumerate(ready.items()):
                if opened and opened.has_cache and start + number and time.monotonic() > until:
                    self.end(name)
                elif opened:  # caches are filled one after another
                    self._admit(name, opened, until)

    def end(self, name: str) -> None:
        """End a contestant, if it is open."""
        if name in self._open:
            self._open.pop(name)[1].close()

    def race(self, names: Sequence[str], heat: str, *, number: int) -> Round:
        """One turn of each of the names that is open, in alternating order."""
        order = [name for name in names if name in self._open]
        turns: dict[str, Turn] = {}
        with OtherProcesses() as others:
            for name in order if number % 2 == 0 else reversed(order):
                try:
                    turns[name] = self._open[name][0].take_turn()
                except ContestantLost as lost:
                    self._lose(name, lost)
                    continue
        self._turns |= turns
        for name in turns:
            self._watch(name)
        return Round(heat=heat, turns=turns, others_pct=others.cpu_pct, busiest=others.busiest)

    def _start(self, name: str) -> None:
        job, argument = self._jobs(name)
        file = name.replace(" ", "-").replace("/", "-")
        stack, log = ExitStack(), self._journal.folder / f"{file}.log"
        contestant = stack.enter_context(Contestant(job, (argument,), log=log))
        self._open[name] = contestant, stack

    def _wait_for(self, name: str) -> Opened | None:
        """Wait until a contestant is open, and let it stand still; what it says then, None for one
        that is lost.
        """
        contestant, _ = self._open[name]
        try:
            opened: Opened = contestant.wait_until_open()
        except ContestantLost as lost:
            self._lose(name, lost)
            return None
        contestant.stop()
        return opened

    def _admit(self, name: str, opened: Opened, until: float) -> None:
        """Let a contestant fill its cache, or load what it reads; note what its training costs
        besides its epochs.
        """
        order = "fill" if opened.has_cache else "load" if opened.loads else ""
        timed = self._time_alone(name, order, until) if order else (0.0, False)
        if timed is None:
            return
        seconds, disturbed = timed
        prepare_s, held = self._needs[name].prepare_s, self._open[name][0].memory_bytes()
        self._journal.enter(
            name,
            Entrance(
                cost=Cost(prepare_s=prepare_s, fill_s=seconds)
                if opened.has_cache
                else Cost(prepare_s=prepare_s + seconds),
                ram_bytes=held + self._lacking(name) + self._besides_steps_bytes,
                held_bytes=held,
                disturbed=disturbed,
            ),
        )
        self._watch(name)

    def _time_alone(self, name: str, order: str, until: float) -> tuple[float, bool] | None:
        """What a contestant needs once [s], to fill its cache or to load, while all others stand
        still, and whether other programs disturbed it: it is measured once more then, by another
        process, and if they still are at work that is a disturbed round. None where the contestant
        is lost, has been given up since the time is up, or is out since it takes most of it.
        """
        whole_s = until - self._opened_at
        for again in (False, True):
            if again:
                self.end(name)
                self._start(name)
                if self._wait_for(name) is None:
                    return None
            with OtherProcesses() as others:
                allowed_s = min(OPENING_S, max(LEAST_FILL_S, until - time.monotonic()))
                try:
                    seconds = self._open[name][0].ask(order, timeout_s=allowed_s)
                except ContestantLost as lost:
                    most_s = min(OPENING_S, FILL_SHARE * whole_s)
                    if lost.late and 0 < most_s <= allowed_s:
                        what = "filling its cache" if order == "fill" else "loading"
                        why = f"{what} takes longer than {allowed_s:.0f} s"
                        self._journal.drop(name, why, passing=name in self._own)
                        self.end(name)
                    elif lost.passing and time.monotonic() > until:
                        self.end(name)
                    else:
                        self._lose(name, lost)
                    return None
            timed = Round(heat=FILL, turns={}, others_pct=others.cpu_pct, busiest=others.busiest)
            if not timed.disturbed:
                return seconds, False
        self._journal.add(timed)
        return seconds, True

    def _watch(self, name: str) -> None:
        """Note the most memory that a contestant's training takes; drop it where that is more than
        is allowed.
        """
        entrance, held = self._journal.pages.entrances[name], self._open[name][0].memory_bytes()
        if (more := held - entrance.held_bytes) > 0:
            entrance = replace(entrance, ram_bytes=entrance.ram_bytes + more, held_bytes=held)
            self._journal.enter(name, entrance)
        if self._journal.drop_large(name, self._ram_bytes):
            self.end(name)

    def _lose(self, name: str, lost: ContestantLost) -> None:
        self._journal.drop(name, str(lost), passing=lost.passing)
        self.end(name)

    def _bytes(self, name: str) -> float:
        """What a contestant holds, as far as that is known."""
        if entrance := self._journal.pages.entrances.get(name):
            return entrance.held_bytes
        return self._needs[name].ram_bytes - self._besides_steps_bytes - self._lacking(name)

    def _lacking(self, name: str) -> float:
        """Bytes of what its training keeps in memory, that a contestant does not."""
        kept = self._needs[name].ram_bytes - self._needs[CEILING].ram_bytes
        return (1 - self._sampled_share) * kept
