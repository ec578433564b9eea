"""From the rounds of a race to verdict, cause and fix, and what a configuration's figures are."""

from contextlib import nullcontext
from dataclasses import replace

import pytest

from tests.support.made_up import made_up
from tests.support.project import SMALL
from tests.support.races import exactly, raced, rounds
from throughline.config.params import check
from throughline.diagnosis.threshold import parse_threshold
from throughline.race.configurations import ConfigurationRace, Measured, Starter
from throughline.race.judging import (
    Subject,
    judge_by_epochs,
    judge_race,
    judge_raced,
    rank_findings,
)
from throughline.results.profiling import Finding
from throughline.results.race import CHANGES, INPUTS, METRICS, OWN
from throughline.results.train import StepTimes, TrainResult, TrainThroughput
from throughline.settings import PipelineConfig, TrainSettings
from throughline.shared.errors import InvalidParams, ThresholdExceeded

MODEL = "model alone of naive"


def finding(rule: str, effort: str = "setting", gain: float | None = None, **more) -> Finding:
    return Finding(
        rule=rule, step="map", params_key="", evidence="9 ms", cause="slow", fix=f"fix {rule}",
        change={}, effort=effort, gain=gain and exactly(gain), **more
    )  # fmt: skip


def subject(*findings: Finding, warm: float | None = 50.0, processes: int = 1) -> Subject:
    """One whose warm epochs trained at a rate, in 100 steps of 2 s."""
    trained = replace(
        made_up(TrainResult),
        throughput=warm
        and TrainThroughput(train_examples_per_s=warm, cold_examples_per_s=warm - 9),
        step=StepTimes(ms_p50=2000.0, ms_p95=2000.0, ms_p99=2000.0, count=100),
        processes=processes,
    )
    given = {"name": "naive", "settings": TrainSettings(), "examples": 6400, "steps": 100}
    return Subject(findings=findings, trained=trained, **given)


def measured(rate: float, *, changed: float = 0.0, fed: float = 400.0) -> Measured:
    """Five rounds of a configuration whose model alone trains 100 examples/s."""
    own = rounds({"naive": [rate] * 5, MODEL: [100.0] * 5}, phase=OWN)
    tried = rounds({"naive": [rate] * 5, "naive + a": [changed] * 5}, phase=CHANGES)
    slower = {MODEL: [50.0] * 3, "naive": [fed / 2] * 3}  # so was the machine in this phase
    inputs = rounds(slower, phase=INPUTS)
    phases = [*own, *(tried if changed else []), *inputs]
    return Measured(rounds=phases, models={"naive": MODEL}, changes={("naive", "a"): "naive + a"})


CAN = {"config": {"read": "shards"}}


def test_what_has_gained_is_cause_and_fix():
    found = [finding("b", untried="it changes the examples"), finding("a", **CAN)]
    result = judge_raced(subject(*found), measured(50.0, changed=150.0), on_accelerator=False)
    assert (result.verdict, result.fix) == ("input-bound", "fix a")
    assert result.cause == "map: slow (9 ms)"
    assert result.gain == pytest.approx(3.0)
    assert [each.rule for each in result.findings] == ["a", "b"]
    assert result.stall_pct == pytest.approx(50)
    assert (result.training.value, result.model_alone.value) == pytest.approx((50, 100))
    assert result.input and result.input.value == pytest.approx(400)


@pytest.mark.parametrize(
    ("on_accelerator", "cause", "fix"),
    [
        (True, "no rule explains it", "look at"),
        (False, "input and model compete for the same cores", "no change to this config"),
    ],
)
def test_where_input_costs_and_nothing_helps_nobody_is_told_to_stop_looking(
    on_accelerator, cause, fix
):
    one = subject(finding("a", **CAN))
    result = judge_raced(one, measured(50.0, changed=51.0), on_accelerator=on_accelerator)
    assert result.verdict == "input-bound" and result.gain is None
    assert result.cause == cause and result.fix.startswith(fix)


def test_where_input_is_not_the_bottleneck_nothing_of_it_is_to_be_tuned():
    result = judge_raced(subject(finding("a", **CAN), warm=98.0), measured(98.0),
                         on_accelerator=True)  # fmt: skip
    assert (result.verdict, result.cause) == ("compute-bound", "none in the input")
    assert result.fix.startswith("stop tuning the input")
    faster = judge_raced(subject(warm=101.0), measured(101.0), on_accelerator=True)
    assert (faster.verdict, faster.stall_pct, faster.stall_pct_low) == ("compute-bound", 0.0, 0.0)
    idle = subject(finding("gpu_idle", untried="it is of training"), warm=98.0)
    assert judge_raced(idle, measured(98.0), on_accelerator=True).fix == "fix gpu_idle"


def test_a_change_that_was_lost_or_not_needed_says_so():
    lost = measured(50.0)
    lost.lost["naive + a"] = "was killed by SIGKILL"
    (said,) = judge_raced(subject(finding("a", **CAN)), lost, on_accelerator=False).findings
    assert (said.gain, said.untried) == (None, "was killed by SIGKILL")
    unneeded = replace(measured(50.0), changes={})
    (said,) = judge_raced(subject(finding("a", **CAN)), unneeded, on_accelerator=False).findings
    assert said.untried == "it is not certain that the input limits training"


def test_one_that_was_judged_before_it_was_lost_is_not_among_the_lost(tmp_path):
    starters = dict.fromkeys(["naive", "late"], Starter(config=PipelineConfig(), plan="a"))
    racing = ConfigurationRace(check(SMALL), starters, root=tmp_path, folder=tmp_path)
    racing.measured = measured(50.0)
    racing.measured.models["late"] = MODEL
    racing.measured.lost = dict.fromkeys(starters, "was killed by SIGKILL")
    result = judge_race(racing, [subject(), replace(subject(), name="late")], machine={})
    assert ([*result.configurations], [*result.lost]) == (["naive"], ["late"])


def test_a_race_that_its_epochs_contradict_decides_nothing():
    result = judge_raced(subject(warm=20.0), measured(50.0), on_accelerator=False)
    assert result.verdict == "undecided"
    said = "training ran at 50 examples/s in the race, but its own epochs at 20"
    assert result.contradiction == said
    several = subject(warm=20.0, processes=2)  # whose epochs hold what they exchange
    assert judge_raced(several, measured(50.0), on_accelerator=False).verdict == "input-bound"
    assert judge_raced(several, measured(50.0), on_accelerator=False).exchange_ms == (
        pytest.approx(2000 - 64 / 50 * 1000)
    )


def test_a_service_that_does_not_stand_still_is_measured_by_its_epochs():
    race = replace(measured(50.0), rounds=rounds({MODEL: [100.0] * 5}, phase=OWN))
    result = judge_by_epochs(subject(warm=40.0), race, on_accelerator=False, why="by its epochs")
    assert result and (result.verdict, result.note) == ("input-bound", "by its epochs")
    assert result.training.value == 40 and result.stall_pct == pytest.approx(60)
    assert judge_by_epochs(subject(warm=None), race, on_accelerator=False, why="") is None


def test_of_changes_that_gain_alike_the_smallest_comes_first_and_what_was_not_tried_last():
    gains = {"untried": None, "little": 1.2, "stored": 2.04, "set": 2.0}
    found = [finding(name, "disk" if name == "stored" else "setting", gains[name])
             for name in gains]  # fmt: skip
    assert [one.rule for one in rank_findings(found)] == ["set", "stored", "little", "untried"]


def test_every_figure_that_can_be_asked_for_is_there():
    assert set(raced().figures) == set(METRICS)


@pytest.mark.parametrize(
    ("verdict", "gains", "gain", "figure"),
    [
        ("input-bound", [3.0], 3.0, 3.0),
        ("undecided", [3.0, None], 3.0, 3.0),
        ("input-bound", [None, 1.01], None, 1.0),
        ("input-bound", [], None, 1.0),
        ("compute-bound", [None], None, 1.0),
        ("input-bound", [None], None, None),
        ("undecided", [None], None, None),
    ],
)
def test_a_gain_is_measured_or_there_is_nothing_to_gain(verdict, gains, gain, figure):
    found = tuple(finding("a", gain=each) for each in gains)
    assert raced(50.0, 50.0, verdict, findings=found, gain=gain).figures["gain"] == figure


@pytest.mark.parametrize(
    ("text", "expected", "said"),
    [
        ("stall_pct > 10", ThresholdExceeded, None),
        ("stall_pct > 90", None, None),
        ("verdict == input-bound", ThresholdExceeded, None),
        ("first_batch_s < 3", ThresholdExceeded, None),
        ("exchange_ms > 10", ThresholdExceeded, None),
        ("stal_pct > 10", InvalidParams, None),
        ("stall_pct > many", InvalidParams, None),
        ("stall_pct > nan", InvalidParams, None),
        ("findings > 1", InvalidParams, None),
        ("gain > 1.1", None, None),
        ("verdict == input_bound", InvalidParams, "not a verdict; did you mean input-bound"),
        ("stall_pct", InvalidParams, "such as 'stall_pct > 10'"),
    ],
)
def test_conditions(text, expected, said):
    one = raced(50.0, 52.5, "input-bound", first_batch_s=None, exchange_ms=float("nan"))
    with pytest.raises(expected, match=said) if expected else nullcontext():
        parse_threshold(text, METRICS).check(one.figures)
