"""Decides whether a training waits for its input, or says why it cannot be decided.

Thresholds follow xprof's input-pipeline analysis (5 % and 20 % of a step); on shared cores the
lower one is 15 %, since two runs of the same step differ by up to 10 % there.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from .blocks import LEAST_STEPS, Timing
from .machine import OtherPrograms
from .rounds import median_interval

INPUT_BOUND, SLIGHTLY_BOUND, COMPUTE_BOUND = "input-bound", "slightly input-bound", "compute-bound"
UNDECIDED = "undecided"
COMPUTE_BOUND_BELOW_PCT = {"accelerator": 5.0, "shared cores": 15.0}
INPUT_BOUND_FROM_PCT = 20.0
MARGIN_PCT = 5.0  # points by which an interval may cross a threshold
FEW_ROUNDS, FEW_ROUNDS_PCT = 3, 10.0  # with fewer rounds, points added to each side
CONTRADICTION_PCT = 10.0  # points by which two figures of a training may contradict each other
DISTURBED_PCT = 20.0  # other programs with this share of the cores disturb


@dataclass(frozen=True)
class Conditions:
    """Conditions under which a training was timed, such as other programs' share of the cores.

    `synchronous`: calls return when the device is done.
    """

    on_accelerator: bool = False
    synchronous: bool = True
    others_pct: float = 0.0
    others: str = ""
    passive_because: str = ""  #: why the model was not timed alone
    fills_cache: bool = False  #: whether the first epoch fills a cache

    @property
    def distance_pct(self) -> float:
        """Least distance of a stall from a threshold [points], as other programs' share varies."""
        return self.others_pct / 2 if self.others_pct >= DISTURBED_PCT else 0.0


@dataclass(frozen=True)
class Stall:
    """Share of a step [%] that the model does not need, with its interval."""

    pct: float
    low: float
    high: float


@dataclass(frozen=True)
class Verdict:
    """A verdict, the stall if one was measured, and the reason if it is undecided."""

    name: str
    stall: Stall | None = None
    reason: str = ""


def decide(stall_pct: float, *, on_accelerator: bool) -> str:
    if stall_pct >= INPUT_BOUND_FROM_PCT:
        return INPUT_BOUND
    least = COMPUTE_BOUND_BELOW_PCT["accelerator" if on_accelerator else "shared cores"]
    return COMPUTE_BOUND if stall_pct < least else SLIGHTLY_BOUND


def judge(timing: Timing, conditions: Conditions) -> Verdict:
    """Give the verdict, or say why none can be given."""
    verdict = _judge(timing, conditions)
    decided = verdict.name not in (UNDECIDED, COMPUTE_BOUND)
    blocks = [each.training for each in timing.steady] or [timing.passive]
    if decided and conditions.fills_cache and any(block.first_epoch for block in blocks):
        reason = "too little was seen after the epoch that fills the cache, which later ones read"
        return _undecided(reason, verdict.stall)
    return verdict


def _undecided(reason: str, stall: Stall | None = None) -> Verdict:
    return Verdict(UNDECIDED, stall, reason)


def _judge(timing: Timing, conditions: Conditions) -> Verdict:
    if not timing.rounds:
        return _judge_passively(timing, conditions)
    stalls = [each.stall_pct for each in timing.steady]
    least, most = timing.extremes
    middle = statistics.median(stalls)
    low, _ = median_interval([each.stall_pct for each in least])
    _, high = median_interval([each.stall_pct for each in most])
    disturbed = f"; {_disturbance(conditions)}" if conditions.distance_pct else ""
    if middle < -CONTRADICTION_PCT:
        model = statistics.median(each.model_ms for each in timing.steady)
        return _undecided(
            f"the measurement failed: the model alone took {model:.2f} ms a step, longer than the"
            f" training as a whole, {timing.step_ms:.2f} ms{disturbed}"
        )
    if len(stalls) < FEW_ROUNDS:
        low, high = low - FEW_ROUNDS_PCT, high + FEW_ROUNDS_PCT
    if conditions.synchronous:  # a training that waits for a batch does nothing else
        waited = min(each.training.waited_pct for each in least)
        if waited > high + CONTRADICTION_PCT:
            return _undecided(
                f"the measurement failed: the training stood in `next` for {waited:.0f} % of its"
                f" time, but the model alone took {100 - max(0.0, high):.0f} % of it{disturbed}"
            )
        low, middle = max(low, min(waited, high)), max(middle, min(waited, high))
    stall = Stall(*(min(100.0, max(0.0, value)) for value in (middle, low, high)))
    # Work on the cores does not slow an accelerator.
    restless = not conditions.on_accelerator and sum(not each.rested for each in timing.steady)
    if 2 * restless > len(stalls) and stall.pct < INPUT_BOUND_FROM_PCT:
        return _undecided(
            "the input did not come to rest while the model was timed alone, so it slowed the"
            " model then, too",
            stall,
        )
    unexplained = [
        each.unexplained_pct for each in timing.steady if not math.isnan(each.unexplained_pct)
    ]
    verdict = _within_thresholds(stall, low, high, conditions)
    if unexplained and conditions.synchronous and not conditions.on_accelerator:
        return _explained(verdict, statistics.median(unexplained))
    return verdict


def _explained(verdict: Verdict, unexplained_pct: float) -> Verdict:
    """Return the verdict, or undecided if it needs a stall that the input cannot have caused."""
    stall = verdict.stall
    if stall is None or verdict.name == UNDECIDED or unexplained_pct < CONTRADICTION_PCT:
        return verdict
    caused = max(0.0, stall.pct - unexplained_pct)
    if decide(caused, on_accelerator=False) == verdict.name:
        return verdict
    return _undecided(
        f"the stall is {stall.pct:.0f} % of a step, but waits for the input and its work on the"
        f" cores explain at most {caused:.0f} %: the machine changed its pace; run it again",
        stall,
    )


def _judge_passively(timing: Timing, conditions: Conditions) -> Verdict:
    """Judge by waits alone: the least stall, or the most if a device works during waits."""
    if timing.passive.steps < LEAST_STEPS:
        return _undecided(f"too few steps were seen, {timing.seen}, of which the first compile")
    if not timing.passive.wait_s:  # even a batch that is ready takes microseconds
        return _undecided("it was not seen where its batches come from")
    waited = timing.passive.waited_pct
    why = f"; {conditions.passive_because}" if conditions.passive_because else ""
    if conditions.synchronous and not conditions.on_accelerator:
        stall = Stall(waited, waited, math.nan)
        if waited >= INPUT_BOUND_FROM_PCT + conditions.distance_pct:
            return Verdict(INPUT_BOUND, stall)
        if waited >= INPUT_BOUND_FROM_PCT:
            return _undecided(_disturbance(conditions), stall)
        return _undecided(
            f"the training waits for its input {waited:.0f} % of the time; how much the input slows"
            f" the model on the cores that they share was not seen{why}",
            stall,
        )
    stall = Stall(waited, 0.0, waited)
    if decide(waited, on_accelerator=True) == COMPUTE_BOUND:
        return Verdict(COMPUTE_BOUND, stall)
    return _undecided(
        f"the program waits for its input {waited:.0f} % of the time, but the device may have"
        f" worked on meanwhile{why}",
        stall,
    )


def _within_thresholds(stall: Stall, low: float, high: float, conditions: Conditions) -> Verdict:
    """Decide by the interval [low, high] as measured; `stall` has it cut to 0 to 100 %."""
    least = COMPUTE_BOUND_BELOW_PCT["accelerator" if conditions.on_accelerator else "shared cores"]
    for threshold in (least, INPUT_BOUND_FROM_PCT):
        margin = -conditions.distance_pct or MARGIN_PCT
        below, above = low < threshold - margin, high > threshold + margin
        if below and above and conditions.distance_pct:
            return _undecided(
                f"{_disturbance(conditions)}; to decide, the stall would have to be"
                f" {conditions.distance_pct:.0f} points away from {threshold:.0f} %",
                stall,
            )
        if below and above:
            return _undecided(
                f"the stall lies anywhere from {stall.low:.0f} to {stall.high:.0f} %, on both"
                f" sides of {threshold:.0f} %",
                stall,
            )
    return Verdict(decide(stall.pct, on_accelerator=conditions.on_accelerator), stall)


def _disturbance(conditions: Conditions) -> str:
    return f"{describe_others(conditions.others_pct, conditions.others)} meanwhile"


def describe_others(pct: float, who: str) -> str:
    return f"{who} took {pct:.0f} % of the cores"


def say_disturbed(others: OtherPrograms) -> Iterator[str]:
    """Say other programs' share of the cores while changes were tried, if it is large."""
    pct, who = others.read()
    if pct >= DISTURBED_PCT:
        yield f"{describe_others(pct, who)} while changes were tried: run it again"
