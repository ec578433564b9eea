"""The contestants of a search: what happens to them is journaled, and those are out that take more
than is allowed.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from throughline.measurement.other_processes import OtherProcesses
from throughline.race.contestant import OPENING_S, ContestantLost
from throughline.race.jobs import Opened
from throughline.race.pool import Jobs, Pool
from throughline.results.race import Cost, Round
from throughline.tuning.journal import Entrance, Journal
from throughline.tuning.needs import Need
from throughline.tuning.space import CEILING

LEAST_FILL_S = 60.0  # that filling a cache may take, also when the time is up
FILL = "fill"  # the heat in which caches are filled
FILL_SHARE = 0.5  # of the whole time, within which it would have to be full


class SearchPool(Pool):
    """Open contestants of a search.

    `jobs` gives the job of a name with its arguments, `needs` what its training is expected to
    need: of memory `besides_steps_bytes` more than the contestant holds, and all of what is kept
    where that holds a `sampled_share`. One whose training takes more than `ram_bytes` is ended; one
    of one's `own` may be the fastest, however long its cache takes.
    """

    def __init__(  # noqa: PLR0913 - what a search knows of its contestants
        self,
        jobs: Jobs,
        needs: Mapping[str, Need],
        journal: Journal,
        *,
        ram_bytes: float,
        besides_steps_bytes: float,
        sampled_share: float,
        own: Collection[str] = (),
    ) -> None:
        super().__init__(jobs, journal.folder)
        self._needs, self._journal = needs, journal
        self._ram_bytes, self._besides_steps_bytes = ram_bytes, besides_steps_bytes
        self._sampled_share, self._own = sampled_share, own
        self._opened_at = time.monotonic()

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

    def is_out(self, name: str) -> bool:
        """Whether it has been dropped."""
        return name in self._journal.pages.dropped

    def admit(self, name: str, opened: Opened, until: float) -> None:
        """Let a contestant fill its cache, or load what it reads; note what its training costs
        besides its epochs.
        """
        order = "fill" if opened.has_cache else "load" if opened.loads else ""
        timed = self._time_alone(name, order, until) if order else (0.0, False)
        if timed is None:
            return
        seconds, disturbed = timed
        prepare_s, held = self._needs[name].prepare_s, self.memory_bytes(name)
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
        self.watch(name)

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
                self.start(name)
                if self.wait_for(name) is None:
                    return None
            with OtherProcesses() as others:
                allowed_s = min(OPENING_S, max(LEAST_FILL_S, until - time.monotonic()))
                try:
                    seconds = max(self.ask(name, order, timeout_s=allowed_s))
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
                        self.lose(name, lost)
                    return None
            timed = Round(heat=FILL, turns={}, others_pct=others.missed_pct, busiest=others.busiest)
            if not timed.disturbed:
                return seconds, False
        self._journal.add(timed)
        return seconds, True

    def watch(self, name: str) -> None:
        """Note the most memory that a contestant's training takes; drop it where that is more than
        is allowed.
        """
        entrance, held = self._journal.pages.entrances[name], self.memory_bytes(name)
        if (more := held - entrance.held_bytes) > 0:
            entrance = replace(entrance, ram_bytes=entrance.ram_bytes + more, held_bytes=held)
            self._journal.enter(name, entrance)
        if self._journal.drop_large(name, self._ram_bytes):
            self.end(name)

    def lose(self, name: str, lost: ContestantLost) -> None:
        """Drop it, with the reason."""
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
