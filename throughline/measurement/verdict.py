"""Whether a training is held up by its input: a verdict that is given only where the measurement
bears it.

Thresholds follow xprof's input-pipeline analysis (5 % and 20 % of a step); on shared cores the
lower one is 15 %, since two runs of the same step differ by up to 10 % there. The training's own
epochs are the cross-check: a verdict that they contradict is not given but explained.
"""

from __future__ import annotations

from dataclasses import dataclass

from throughline.measurement.rounds import SteadyState
from throughline.results.train import TrainThroughput
from whowaits.timing.verdict import (
    COMPUTE_BOUND_BELOW_PCT,
    INPUT_BOUND_FROM_PCT,
    MARGIN_PCT,
    UNDECIDED,
    decide,
)

DRIFT_PCT = 10.0  # points that two measurements of the same training, minutes apart, may differ by


@dataclass(frozen=True, kw_only=True)
class Stall:
    """The measured stall [%] with its interval; `decided`: both sides of the measurement agree;
    else `suggested_seconds` might do.
    """

    pct: float
    low_pct: float
    high_pct: float
    decided: bool = True
    suggested_seconds: float | None = None

    @classmethod
    def of(cls, state: SteadyState) -> Stall:
        """The stall of a steady state."""
        low, high = state.stall_interval_pct
        return cls(
            pct=state.stall_pct,
            low_pct=low,
            high_pct=high,
            decided=state.is_decided,
            suggested_seconds=state.suggested_seconds,
        )


@dataclass(frozen=True, kw_only=True)
class CrossCheck:
    """The stall by the training's own warm epochs [%].

    `low_pct` takes every step of an epoch as measured, the last one, which may be small, as any
    other; `high_pct` counts that by its examples, and as free the steps whose batches lay prepared
    while the validation ran.
    """

    low_pct: float
    high_pct: float
    step_ms: float


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict; where it is undecided, the cause of that and what to do."""

    name: str
    cause: str = ""
    fix: str = ""


def cross_check_from(
    state: SteadyState,
    trained: TrainThroughput | None,
    *,
    batch_size: float,
    mean_batch: float,
    steps: int,
) -> CrossCheck | None:
    """The cross-check from the rates of the training's epochs, of `steps` of `mean_batch` examples,
    most of them of `batch_size`; None where it had one epoch only, which starts cold, or none was
    timed.
    """
    if trained is None or trained.warm_examples_per_s is None:
        return None
    step_ms, full_ms = (
        1e3 * size / trained.train_examples_per_s for size in (mean_batch, batch_size)
    )
    free = min(state.prepared, steps - 1)
    low, high = (
        max(0.0, 100 * (1 - state.model_step_ms / ms))
        for ms in (step_ms, full_ms * steps / (steps - free))
    )
    return CrossCheck(low_pct=low, high_pct=high, step_ms=step_ms)


def judge(stall: Stall, cross_check: CrossCheck | None, *, on_accelerator: bool) -> Verdict:
    """Give the verdict, or say why none can be given.

    A stall is undecided whose interval lies on both sides of a threshold (by more than `MARGIN_PCT`
    each, where both sides of the measurement agree), and one that the epochs contradict by more
    than the machine drifts.
    """
    thresholds = (
        COMPUTE_BOUND_BELOW_PCT["accelerator" if on_accelerator else "shared cores"],
        INPUT_BOUND_FROM_PCT,
    )
    margin = MARGIN_PCT if stall.decided else 0.0
    across = [
        each
        for each in thresholds
        if stall.low_pct < each - margin and stall.high_pct > each + margin
    ]
    span = f"{stall.low_pct:.0f} to {stall.high_pct:.0f} %"
    if across:
        sides = "" if stall.decided else " from full buffers and from empty ones"
        seconds = (
            f"measure.stall_max_seconds: {stall.suggested_seconds:.0f}"
            if stall.suggested_seconds
            else "a larger measure.rounds, or a quiet machine"
        )
        cause = f"the stall lies anywhere from {span}{sides}, on both sides of {across[0]:.0f} %"
        return Verdict(name=UNDECIDED, cause=cause, fix=f"measure longer: {seconds}")
    name = decide(stall.pct, on_accelerator=on_accelerator)
    if (
        cross_check is not None
        and decide(_within_drift(stall, cross_check), on_accelerator=on_accelerator) != name
    ):
        cause = (
            f"the epochs of this training took {cross_check.step_ms:.2f} ms a step, a stall of"
            f" {cross_check.low_pct:.0f} to {cross_check.high_pct:.0f} %, while now it is"
            f" {stall.pct:.0f} % ({span}): the machine was busy then or now"
        )
        return Verdict(
            name=UNDECIDED,
            cause=cause,
            fix="run train and profile of this configuration again while nothing else runs",
        )
    return Verdict(name=name)


def _within_drift(stall: Stall, cross_check: CrossCheck) -> float:
    """The stall itself where the interval and the cross-check agree but for drift; else the end of
    the cross-check, moved by the drift, that is nearest to the interval [%].
    """
    if cross_check.low_pct - DRIFT_PCT > stall.high_pct:
        return cross_check.low_pct - DRIFT_PCT
    return (
        cross_check.high_pct + DRIFT_PCT
        if cross_check.high_pct + DRIFT_PCT < stall.low_pct
        else stall.pct
    )
