"""Whether a training is held up by its input: a verdict that is given only where the race bears it.

Thresholds follow xprof's input-pipeline analysis (5 % and 20 % of a step); on shared cores the
lower one is 15 %, since two runs of the same step differ by up to 10 % there. A race that other
figures of the same configuration contradict decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from throughline.results.base import Estimate
from whowaits.timing.verdict import (
    COMPUTE_BOUND_BELOW_PCT,
    INPUT_BOUND_FROM_PCT,
    MARGIN_PCT,
    UNDECIDED,
    decide,
)

APART_PCT = 10.0  # that rates measured minutes apart may differ by
SAME_MOMENT_PCT = 2.0  # the same of rates of the same rounds
LEAST_STEPS = 20  # of warm epochs; fewer are mostly their beginnings and ends
BETWEEN_S = 0.3  # of an epoch, at most, for what no turn has: a checkpoint's end, callbacks
ONCE_MORE = "run train and race of this configuration again while nothing else runs"


@dataclass(frozen=True, kw_only=True)
class Stall:
    """The share of a training [%] that its model does not need, with its interval."""

    pct: float
    low_pct: float
    high_pct: float

    @classmethod
    def of(cls, gain: Estimate) -> Stall:
        """That of a training which is so many times as fast as its model alone."""
        low, pct, high = (100 * max(0.0, 1 - value) for value in (gain.high, gain.value, gain.low))
        return cls(pct=pct, low_pct=low, high_pct=high)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict; where it is undecided, the cause of that and what to do."""

    name: str
    cause: str = ""
    fix: str = ""


@dataclass(frozen=True, kw_only=True)
class OtherFigures:
    """Other figures of a training that has raced: the rate of its input alone and, of so many warm
    steps, that of its own epochs [examples/s], each of which takes `epoch_s` [s]; its `gain` over
    its model alone, in the same rounds. `drift` is the factor by which the pace of the machine
    itself varied during the race; `disturbed`: other programs slowed the race down.
    """

    gain: Estimate
    input: Estimate | None
    epochs: float | None
    epoch_s: float
    warm_steps: int
    drift: float
    disturbed: bool

    def contradict(self, training: Estimate) -> str:
        """Which of them contradicts the rate of a race; empty where none does."""
        other = self._find_contrary(training)
        return other and f"the race trained {training.value:,.0f} examples/s, {other}"

    def _find_contrary(self, training: Estimate) -> str:
        apart = (1 + APART_PCT / 100) * self.drift
        if self.gain.low > 1 + SAME_MOMENT_PCT / 100:
            return f"its model alone {training.value / self.gain.value:,.0f}"
        if self.input and training.low > apart * self.input.high:
            return f"its input alone made {self.input.value:,.0f}"
        if self.epochs is None or self.warm_steps < LEAST_STEPS:
            return ""
        between = min(BETWEEN_S, self.epoch_s / 2)
        slower = training.low > apart * self.epochs * self.epoch_s / (self.epoch_s - between)
        faster = not self.disturbed and apart * training.high < self.epochs
        return f"its epochs {self.epochs:,.0f}" if slower or faster else ""


def judge(stall: Stall, contradiction: str, *, on_accelerator: bool) -> Verdict:
    """Give the verdict, or say why none can be given: the interval lies on both sides of a
    threshold, by more than `MARGIN_PCT` each, or another figure contradicts.
    """
    if contradiction:
        return Verdict(name=UNDECIDED, cause=contradiction, fix=ONCE_MORE)
    thresholds = (
        COMPUTE_BOUND_BELOW_PCT["accelerator" if on_accelerator else "shared cores"],
        INPUT_BOUND_FROM_PCT,
    )
    for threshold in thresholds:
        if stall.low_pct < threshold - MARGIN_PCT and stall.high_pct > threshold + MARGIN_PCT:
            span = f"{stall.low_pct:.0f} to {stall.high_pct:.0f} %"
            return Verdict(
                name=UNDECIDED,
                cause=f"the stall lies anywhere from {span}, on both sides of {threshold:.0f} %",
                fix="race for longer: a larger measure.seconds, or a quiet machine",
            )
    return Verdict(name=decide(stall.pct, on_accelerator=on_accelerator))
