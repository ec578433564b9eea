"""The contestants of a search: they are journaled, and dropped if they need too much memory."""

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from throughline.measurement.other_processes import OtherProcesses
from throughline.race.contestant import OPENING_S, ContestantLost
from throughline.race.jobs import Opened
from throughline.race.pool import Jobs, Pool
from throughline.results.race import Round
from throughline.tuning.journal import Admission, Journal
from throughline.tuning.question import Survey
from throughline.tuning.space import CEILING

LEAST_FILL_S = 60.0  # the time that filling a cache may always take, even after the search's time
FILL = "fill"  # the phase in which caches are filled
FILL_SHARE = 0.5  # share of the search's time within which a cache must be full


class SearchPool(Pool):
    """The contestants of a search; those whose trainings need more than `ram_bytes` are dropped.

    `own` are the user's: the next search tries them again even if their caches took too long.
    """

    def __init__(
        self,
        jobs: Jobs,
        survey: Survey,
        journal: Journal,
        *,
        ram_bytes: float,
        own: Collection[str] = (),
    ) -> None:
        super().__init__(jobs, journal.folder)
        self._survey, self._journal = survey, journal
        self._ram_bytes, self._own = ram_bytes, own
        self._opened_at = time.monotonic()

    def groups(self, names: Sequence[str], *, together_with: Sequence[str]) -> Iterator[list[str]]:
        """Group names that fit into memory `together_with` others; a large one is alone."""
        group: list[str] = []
        for name in names:
            held = sum(map(self._bytes, [*together_with, *group, name]))
            if group and held > self._room:
                yield group
                group = []
            group.append(name)
        if group:
            yield group

    def is_out(self, name: str) -> bool:
        return name in self._journal.content.dropped

    def admit(self, name: str, opened: Opened, until: float) -> None:
        """Fill the contestant's cache or load its data, then note its costs and its memory."""
        timed = self._time_alone(name, opened.order, until) if opened.order else (0.0, False)
        if timed is None:
            return
        seconds, disturbed = timed
        held = self.memory_bytes(name)
        admission = Admission(
            cost=opened.cost(seconds, prepare_s=self._survey.needs[name].prepare_s),
            ram_bytes=held + self._unsampled(name) + self._survey.besides_steps_bytes,
            held_bytes=held,
            disturbed=disturbed,
        )
        self._journal.admit(name, admission)
        self.watch(name)

    def _time_alone(self, name: str, order: str, until: float) -> tuple[float, bool] | None:
        """Time how long a contestant fills its cache or loads, while all others are frozen.

        If other programs disturb it, it is measured again in a new process. Returns the time [s]
        and whether it was disturbed; None if the contestant was lost, ended because the search's
        time is up, or dropped because it took over `FILL_SHARE` of that time.
        """
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
                    most_s = min(OPENING_S, FILL_SHARE * (until - self._opened_at))
                    if lost.late and 0 < most_s <= allowed_s:
                        what = "filling its cache" if order == "fill" else "loading its data"
                        why = f"{what} took longer than {allowed_s:.0f} s"
                        self._journal.drop(name, why, transient=name in self._own)
                        self.end(name)
                    elif lost.transient and time.monotonic() > until:
                        self.end(name)
                    else:
                        self.lose(name, lost)
                    return None
            timed = Round(
                phase=FILL, turns={}, others_pct=others.missed_pct, busiest=others.busiest
            )
            if not timed.disturbed:
                return seconds, False
        self._journal.add(timed)
        return seconds, True

    def watch(self, name: str) -> None:
        """Note the most memory that a contestant's training needs; drop it if that is too much."""
        admission, held = self._journal.content.admissions[name], self.memory_bytes(name)
        if (more := held - admission.held_bytes) > 0:
            admission = replace(admission, ram_bytes=admission.ram_bytes + more, held_bytes=held)
            self._journal.admit(name, admission)
        if self._journal.drop_large(name, self._ram_bytes):
            self.end(name)

    def lose(self, name: str, lost: ContestantLost) -> None:
        self._journal.drop(name, str(lost), transient=lost.transient)
        self.end(name)

    def _bytes(self, name: str) -> float:
        if admission := self._journal.content.admissions.get(name):
            return admission.held_bytes
        survey = self._survey
        return survey.needs[name].ram_bytes - survey.besides_steps_bytes - self._unsampled(name)

    def _unsampled(self, name: str) -> float:
        needs = self._survey.needs
        kept = needs[name].ram_bytes - needs[CEILING].ram_bytes
        return (1 - self._survey.sampled_share) * kept
