"""Rounds of a race as numbers, the verdict on a stall, errors of means, and spikes of a loss."""

import math

import numpy as np
import pytest

from tests.support.races import exactly, race, rounds
from throughline.measurement.baseline import standard_error_in_time, standard_error_of_mean
from throughline.measurement.rounds import Race
from throughline.measurement.spikes import find_spikes
from throughline.measurement.verdict import Stall, find_contradiction, judge
from throughline.results.base import Estimate
from throughline.results.race import Cost, Round, Turn

DRIFTING = [100.0, 50.0, 200.0, 80.0, 120.0]


@pytest.mark.parametrize(
    ("a", "b", "ratio", "met", "below_one"),
    [
        ([2 * rate for rate in DRIFTING], DRIFTING, 0.5, 5, True),  # drift hits both
        ([None, 200.0, 200.0, 200.0], [1.0, 100.0, 100.0, 100.0], 0.5, 3, True),
        ([200.0, 200.0], [100.0, 100.0], 0.5, 2, False),  # which decides nothing
        ([100.0, None], [None, 100.0], math.nan, 0, False),
    ],
)
def test_a_ratio_is_that_of_the_rounds_that_both_took_part_in(a, b, ratio, met, below_one):
    found = race({"a": a, "b": b}).ratio("a", "b")
    assert found.value == pytest.approx(ratio, nan_ok=True)
    assert (found.rounds, found.below_one, found.above_one) == (met, below_one, False)
    if below_one:
        assert (found.low, found.high) == pytest.approx((ratio, ratio)), "nothing blurs it"


def test_who_is_left_out_is_compared_by_its_pace_relative_to_the_one_in_all_rounds():
    slow, fast = [100.0, 90.0, 110.0], [200.0, 210.0, 190.0]  # the machine itself
    rates = {"a": [50.0, 45.0, 55.0], "model": [*slow, *fast], "b": [80.0, 72.0, 88.0, *fast]}
    one = race({**rates, "a": [*rates["a"], None, None, None]})
    assert one.reference == "model"
    assert one.speed("a").value == pytest.approx(0.5 * 150) and one.speed("model").value == 150
    assert one.gain("b", "a").value == pytest.approx(one.speed("b").value / one.speed("a").value)
    assert one.gain("b", "a").rounds == 3 and one.gain("b", "model").rounds == 6
    assert one.gain("a", "model").high == pytest.approx(0.5), "the machine's pace does not blur it"
    assert one.seconds("a").value == pytest.approx(10 * 1000 / one.speed("a").value)
    assert one.seconds("a").rounds == 3


def test_a_training_is_preparation_first_epoch_and_the_rest():
    cost = Cost(prepare_s=7.0, fill_s=30.0)
    assert cost.total_s(100.0, examples=1000, epochs=4) == 7 + 30 + 3 * 10
    assert cost.total_s(10.0, examples=1000, epochs=1) == 7 + 100, "an epoch takes longer anyway"
    rates, costs = {"stored": [1000.0] * 5, "stream": [500.0] * 5}, {"stored": Cost(prepare_s=5.0)}
    of = {epochs: race(rates, costs=costs, epochs=epochs) for epochs in (1, 20)}
    assert [of[epochs].fastest([*rates]) for epochs in of] == ["stream", "stored"]


def test_a_turn_in_which_an_epoch_begins_belongs_to_the_rate():
    turns = [Turn(examples=100.0, seconds=0.5)] * 4 + [Turn(examples=100.0, seconds=2.0)]
    calls = [Round(phase="a", turns={"a": turn}, others_pct=0.0, busiest="") for turn in turns]
    assert Race(rounds=calls, costs={}, examples=1, epochs=1).speed("a").value == 500 / 4


def test_who_is_certainly_beaten_leaves_and_at_most_so_many_stay():
    rates = {"slow": [50.0] * 5, "noisy": [100.0, 130.0, 100.0, 130.0, 110.0]}
    rates |= {"best": [200.0] * 5, "second": [198.0, 202.0, 197.0, 203.0, 199.0]}
    one, best, three = race(rates), ["best", "second"], ["noisy", "best", "second"]
    assert one.survivors(one.names, most=9) == best
    assert one.survivors(one.names, most=9, compared=1000) == three
    wide = race({**rates, "noisy": [100.0, 300.0, 100.0, 300.0, 150.0]})
    assert [wide.survivors(wide.names, most=most) for most in (9, 2)] == [three, best]


def test_a_race_is_disturbed_where_most_of_its_rounds_are():
    for disturbed in (2, 3):
        calls = rounds({"a": [1.0] * disturbed}, others=40.0, busiest="make (process 7)")
        calls += rounds({"a": [1.0] * (5 - disturbed)}, others=5.0)
        reason = Race(rounds=calls, costs={}, examples=1, epochs=1).disturbed_by()
        said = "make (process 7) used 40 % of the cores in 3 of 5 rounds"
        assert reason == (said if disturbed == 3 else None)


def test_95_of_100_intervals_hold_the_truth_however_few_rounds_there_are():
    draw, held = np.random.default_rng(0), {3: 0, 5: 0, 15: 0}
    for rounds_each in held:
        for _ in range(300):
            noise = np.exp(draw.normal(scale=0.1, size=(2, rounds_each)))
            ratio = race({"a": [*(100 * noise[0])], "b": [*(50 * noise[1])]}).ratio("a", "b")
            held[rounds_each] += ratio.low <= 0.5 <= ratio.high
    assert all(0.92 <= count / 300 <= 0.985 for count in held.values()), held


def stall(low: float, high: float) -> Stall:
    return Stall(pct=(low + high) / 2, low_pct=low, high_pct=high)


@pytest.mark.parametrize(
    ("low", "high", "on_shared_cores", "on_accelerator"),
    [
        (0, 4, "compute-bound", "compute-bound"),
        (6, 12, "compute-bound", "slightly input-bound"),
        (-3, 11, "compute-bound", "undecided"),
        (16, 19, "slightly input-bound", "slightly input-bound"),
        (9, 21, "undecided", "slightly input-bound"),
        (14, 26, "undecided", "undecided"),
        (16, 24, "input-bound", "input-bound"),
    ],
)
def test_the_verdict_of_an_interval(low, high, on_shared_cores, on_accelerator):
    for on, name in ((False, on_shared_cores), (True, on_accelerator)):
        assert judge(stall(low, high), "", on_accelerator=on).name == name


def test_what_is_undecided_says_why_and_what_to_do():
    verdict = judge(stall(8, 30), "", on_accelerator=False)
    assert verdict.cause == "the stall lies anywhere from 8 to 30 %, on both sides of 15 %"
    assert "measure.seconds" in verdict.fix
    never_negative = judge(stall(-3, 11), "", on_accelerator=True).cause
    assert never_negative.startswith("the stall lies anywhere from 0 to 11 %")
    odd = judge(stall(60, 62), "the race trained 9, its epochs 3", on_accelerator=False)
    assert (odd.name, odd.cause) == ("undecided", "the race trained 9, its epochs 3")


def test_a_stall_is_what_training_loses_against_its_model_alone():
    lost = Stall.of(Estimate(value=0.25, low=0.2, high=0.3, rounds=9))
    assert (lost.low_pct, lost.pct, lost.high_pct) == pytest.approx((70, 75, 80))
    faster = Stall.of(Estimate(value=1.01, low=0.97, high=1.05, rounds=9))
    assert (faster.low_pct, faster.pct, faster.high_pct) == pytest.approx((-5, -1, 3))


FIGURES = {"gain": exactly(0.5), "fed": exactly(400.0), "epochs": 100.0, "epoch_s": 30.0,
           "drift": 1.0, "disturbed": False}  # fmt: skip


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ({}, ""),
        ({"fed": None, "epochs": None}, ""),
        ({"gain": exactly(1.03)}, ""),
        ({"gain": exactly(1.06)}, "its model alone at 94"),
        ({"fed": exactly(90.0)}, ""),
        ({"fed": exactly(80.0)}, "its input alone at 80"),
        ({"epochs": 90.0}, ""),
        ({"epochs": 85.0}, "its own epochs at 85"),
        ({"epochs": 85.0, "epoch_s": 3.0}, ""),
        ({"epochs": 75.0, "epoch_s": 3.0}, "its own epochs at 75"),
        ({"epochs": 85.0, "drift": 1.1}, ""),
        ({"epochs": 120.0}, "its own epochs at 120"),
        ({"epochs": 120.0, "disturbed": True}, ""),
    ],
)
def test_other_figures_contradict_a_rate_beyond_noise_and_drift(figures, said):
    contradiction = find_contradiction(exactly(100.0), **{**FIGURES, **figures})
    assert contradiction == (said and f"training ran at 100 examples/s in the race, but {said}")


STEPS, SERIES = 4000, 200


@pytest.mark.parametrize("memory", [0.0, 0.98])
def test_the_error_of_a_series_is_the_spread_of_means_over_many_such_series(memory):
    """Each value is `memory` of the one before and noise; with independent values the error would
    be said ten times too small at 0.98.
    """
    draw = np.random.default_rng(0)
    values = np.zeros((SERIES, STEPS + 500))
    for step in range(1, STEPS + 500):
        values[:, step] = memory * values[:, step - 1] + draw.normal(size=SERIES)
    values = values[:, 500:]
    said = np.median([standard_error_in_time(one) for one in values])
    assert said == pytest.approx(values.mean(axis=1).std(), rel=0.25)


def test_few_distances_that_agree_are_no_certainty_and_what_swings_counts_as_independent():
    assert [standard_error_of_mean(np.full(count, 2.0)) for count in (1, 2)] == [2.0, 1.0]
    many = np.random.default_rng(0).random(10_000)
    assert standard_error_of_mean(many) == many.std() / 100
    assert standard_error_in_time(np.full(9, 2.5)) == standard_error_in_time(np.zeros(1)) == 0
    assert standard_error_in_time(np.resize([1.0, -1.0], 100)) == pytest.approx(0.1)


def fall(steps=400):
    """Losses that fall from 2.5 to 0.02, and vary with their height."""
    usual = 2.5 * np.exp(-np.arange(steps) / 80) + 0.02
    return usual * np.random.default_rng(5).uniform(0.9, 1.1, steps)


def spikes(losses, most):
    return [spike.step for spike in find_spikes(losses, most=most)]


def test_spikes_stand_out_from_the_steps_around_them_wherever_they_are():
    losses = fall()
    losses[60] += 1.0
    losses[350] += 0.5
    losses[351] += 0.4  # of the same spike
    assert {*spikes(losses, 2)} == {60, 350} and spikes(losses[:300], 1) == [60]
    (first,) = find_spikes(losses[300:], most=1)
    assert (first.step, first.loss) == (50, losses[350]) and 0.02 < first.usual < 0.1
    losses[[200, 300]] = np.nan
    assert spikes(losses, 3)[:2] == [200, 300], "what is no number comes first"
    assert find_spikes(np.full(9, np.nan)) == find_spikes([]) == []


def test_a_trifle_among_losses_of_nearly_0_is_less_than_a_batch_that_was_not_learned():
    losses = fall() * 1e-6
    losses[:100] = np.random.default_rng(6).uniform(0.9, 1.1, 100)
    losses[300] += 1e-4  # a hundred times what is usual there
    losses[50] += 1.0
    assert spikes(losses, 1) == [50]
