"""Decides whether a training waits for its input, if its race supports a verdict.

Thresholds follow xprof's input-pipeline analysis (5 % and 20 % of a step). On shared cores the
lower one is 15 %, because two runs of the same step differ by up to 10 % there. A race that
contradicts other figures of the configuration is undecided.
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

APART_PCT = 10.0  # allowed difference of rates measured minutes apart
SAME_MOMENT_PCT = 2.0  # allowed difference of rates of the same rounds
BETWEEN_S = 0.3  # most time per epoch that turns lack: a checkpoint's end, callbacks
ONCE_MORE = "run train and race of this configuration again while nothing else runs"


@dataclass(frozen=True, kw_only=True)
class Stall:
    """The share of a training [%] that its model does not need; below 0 if the model was slower."""

    pct: float
    low_pct: float
    high_pct: float

    @classmethod
    def of(cls, gain: Estimate) -> Stall:
        """Return the stall of a training from its speed relative to its model alone."""
        low, pct, high = (100 * (1 - value) for value in (gain.high, gain.value, gain.low))
        return cls(pct=pct, low_pct=low, high_pct=high)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict; if it is undecided, also the cause and what to do."""

    name: str
    cause: str = ""
    fix: str = ""


def find_contradiction(  # noqa: PLR0913 - the figures of a training
    training: Estimate,
    gain: Estimate,
    fed: Estimate | None,
    epochs: float | None,
    *,
    epoch_s: float,
    drift: float,
    disturbed: bool,
) -> str:
    """Name the figure that contradicts a configuration's rate in the race; "" if none does.

    Args:
      training: The rate of the training in the race [examples/s]; `gain` is its ratio to the model
          alone in the same rounds.
      fed: The rate of the input alone; None if it had no turn.
      epochs: The rate of the training's own warm epochs of `epoch_s`; None if not comparable.
      drift: The factor by which the machine's pace varied during the race.
    """
    raced = f"training ran at {training.value:,.0f} examples/s in the race"
    apart = (1 + APART_PCT / 100) * drift
    if gain.low > 1 + SAME_MOMENT_PCT / 100:
        return f"{raced}, but its model alone at {training.value / gain.value:,.0f}"
    if fed and training.low > apart * fed.high:
        return f"{raced}, but its input alone at {fed.value:,.0f}"
    if epochs is None:
        return ""
    between = min(BETWEEN_S, epoch_s / 2)
    slower = training.low > apart * epochs * epoch_s / (epoch_s - between)
    faster = not disturbed and apart * training.high < epochs
    return f"{raced}, but its own epochs at {epochs:,.0f}" if slower or faster else ""


def judge(stall: Stall, contradiction: str, *, on_accelerator: bool) -> Verdict:
    """Give the verdict; undecided if a figure contradicts the race, or the interval is too wide.

    An interval is too wide if it passes both sides of a threshold by more than `MARGIN_PCT`.
    """
    if contradiction:
        return Verdict(name=UNDECIDED, cause=contradiction, fix=ONCE_MORE)
    least = COMPUTE_BOUND_BELOW_PCT["accelerator" if on_accelerator else "shared cores"]
    for threshold in (least, INPUT_BOUND_FROM_PCT):
        if stall.low_pct < threshold - MARGIN_PCT and stall.high_pct > threshold + MARGIN_PCT:
            span = f"{max(0.0, stall.low_pct):.0f} to {stall.high_pct:.0f} %"
            return Verdict(
                name=UNDECIDED,
                cause=f"the stall lies anywhere from {span}, on both sides of {threshold:.0f} %",
                fix="race longer (with a larger measure.seconds), or on a quiet machine",
            )
    return Verdict(name=decide(stall.pct, on_accelerator=on_accelerator))
