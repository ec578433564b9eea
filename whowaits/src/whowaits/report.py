"""The report on a training, as one value that is printed as text or JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from .changes.advice import DRAWS, ORDER, SAME, Tried, find_first
from .lines import WORTH_SHOWING_PCT, LineTime
from .timing.blocks import LEAST_GAPS, Timing
from .timing.rounds import Block
from .timing.verdict import DISTURBED_PCT, UNDECIDED, Conditions, Verdict, describe_others
from .version import __version__

MEANINGS = {
    SAME: "the same examples in the same order",
    ORDER: "the same examples in another order",
    DRAWS: "the same examples in the same order, with other random draws",
}
WORTH_SAYING = 3  # in steps: the shortest gap between epochs to report
SLOWER_FIRST_EPOCH = 1.3  # report a first epoch whose steps take this many times the later ones'


@dataclass(frozen=True)
class Report:
    """A training, its verdict, and its figures, which are None if they were not measured.

    A stall without `stall_high_pct` is at least `stall_low_pct`. `waited_pct` is the share of time
    spent in `next`, and `gap_ms` the median wait for an epoch's first batch.
    """

    script: str
    training: str  #: such as "model.fit at train.py:41"
    verdict: str
    reason: str = ""
    stall_pct: float | None = None
    stall_low_pct: float | None = None
    stall_high_pct: float | None = None
    step_ms: float | None = None
    model_ms: float | None = None
    waited_pct: float | None = None
    examples: int | None = None  #: in a batch
    gap_ms: float | None = None
    gaps: int = 0
    steps_per_epoch: int | None = None
    first_epoch_step_ms: float | None = None
    later_epochs_step_ms: float | None = None
    first_epoch_only: bool = False
    steps: int = 0
    rounds: int = 0
    seconds: float = 0.0
    backend: str = ""
    others_pct: float | None = None
    others: str = ""
    notes: tuple[str, ...] = ()
    changes: tuple[Tried, ...] = ()
    line_times: tuple[LineTime, ...] = ()  #: for a training with unseen batches
    version: str = __version__

    @property
    def lines(self) -> list[str]:
        notes = (f"  {note}" for note in self.notes)
        return [self._headline(), *self._details(), *self._advice(), *notes]

    def _headline(self) -> str:
        text = f"{self.script}: {self.verdict}"
        if self.stall_pct is None:
            return text
        if self.stall_high_pct is None:
            return f"{text}, stall at least {self.stall_low_pct:.0f} %"
        span = f"{self.stall_low_pct:.0f} to {self.stall_high_pct:.0f} %"
        return f"{text}, stall {self.stall_pct:.0f} % ({span})"

    def _details(self) -> Iterator[str]:
        if self.training:
            yield f"  {self.training}{f', {self.backend}' if self.backend else ''}"
        if self.step_ms is not None:
            what = f"a step of {self.examples} examples" if self.examples else "a step"
            alone = "" if self.model_ms is None else f", the model alone {self.model_ms:.2f} ms"
            waited = "" if self.waited_pct is None else f"; {self.waited_pct:.0f} % of it in `next`"
            yield f"  {what} takes {self.step_ms:.2f} ms{waited}{alone}"
        if self.first_epoch_step_ms is not None and self.later_epochs_step_ms is not None:
            first, later = self.first_epoch_step_ms, self.later_epochs_step_ms
            if first >= SLOWER_FIRST_EPOCH * later:
                yield (
                    f"  the first epoch took {first:.2f} ms a step, later ones {later:.2f} ms;"
                    " the verdict is on later ones, where enough were seen"
                )
        yield from self._epochs()
        if self.reason:
            yield f"  {self.reason}"
        elif self.others_pct is not None and self.others_pct >= DISTURBED_PCT:
            yield f"  {describe_others(self.others_pct, self.others)} meanwhile"
        if self.line_times:
            yield "  time by line:"
        for each in sorted(self.line_times, key=lambda each: -each.pct):
            if each.pct >= WORTH_SHOWING_PCT:
                yield f"    {each}"

    def _epochs(self) -> Iterator[str]:
        if self.gap_ms is not None and self.gap_ms >= WORTH_SAYING * (self.step_ms or math.inf):
            yield f"  each epoch waits {self.gap_ms:.0f} ms for its first batch"
            if self.gaps < LEAST_GAPS:
                yield "  this was seen only once, so the stall does not include it"
            elif self.steps_per_epoch is None:
                yield "  the stall does not include this, since the steps per epoch are not known"
        if self.first_epoch_only:
            yield (
                "  only the first epoch was seen: the stall includes neither gaps between epochs"
                " nor what later epochs find in memory"
            )
        elif self.rounds and not self.gaps:
            yield "  no two epochs in a row ran undisturbed: the stall includes no gap between them"

    def _advice(self) -> Iterator[str]:
        if not self.changes:
            return
        first = find_first(self.changes)
        if first is not None:
            says = f": {first.says}" if first.says else ""
            yield f"  change first: {first.at}{first.text}"
            yield f"    gains {first.span}; {MEANINGS[first.meaning]}{says}"
        yield f"  {'' if first else 'no change can be advised; '}tried, each by itself:"
        for each in self.changes:
            yield f"    {each}"

    @property
    def json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1, allow_nan=False)


def make_report(
    timing: Timing, conditions: Conditions, verdict: Verdict, **facts: object
) -> Report:
    """Report what was measured of a training; `facts` are further fields of the report."""
    stall = verdict.stall
    blocks = [each.training for each in timing.steady] or [timing.passive]
    first, later = _epoch_times(timing.epochs)
    return Report(
        verdict=verdict.name,
        reason=verdict.reason,
        stall_pct=_known(stall.pct) if stall else None,
        stall_low_pct=_known(stall.low) if stall else None,
        stall_high_pct=_known(stall.high) if stall else None,
        step_ms=_known(timing.step_ms),
        model_ms=_known(statistics.median(each.model_ms for each in timing.steady))
        if timing.rounds
        else None,
        waited_pct=_known(statistics.median(block.waited_pct for block in blocks))
        if blocks[0].steps
        else None,
        gap_ms=_known(1e3 * statistics.median(timing.gaps_s)) if timing.gaps_s else None,
        gaps=len(timing.gaps_s),
        first_epoch_only=bool(timing.rounds) and timing.in_first_epoch,
        first_epoch_step_ms=first,
        later_epochs_step_ms=later,
        steps=timing.seen,
        rounds=len(timing.steady),
        seconds=round(timing.elapsed_s, 1),
        others_pct=round(conditions.others_pct, 1),
        others=conditions.others,
        **facts,  # pyright: ignore[reportArgumentType]
    )


def _epoch_times(epochs: list[Block]) -> tuple[float | None, float | None]:
    steps = sum(each.steps for each in epochs[1:])
    if not steps or not epochs[0].steps:
        return None, None
    return epochs[0].step_ms, 1e3 * sum(each.total_s for each in epochs[1:]) / steps


def undecided(script: str, reason: str, **facts: object) -> Report:
    given = {"training": "", **facts}
    return Report(script=script, verdict=UNDECIDED, reason=reason, **given)  # pyright: ignore


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
