"""Planted faults: each configuration's fault is named, its fix is a valid change, and what cannot
be repaired is not promised.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest

from tests.support.facts import (
    BATCH,
    IDLE_GPU,
    PHOTO_COSTS,
    STRAGGLING,
    TEXT,
    TINY,
    TINY_COSTS,
    UNEVEN,
    WELL,
    facts_of,
    model_step_of,
)
from throughline.diagnosis.cost_model import (
    HostLoad,
    ModelStepCost,
    OpCost,
    OverlappedWork,
    predict_step_ms,
)
from throughline.diagnosis.diagnose import Finding, attainable_rate, diagnose, rank_findings
from throughline.diagnosis.threshold import parse_threshold
from throughline.measurement.verdict import Stall
from throughline.results.profiling import METRICS
from throughline.shared.errors import InvalidParams, ThresholdExceeded

pytestmark = pytest.mark.integration


def judged(config: dict, *, model_ms: float = 10.0, on_accelerator: bool = True, **known):
    """The diagnosis of a configuration whose step takes exactly what the cost model says."""
    facts = facts_of(config, model_ms=model_ms, on_accelerator=on_accelerator, **known)
    step = model_step_of(model_ms, on_accelerator=on_accelerator)
    return diagnose("p", facts, step, model_examples_per_s=BATCH / model_ms * 1e3)


STORED = {"read": "snapshot", "shuffle": {"kind": "global"}}
FIRST = [
    ("sequential_map", {**WELL, "map": {}}, {"model_ms": 30.0}),
    ("no_prefetch", STORED, {"model_ms": 4.0}),
    ("costly_calls", {**WELL, "map": {}}, {"spec": TINY, "costs": TINY_COSTS, "model_ms": 0.4}),
    ("costly_calls", {**WELL}, {"spec": TINY, "costs": TINY_COSTS, "model_ms": 0.2}),
    ("repeated_work", WELL, {"model_ms": 2.0}),
    ("sequential_map", {**STORED, "prefetch": 2}, {"model_ms": 1.5}),
    ("host_widening", {**STORED, "map": {"parallel": "cores"}, "prefetch": 2}, {"model_ms": 0.6}),
]


@pytest.mark.parametrize(("rule", "config", "conditions"), FIRST)
def test_a_planted_fault_is_named_first(rule, config, conditions):
    diagnosis = judged(config, **conditions)
    gains = [(finding.rule, finding.predicted_gain) for finding in diagnosis.findings]
    assert "input-bound" in diagnosis.verdict
    assert gains[0][0] == rule, gains
    assert diagnosis.predicted_gain > 1.05


def test_a_service_that_costs_more_than_it_brings_is_named_first():
    here = judged({**WELL, "service": {"workers": 2}}, spec=TINY, costs=TINY_COSTS, model_ms=5.0)
    assert (here.findings[0].rule, here.fix) == ("service_on_one_host", "service: null")
    assert here.predicted_gain == pytest.approx(2, rel=0.1), "against the measured step"


def test_where_input_is_not_the_bottleneck_nothing_of_it_is_to_be_tuned():
    diagnosis = judged(WELL, model_ms=200.0)
    assert diagnosis.verdict == "compute-bound"
    assert diagnosis.cause == "none in the input"
    assert diagnosis.fix.startswith("stop tuning the input")


@pytest.mark.parametrize(
    ("on_accelerator", "cause", "fix"),
    [
        (True, "no rule explains it", "look at"),
        (False, "input and model compete for the same cores", "no change of this configuration"),
    ],
)
def test_where_input_costs_and_no_rule_holds_nobody_is_told_to_stop_looking(
    on_accelerator, cause, fix
):
    well_read = {**STORED, "map": {"parallel": "cores"}, "prefetch": 2, "postprocess_on": "device"}
    stall = Stall(pct=60.0, low_pct=58.0, high_pct=62.0)
    diagnosis = judged(well_read, train_step_ms=25.0, stall=stall, on_accelerator=on_accelerator)
    assert diagnosis.verdict == "input-bound" and not diagnosis.predicted_gain
    assert diagnosis.cause == cause and diagnosis.fix.startswith(fix)


def test_what_is_no_step_of_the_input_is_not_blamed_on_one():
    idle = replace(IDLE_GPU, iterators=(STRAGGLING,))
    diagnosis = judged(WELL, gpu_utilization_pct=40.0, breakdown=idle, model_ms=100.0)
    assert find(diagnosis, "gpu_idle").step == "train.steps_per_execution"


def find(diagnosis, rule: str) -> Finding:
    """The finding of a rule."""
    return next(each for each in diagnosis.findings if each.rule == rule)


def test_what_the_cost_model_does_not_see_gains_nothing_known():
    starved = judged({**WELL, "threads": 1}, model_ms=2.0)
    gain = find(starved, "few_threads").predicted_gain
    assert gain == pytest.approx(4, rel=0.1), "four cores instead of one thread"
    uneven = judged({**WELL, "map": {"parallel": 64}}, model_ms=2.0, breakdown=UNEVEN)
    for rule in ("too_parallel", "variable_cost"):
        assert find(uneven, rule).predicted_gain is None
    assert find(uneven, "variable_cost").effort == "results", "no two runs are alike without order"


def test_no_gain_is_larger_than_the_model_allows():
    gap = judged(WELL, model_ms=2.0, epoch_gap_ms=3000.0, epoch_ms=2990.0)
    assert find(gap, "epoch_gap").predicted_gain <= gap.stall_pct / (100 - gap.stall_pct) + 1.001


def test_padding_is_work_of_the_model_and_of_nothing_else():
    known = {"padding_pct": 80.0, "padding_pct_in_buckets": 50.0, "spec": TEXT}
    bound = judged(WELL, model_ms=500.0, **known)
    assert find(bound, "padding").predicted_gain == pytest.approx(2.5, rel=0.01), (
        "20 tokens of 100 instead of 50 of 100 are work that counts"
    )
    slow = {**PHOTO_COSTS.ops, "tokenize": OpCost(example_us=1500, batch_us=None)}
    starved = judged(WELL, model_ms=4.0, costs=replace(PHOTO_COSTS, ops=slow), **known)
    assert (find(starved, "padding").predicted_gain or 1.0) < 1.05, "the input is waited for"


def test_a_change_is_one_that_params_yaml_takes():
    part = {**STORED, "snapshot": {"fraction": 0.3}}
    more = find(judged(part, model_ms=2.0, stored_fraction=0.3), "repeated_work")
    assert more.change == {"pipelines.p.snapshot": {"fraction": 1.0}, "snapshot.fraction": "auto"}
    whole = find(judged(WELL, model_ms=2.0, stored_fraction=0.3), "repeated_work")
    assert whole.change["snapshot.fraction"] == "auto" and "pipelines.p.read" in whole.change
    assert "snapshot.fraction" not in find(judged(WELL, model_ms=2.0), "repeated_work").change
    few = judged({**WELL, "interleave": {"cycle_length": 32, "parallel": "cores"}}, shard_count=16)
    assert find(few, "few_shards").change == {"shard.min_shards": 32}


def test_a_prediction_of_a_step_that_cannot_be_as_short_as_it_was_is_not_trusted():
    assert judged({**WELL, "map": {}}, model_ms=30.0).findings[0].confidence == "high"
    fast = judged({**WELL, "map": {}}, model_ms=2.0, train_step_ms=30.0)
    assert find(fast, "sequential_map").confidence == "low"


def finding(rule: str, effort: str, gain: float | None) -> Finding:
    return Finding(
        rule=rule, step="", params_key="", evidence="", cause="", fix="", change={}, effort=effort,
        predicted_gain=gain, confidence=""
    )  # fmt: skip


def test_of_changes_that_gain_alike_the_smallest_comes_first_and_what_gains_nothing_known_last():
    gains = {"unknown": None, "little": 1.2, "disk": 2.04, "setting": 2.0}
    efforts = {"disk": "disk"}
    found = [finding(name, efforts.get(name, "setting"), gain) for name, gain in gains.items()]
    assert [one.rule for one in rank_findings(found)] == ["setting", "disk", "little", "unknown"]


def test_ceilings_add_up_where_the_cores_are_shared():
    assert attainable_rate(300.0, 600.0, on_accelerator=True) == 300
    assert attainable_rate(300.0, 600.0, on_accelerator=False) == pytest.approx(200)


STEP = ModelStepCost(step_ms=10, core_ms=10, on_accelerator=True)
QUEUED = replace(STEP, held_ms=4)  # the call returns, the GPU works on
FOUR_THREADS = HostLoad(overlapped=(OverlappedWork(work_ms=60, threads=4),))
THREE_MAPS = HostLoad(overlapped=(OverlappedWork(work_ms=20, threads=1),) * 3)


@pytest.mark.parametrize(
    ("load", "model_step", "cores", "predicted_ms"),
    [
        (HostLoad(serial_ms=5), STEP, 4, 15),  # on the training's own thread it adds
        (HostLoad(serial_ms=5), QUEUED, 4, 10),  # a GPU works meanwhile
        (HostLoad(serial_ms=25), QUEUED, 4, 29),
        (HostLoad(serial_ms=5).overlap(1), STEP, 4, 10),  # after a prefetch it hides
        (HostLoad(serial_ms=25).overlap(1), STEP, 4, 25),  # as long as it is the shorter
        (FOUR_THREADS, STEP, 4, 15),  # several threads share it
        (THREE_MAPS, STEP, 2, 30),  # as far as there are cores
        (replace(FOUR_THREADS, serial_ms=20), QUEUED, 2, 40),  # for all of the input
        (FOUR_THREADS, replace(STEP, on_accelerator=False), 4, 25),  # the model wants cores, too
    ],
)
def test_the_cost_model_of_a_step(load, model_step, cores, predicted_ms):
    assert predict_step_ms(load, model_step, cores) == pytest.approx(predicted_ms)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("stall_pct > 10", ThresholdExceeded),
        ("stall_pct > 90", None),
        ("verdict == input-bound", ThresholdExceeded),
        ("gpu_busy_ms < 3", ThresholdExceeded),
        ("wait_pct > 10", ThresholdExceeded),
        ("wait_pct < 10", ThresholdExceeded),
        ("stal_pct > 10", InvalidParams),
        ("stall_pct > many", InvalidParams),
        ("stall_pct > nan", InvalidParams),
        ("processes > 1", InvalidParams),
    ],
)
def test_conditions(text, expected):
    measured = {"stall_pct": 52.5, "verdict": "input-bound"}
    figures = {**measured, "gpu_busy_ms": None, "wait_pct": float("nan")}
    with pytest.raises(expected) if expected else nullcontext():
        parse_threshold(text, METRICS).check(figures)


def test_a_healthy_configuration_has_nothing_to_gain_and_a_verdict_is_one_of_four():
    parse_threshold("predicted_gain > 1.1", METRICS).check({"predicted_gain": None})
    with pytest.raises(InvalidParams, match="input_bound is not a verdict; did you mean input-bo"):
        parse_threshold("verdict == input_bound", METRICS).check({"verdict": "compute-bound"})
    with pytest.raises(InvalidParams, match="such as 'stall_pct > 10'"):
        parse_threshold("stall_pct", METRICS)
