"""A verdict is given only where the measurement bears it, and the training's own epochs do not
contradict it.
"""

from __future__ import annotations

import pytest

from throughline.measurement.rounds import Round, SteadyState, TimedBlock
from throughline.measurement.verdict import CrossCheck, Stall, cross_check_from, judge
from throughline.results.train import TrainThroughput
from whowaits.timing.verdict import decide


def stall(pct, low=None, high=None, **more):
    low, high = pct if low is None else low, pct if high is None else high
    return Stall(pct=pct, low_pct=low, high_pct=high, **more)


@pytest.mark.parametrize(
    ("measured", "on_accelerator", "name"),
    [
        (stall(3), True, "compute-bound"),
        (stall(7), True, "slightly input-bound"),
        (stall(7), False, "compute-bound"),
        (stall(74, 63, 78), True, "input-bound"),
        (stall(4, 1, 8), True, "compute-bound"),  # the interval reaches across by 3 points
        (stall(18, 2, 40), False, "undecided"),
        # The sides disagree: the truth may be either.
        (stall(4, 0, 9, decided=False), True, "undecided"),
        (stall(2, 0, 4, decided=False), True, "compute-bound"),  # whichever side is right
    ],
)
def test_what_lies_on_both_sides_of_a_threshold_is_undecided(measured, on_accelerator, name):
    assert judge(measured, None, on_accelerator=on_accelerator).name == name


def test_an_undecided_verdict_says_why_and_what_it_would_take():
    measured = stall(10, 0, 30, decided=False, suggested_seconds=88.4)
    verdict = judge(measured, None, on_accelerator=True)
    assert (verdict.name, verdict.fix) == (
        "undecided",
        "measure longer: measure.stall_max_seconds: 88",
    )
    assert "anywhere from 0 to 30 % from full buffers and from empty ones" in verdict.cause
    assert verdict.cause.endswith("on both sides of 5 %")


def test_epochs_that_contradict_a_verdict_are_named_instead_of_it():
    cross_check = CrossCheck(low_pct=72, high_pct=73, step_ms=51.4)
    verdict = judge(stall(0, 0, 3), cross_check, on_accelerator=False)
    said = "took 51.40 ms a step, a stall of 72 to 73 %, while now it is 0 % (0 to 3 %)"
    assert verdict.name == "undecided" and said in verdict.cause and "again" in verdict.fix


@pytest.mark.parametrize(
    ("measured", "epochs_pct", "contradicted"),
    [
        (stall(70, 66, 74), (0, 3), True),  # they were faster
        (stall(0, 0, 2), (5, 5), False),  # within the drift
        (stall(70, 66, 74), (60, 60), False),  # the same verdict
    ],
)
def test_only_epochs_beyond_the_drift_with_another_verdict_contradict(
    measured, epochs_pct, contradicted
):
    low, high = epochs_pct
    cross_check = CrossCheck(low_pct=low, high_pct=high, step_ms=1.0)
    alone = decide(measured.pct, on_accelerator=False)
    found = judge(measured, cross_check, on_accelerator=False).name
    assert found == ("undecided" if contradicted else alone)


def state(model_ms, train_ms, prepared):
    model, training = (TimedBlock(steps_ms=(ms,)) for ms in (model_ms, train_ms))
    one = Round(
        model=model, reference=model, full=training, drained=training,
        batches_taken_by_full=1, prepared_after_full=0, prepared_after_drained=0,
    )  # fmt: skip
    return SteadyState(rounds=(one,), side="both", prepared=prepared, seconds=1.0)


TRAINED = TrainThroughput(train_examples_per_s=1600.0, cold_examples_per_s=900.0)


def test_the_epochs_stall_allows_for_the_batches_that_validation_gave_time_to_prepare():
    """Of 16 steps 8 may have cost nothing."""
    measured = state(10, 40, prepared=8)
    found = cross_check_from(measured, TRAINED, batch_size=32, mean_batch=32, steps=16)
    assert (found.step_ms, found.low_pct, found.high_pct) == (20, 50, 75)


def test_a_last_batch_that_is_small_leaves_open_how_long_its_step_takes():
    measured = state(10, 40, prepared=0)
    found = cross_check_from(measured, TRAINED, batch_size=32, mean_batch=24, steps=4)
    assert (found.step_ms, found.high_pct) == (15, 50)
    assert found.low_pct == pytest.approx(100 / 3)


def test_a_single_epoch_starts_cold_and_is_no_witness():
    cold = TrainThroughput(train_examples_per_s=9.0, cold_examples_per_s=9.0)
    for trained in (cold, None):
        found = cross_check_from(state(10, 40, 2), trained, batch_size=1, mean_batch=1, steps=9)
        assert found is None
