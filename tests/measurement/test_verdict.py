"""A verdict is given only where the race bears it and no other figure contradicts."""

from __future__ import annotations

import pytest

from tests.support.races import exactly
from throughline.measurement.verdict import OtherFigures, Stall, judge
from throughline.results.base import Estimate


def stall(low: float, high: float) -> Stall:
    return Stall(pct=(low + high) / 2, low_pct=low, high_pct=high)


@pytest.mark.parametrize(
    ("low", "high", "on_shared_cores", "on_accelerator"),
    [
        (0, 4, "compute-bound", "compute-bound"),
        (6, 12, "compute-bound", "slightly input-bound"),
        (0, 11, "compute-bound", "slightly input-bound"),
        (16, 19, "slightly input-bound", "slightly input-bound"),
        (9, 21, "undecided", "slightly input-bound"),
        (14, 26, "undecided", "undecided"),
        (16, 24, "input-bound", "input-bound"),
        (40, 90, "input-bound", "input-bound"),
    ],
)
def test_the_verdict_of_an_interval(low, high, on_shared_cores, on_accelerator):
    given = stall(low, high)
    assert judge(given, "", on_accelerator=False).name == on_shared_cores
    assert judge(given, "", on_accelerator=True).name == on_accelerator


def test_what_is_undecided_says_why_and_what_to_do():
    open_one = judge(stall(8, 30), "", on_accelerator=False)
    assert open_one.cause == "the stall lies anywhere from 8 to 30 %, on both sides of 15 %"
    assert "measure.seconds" in open_one.fix
    odd = judge(stall(60, 62), "the race trained 9, its epochs 3", on_accelerator=False)
    assert (odd.name, odd.cause) == ("undecided", "the race trained 9, its epochs 3")


def test_a_stall_is_what_training_loses_against_its_model_alone():
    lost = Stall.of(Estimate(value=0.25, low=0.2, high=0.3, rounds=9))
    assert (lost.low_pct, lost.pct, lost.high_pct) == pytest.approx((70, 75, 80))
    faster = Stall.of(Estimate(value=1.01, low=0.97, high=1.05, rounds=9))
    assert (faster.low_pct, faster.pct, faster.high_pct) == pytest.approx((0, 0, 3))


FIGURES = {"gain": exactly(0.5), "input": exactly(400.0), "epochs": 100.0, "epoch_s": 30.0,
           "warm_steps": 200,
           "drift": 1.0, "disturbed": False}  # fmt: skip


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ({}, ""),
        ({"input": None, "epochs": None}, ""),
        ({"gain": exactly(1.03)}, ""),
        ({"gain": exactly(1.06)}, "trained 100 examples/s, its model alone 94"),
        ({"input": exactly(90.0)}, ""),
        ({"input": exactly(80.0)}, "trained 100 examples/s, its input alone made 80"),
        ({"epochs": 90.0}, ""),
        ({"epochs": 85.0}, "trained 100 examples/s, its epochs 85"),
        ({"epochs": 85.0, "warm_steps": 19}, ""),
        ({"epochs": 85.0, "epoch_s": 3.0}, ""),
        ({"epochs": 75.0, "epoch_s": 3.0}, "trained 100 examples/s, its epochs 75"),
        ({"epochs": 85.0, "drift": 1.1}, ""),
        ({"epochs": 120.0}, "trained 100 examples/s, its epochs 120"),
        ({"epochs": 120.0, "disturbed": True}, ""),
    ],
)
def test_other_figures_contradict_a_rate_beyond_noise_and_drift(figures, said):
    contradiction = OtherFigures(**{**FIGURES, **figures}).contradict(exactly(100.0))
    assert contradiction == (said and f"the race {said}")
