"""Verdicts only where the measurement bears them, and what `--fail-if` makes of them."""

from __future__ import annotations

import json
import math

import pytest

from whowaits.fail_if import Condition, InvalidCondition
from whowaits.report import make_report, undecided
from whowaits.timing.blocks import Block, Round, Step, Timing
from whowaits.timing.verdict import (
    COMPUTE_BOUND,
    INPUT_BOUND,
    SLIGHTLY_BOUND,
    UNDECIDED,
    Conditions,
    judge,
)
from whowaits.version import __version__


def block(wait_ms, work_ms, steps=20, **step):
    made = Block()
    for _ in range(steps):
        made.add(Step(wait_ms / 1e3, work_ms / 1e3, **step))
    return made


def timing_of(*rounds, rested=True, passive=None):
    """(wait, work, model alone) of each round [ms]."""
    timing = Timing(40.0, passive=passive or block(1, 9))
    timing.seen = timing.passive.steps
    timing.rounds = [
        Round(block(wait, work), block(0, alone), rested) for wait, work, alone in rounds
    ]
    return timing


def verdict_of(*rounds, rested=True, **conditions):
    return judge(timing_of(*rounds, rested=rested), Conditions(**conditions))


@pytest.mark.parametrize(
    ("wait_ms", "cores_ms", "name"),
    [
        (0, 40, UNDECIDED),  # nobody waited, and the input did nothing
        (0, 48, UNDECIDED),  # it worked for half of what is missing
        (0, 60, INPUT_BOUND),
        (20, 40, INPUT_BOUND),
        (0, math.nan, INPUT_BOUND),
    ],
)
def test_a_stall_that_the_input_cannot_have_caused_has_no_verdict(wait_ms, cores_ms, name):
    training, alone = block(wait_ms, 40 - wait_ms), block(0, 20)
    training.cores_s, alone.cores_s = 20 * cores_ms / 1e3, 20 * 40 / 1e3
    timing = timing_of()
    timing.rounds = [Round(training, alone, rested=True)] * 3
    found = judge(timing, Conditions())
    assert found.name == name
    assert ("the machine changed its pace" in found.reason) == (name == UNDECIDED)
    assert judge(timing, Conditions(on_accelerator=True)).name == INPUT_BOUND


@pytest.mark.parametrize(
    ("rounds", "name", "pct"),
    [
        ([(30, 10, 10)] * 3, INPUT_BOUND, 75),
        ([(0, 40, 40)] * 3, COMPUTE_BOUND, 0),
        ([(0, 40, 10)] * 3, INPUT_BOUND, 75),  # the input slows the model without a wait
        ([(7, 33, 33)] * 3, SLIGHTLY_BOUND, 17.5),
        ([(0, 40, 41), (1, 39, 40), (0, 40, 42)], COMPUTE_BOUND, 0),
    ],
)
def test_a_clear_measurement_has_a_verdict(rounds, name, pct):
    found = verdict_of(*rounds)
    assert found.stall
    assert (found.name, found.stall.pct) == (name, pytest.approx(pct, abs=1))
    assert found.stall.low <= found.stall.pct <= found.stall.high


def test_a_model_that_is_slower_alone_is_a_failed_measurement():
    found = verdict_of(*[(0, 40, 65)] * 3)
    assert found.name == UNDECIDED and found.stall is None
    assert "the model alone took 65.00 ms a step, longer than the training" in found.reason


def test_an_interval_across_a_threshold_is_undecided():
    found = verdict_of((2, 38, 38), (12, 28, 28), (20, 20, 20))
    assert found.name == UNDECIDED and "on both sides of" in found.reason


def test_few_rounds_widen_the_interval():
    found = verdict_of((9, 31, 31), synchronous=False)
    assert found.name == UNDECIDED and found.stall
    assert (found.stall.low, found.stall.high) == (pytest.approx(12.5), pytest.approx(32.5))


@pytest.mark.parametrize(
    ("wait", "others", "name"),
    [
        (30, 60.0, INPUT_BOUND),
        (10, 60.0, UNDECIDED),
        (1, 60.0, UNDECIDED),
        (10, 22.0, UNDECIDED),
        (1, 22.0, COMPUTE_BOUND),
    ],
)
def test_on_a_disturbed_machine_a_verdict_needs_more_distance(wait, others, name):
    rounds = [(wait, 40 - wait, 40 - wait)] * 3
    found = verdict_of(*rounds, others_pct=others, others="stress (process 7)")
    assert found.name == name
    if name == UNDECIDED:
        took = f"stress (process 7) took {others:.0f} % of the cores meanwhile"
        assert found.reason == f"{took}, too much for a verdict this near to 15 %"


def test_waits_that_the_model_alone_contradicts_are_a_failed_measurement():
    found = verdict_of(*[(20, 20, 40)] * 3, others_pct=70.0, others="stress (process 7)")
    assert found.name == UNDECIDED and found.stall is None
    assert "stood in `next` for 50 % of its time, but the model alone took 100 %" in found.reason
    assert found.reason.endswith("; stress (process 7) took 70 % of the cores meanwhile")


def test_an_input_that_never_rests_leaves_the_rest_open():
    assert verdict_of(*[(1, 39, 39)] * 3, rested=False).name == UNDECIDED
    assert verdict_of(*[(20, 20, 20)] * 3, rested=False).name == INPUT_BOUND


def test_an_input_that_never_rests_does_not_slow_an_accelerator():
    found = verdict_of(*[(1, 39, 39)] * 3, rested=False, on_accelerator=True, synchronous=False)
    assert found.name == COMPUTE_BOUND


@pytest.mark.parametrize(
    ("wait", "conditions", "name"),
    [
        (40, {}, INPUT_BOUND),
        (2, {}, UNDECIDED),  # on shared cores the input may slow the model without a wait
        (2, {"on_accelerator": True, "synchronous": False}, COMPUTE_BOUND),
        (40, {"on_accelerator": True, "synchronous": False}, UNDECIDED),
        (25, {"others_pct": 50.0}, UNDECIDED),
        (0, {}, UNDECIDED),
    ],
)
def test_waits_alone_decide_what_they_can(wait, conditions, name):
    timing = timing_of(passive=block(wait, 100 - wait))
    found = judge(timing, Conditions(**conditions))
    assert found.name == name
    assert bool(found.reason) == (name == UNDECIDED)


def test_a_handful_of_steps_decides_nothing():
    found = judge(timing_of(passive=block(1, 1, steps=3)), Conditions())
    assert found.name == UNDECIDED and "only 3 steps were seen" in found.reason


def report_of(*rounds, passive=None, **conditions):
    timing, given = timing_of(*rounds, passive=passive), Conditions(**conditions)
    return make_report(
        timing, given, judge(timing, given), script="train.py", training="model.fit at train.py:4"
    )


def test_a_report_reads_as_text_and_as_json():
    report = report_of(*[(30, 10, 10)] * 3)
    assert report.lines[0] == "train.py: input-bound, stall 75 % (75 to 75 %)"
    assert (
        "a step takes 40.00 ms; 75 % of it in `next`, the model alone 10.00 ms" in report.lines[2]
    )
    loaded = json.loads(report.json)
    assert loaded["stall_pct"] == pytest.approx(75) and loaded["verdict"] == INPUT_BOUND
    least = report_of(passive=block(40, 60))
    assert least.lines[0] == "train.py: input-bound, stall at least 40 %"
    assert json.loads(least.json)["stall_high_pct"] is None
    assert least.stall_pct == pytest.approx(40)


def test_an_epoch_that_fills_a_cache_is_told_apart():
    timing = timing_of(*[(0, 20, 20)] * 3)
    timing.epochs = [block(190, 10), block(0, 20, epoch=1)]
    report = make_report(
        timing, Conditions(), judge(timing, Conditions()), script="a.py", training="model.fit"
    )
    assert any(
        "the first epoch took 200.00 ms a step, later ones 20.00 ms" in line
        for line in report.lines
    )


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("stall > 20", 3),
        ("stall > 90", 0),
        ("stall>=75", 3),
        ("stall < 20 %", 0),
        ("step_ms > 30", 3),
        ("model_ms > 30", 0),
        ("gap_ms > 1", 4),
    ],
)
def test_a_condition_is_met_or_not_or_not_decided(text, code):
    assert Condition.parse(text).exit_code(report_of(*[(30, 10, 10)] * 3)) == code


def test_what_is_not_decided_fails_by_another_code():
    condition = Condition.parse("stall > 20")
    assert condition.exit_code(undecided("a.py", "nothing was seen", version=__version__)) == 4
    assert condition.exit_code(report_of((2, 38, 38), (12, 28, 28), (20, 20, 20))) == 4
    assert condition.exit_code(report_of(passive=block(40, 60))) == 3
    assert Condition.parse("stall > 50").exit_code(report_of(passive=block(40, 60))) == 4
    assert Condition.parse("stall < 20").exit_code(report_of(passive=block(40, 60))) == 0


def test_what_is_undecided_meets_no_condition():
    for code, given in (
        (4, {"others_pct": 60.0, "others": "stress (process 7)"}),
        (4, {"fills_cache": True}),
        (3, {}),
    ):
        report = report_of(passive=block(25, 75), **given)
        assert (report.verdict == UNDECIDED) == (code == 4)
        assert Condition.parse("stall > 20").exit_code(report) == code


@pytest.mark.parametrize("text", ["stall", "stall > x", "stal > 3", "stall == 3", "stall > 1.2.3"])
def test_a_condition_that_is_none_is_refused(text):
    with pytest.raises(InvalidCondition, match="--fail-if"):
        Condition.parse(text)
