"""Planted faults: each configuration's fault is named, its fix is a valid change, and what cannot
be repaired is not promised.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tasks.data.records import RecordSchema
from tasks.diagnosis import rules
from tasks.diagnosis.cost_model import Consumer, Costs, Load, OpCost, Segment, load_of, step_ms
from tasks.diagnosis.diagnose import Ceilings, Finding, changed, diagnose, rank_findings
from tasks.diagnosis.facts import Facts
from tasks.diagnosis.rules import RULES
from tasks.diagnosis.threshold import parse_threshold
from tasks.diagnosis.trace_breakdown import Breakdown, IteratorTime
from tasks.errors import InvalidParams, ThresholdExceeded
from tasks.measurement.verdict import Stall
from tasks.pipelines.ops import Decode, Flip, Rescale, Resize
from tasks.pipelines.plan import make_plan
from tasks.pipelines.spec import InputSpec
from tasks.settings import PipelineConfig

CORES, BATCH = 4, 64
PHOTOS = InputSpec(
    schema=RecordSchema(payload="encoded", shape=None, channels=3, dtype="uint8"),
    preprocess=(Decode(), Resize(height=224, width=224)),
    augment=(Flip(),),
    postprocess=(Rescale(),),
    batch_size=BATCH,
)
TINY = replace(
    PHOTOS,
    schema=RecordSchema(payload="raw", shape=(28, 28, 1), channels=1, dtype="uint8"),
    preprocess=(Decode(),),
)
PHOTO_COSTS = Costs(
    call_us=20,
    stack_us=5,
    read_us={"shards": 10, "gzip_shards": 300, "files": 30, "snapshot": 8},
    ops={
        "parse": OpCost(example_us=5, batch_us=1),
        "decode": OpCost(example_us=900, batch_us=None),
        "resize": OpCost(example_us=300, batch_us=280),
        "flip": OpCost(example_us=20, batch_us=15),
        "rescale": OpCost(example_us=30, batch_us=30),
    },
)
TINY_COSTS = Costs(
    call_us=20,
    stack_us=0.3,
    read_us={"shards": 1, "gzip_shards": 40, "snapshot": 0.5},
    ops={
        name: OpCost(example_us=1, batch_us=0.5) for name in ("parse", "decode", "flip", "rescale")
    },
)


def judged(
    config: dict,
    *,
    spec: InputSpec = PHOTOS,
    costs: Costs = PHOTO_COSTS,
    model_ms: float = 10.0,
    accelerator: bool = True,
    **more,
):
    """The diagnosis of a configuration whose step takes exactly what the operational model says."""
    checked = PipelineConfig.model_validate(config)
    plan = make_plan(checked, spec)
    load = load_of(plan, costs, cores=CORES)
    consumer = Consumer(step_ms=model_ms, core_ms=model_ms, accelerator=accelerator)
    train_ms = step_ms(load, consumer, CORES) if load else 2 * model_ms
    stall = 100 * (1 - model_ms / train_ms)
    known: dict[str, Any] = {
        "breakdown": Breakdown(
            steps=20,
            step_ms_p50=train_ms,
            wait_ms_p50=0.0,
            wait_ms_p95=0.0,
            wait_ms_mean=0.0,
            iterators=(),
        ),
        "batch_mib": 9.0,
        "stored_mib": 400.0,
        "memory_mib": 20_000.0,
        "shard_count": 8,
        "shard_mib": 120.0,
        "malloc_tuned": True,
        "epoch_gap_ms": None,
        "epoch_ms": 50 * train_ms,
        "cold_examples_per_s": 1000.0,
        "input_examples_per_s": 1000.0,
    } | more
    facts = Facts(
        config=checked, plan=plan, costs=costs, load=load, cores=CORES, accelerator=accelerator,
        model_step_ms=model_ms, train_step_ms=train_ms, wait_pct=stall,
        stall=Stall(pct=stall, low_pct=stall, high_pct=stall), **known,
    )  # fmt: skip
    ceilings = Ceilings(
        input_examples_per_s=1000,
        model_examples_per_s=BATCH / model_ms * 1e3,
        train_examples_per_s=900,
        accelerator=accelerator,
    )
    return diagnose("p", facts, ceilings, consumer)


COPYING = Breakdown(
    steps=20,
    step_ms_p50=10.0,
    wait_ms_p50=0.0,
    wait_ms_p95=0.0,
    wait_ms_mean=0.0,
    iterators=(),
    gpu_copy_ms=4.0,
)
WAITING = replace(COPYING, wait_ms_mean=50.0, gpu_copy_ms=None)
STRAGGLING = IteratorTime(
    path="Iterator::Root::ParallelMapV2", step="decode", calls=40, total_ms=400.0, self_ms=400.0,
    call_ms_p50=4.0, call_ms_p95=40.0, parallelism=1.0,
    critical_pct=60.0,
)  # fmt: skip
UNEVEN = replace(WAITING, iterators=(STRAGGLING,))
WELL = {
    "read": "shards",
    "interleave": {"parallel": "cores"},
    "map": {"parallel": "cores"},
    "prefetch": 2,
}


FIRST = [
    ("sequential_map", {**WELL, "map": {}}, {"model_ms": 30.0}),
    ("no_prefetch", {"read": "snapshot", "shuffle": {"kind": "global"}}, {"model_ms": 4.0}),
    ("costly_calls", {**WELL, "map": {}}, {"spec": TINY, "costs": TINY_COSTS, "model_ms": 0.4}),
    ("costly_calls", {**WELL}, {"spec": TINY, "costs": TINY_COSTS, "model_ms": 0.2}),
    ("repeated_work", WELL, {"model_ms": 2.0}),
    (
        "compressed_reads",
        {**WELL, "read": "gzip_shards", "vectorize": True},
        {"spec": TINY, "costs": TINY_COSTS, "model_ms": 0.4},
    ),
    (
        "sequential_map",
        {"read": "snapshot", "shuffle": {"kind": "global"}, "prefetch": 2},
        {"model_ms": 1.5},
    ),
    (
        "host_widening",
        {
            "read": "snapshot",
            "shuffle": {"kind": "global"},
            "map": {"parallel": "cores"},
            "prefetch": 2,
        },
        {"model_ms": 0.6},
    ),
]


@pytest.mark.parametrize(("rule", "config", "conditions"), FIRST)
def test_a_planted_fault_is_named_first(rule, config, conditions):
    diagnosis = judged(config, **conditions)
    assert diagnosis.verdict == "input-bound" or diagnosis.verdict.startswith("slightly")
    assert diagnosis.findings[0].rule == rule, [
        (finding.rule, finding.predicted_gain) for finding in diagnosis.findings
    ]
    assert diagnosis.predicted_gain > 1.05


ELSEWHERE = {"address": "grpc://input.example.org:5050"}
HOLDS = [
    ("decode_bound", WELL, {}),
    ("no_cache", WELL, {}),
    ("sequential_read", {**WELL, "interleave": None, "read": "gzip_shards"}, {}),
    ("copy_to_device", WELL, {"breakdown": COPYING}),
    ("epoch_gap", WELL, {"epoch_gap_ms": 900.0, "epoch_ms": 3000.0}),
    ("service_on_one_host", {**WELL, "service": {"workers": 2}}, {}),
    ("service_on_one_host", {**WELL, "service": {"address": "grpc://127.0.0.1:5050"}}, {}),
    ("slow_service", {**WELL, "service": ELSEWHERE}, {"breakdown": WAITING}),
    ("too_parallel", {**WELL, "map": {"parallel": 64}}, {}),
    ("few_threads", {**WELL, "threads": 1}, {}),
    ("buffer_memory", {**WELL, "shuffle": {"kind": "buffer", "size": 100_000}}, {}),
    ("few_shards", WELL, {"shard_count": 2}),
    ("small_shards", WELL, {"shard_count": 500, "shard_mib": 0.2}),
    ("allocator", WELL, {"batch_mib": 38.0, "malloc_tuned": False}),
    ("gpu_idle", WELL, {"gpu_utilization_pct": 40.0, "model_ms": 100.0}),
    ("cold_start", WELL, {"cold_examples_per_s": 100.0, "model_ms": 100.0}),
    ("variable_cost", WELL, {"breakdown": UNEVEN}),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "config", "known"), HOLDS)
def test_every_rule_holds_where_its_fault_is(rule, config, known):
    found = {
        finding.rule: finding for finding in judged(config, **({"model_ms": 2.0} | known)).findings
    }
    assert rule in found
    for key, value in found[rule].change.items():
        if key.startswith("pipelines.p."):
            changed(
                PipelineConfig.model_validate(config), {key.removeprefix("pipelines.p."): value}
            )


def test_every_rule_has_a_case():
    assert {rule for rule, *_ in (*FIRST, *HOLDS)} == {rule.name for rule in RULES}


def test_every_file_of_rules_is_a_topic_and_names_are_unique():
    files = {path.stem for path in Path(rules.__file__).parent.glob("*.py")} - {"__init__", "base"}
    assert files == {topic.__name__.rpartition(".")[2] for topic in rules.TOPICS}
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_a_service_that_costs_more_than_it_brings_is_named_first():
    here = judged({**WELL, "service": {"workers": 2}}, spec=TINY, costs=TINY_COSTS, model_ms=5.0)
    assert (here.findings[0].rule, here.fix) == ("service_on_one_host", "service: null")
    assert here.predicted_gain == pytest.approx(2, rel=0.1), (
        "what the model predicts without it, against the measured step"
    )


def test_where_input_is_not_the_bottleneck_nothing_of_it_is_to_be_tuned():
    diagnosis = judged(WELL, model_ms=200.0)
    assert diagnosis.verdict == "compute-bound"
    assert diagnosis.cause == "none in the input"
    assert diagnosis.fix.startswith("stop tuning the input")


def test_the_smallest_change_that_suffices_comes_before_the_largest():
    findings = judged({**WELL, "map": {}}, model_ms=30.0).findings
    assert findings[0].effort == "setting"
    assert "repeated_work" in [finding.rule for finding in findings]


def finding(rule: str, effort: str, gain: float | None) -> Finding:
    return Finding(
        rule=rule, step="", key="", evidence="", cause="", fix="", change={}, effort=effort,
        predicted_gain=gain, confidence=""
    )  # fmt: skip


def test_of_changes_that_gain_alike_the_smallest_comes_first_and_what_gains_nothing_known_last():
    findings = [
        finding("unknown", "setting", None),
        finding("little", "setting", 1.2),
        finding("disk", "disk", 2.04),
        finding("setting", "setting", 2.0),
    ]
    assert [one.rule for one in rank_findings(findings)] == ["setting", "disk", "little", "unknown"]


def test_ceilings_add_up_where_the_cores_are_shared():
    alone = {
        "input_examples_per_s": 300.0,
        "model_examples_per_s": 600.0,
        "train_examples_per_s": 190.0,
    }
    assert Ceilings(**alone, accelerator=True).attainable_examples_per_s == 300
    assert Ceilings(**alone, accelerator=False).attainable_examples_per_s == pytest.approx(200)


def test_the_operational_model_of_a_step():
    consumer = Consumer(step_ms=10, core_ms=10, accelerator=True)
    assert step_ms(Load(serial_ms=5), consumer, 4) == 15, "on the training's own thread it adds"
    assert step_ms(Load(serial_ms=5).overlap(1), consumer, 4) == 10, "behind a prefetch it hides"
    assert step_ms(Load(serial_ms=25).overlap(1), consumer, 4) == 25, "as long as it is the shorter"
    assert step_ms(Load(overlapped=(Segment(work_ms=60, threads=4),)), consumer, 4) == 15, (
        "several threads share it"
    )
    assert step_ms(Load(overlapped=(Segment(work_ms=20, threads=1),) * 3), consumer, 2) == 30, (
        "as far as there are cores"
    )
    assert step_ms(
        Load(overlapped=(Segment(work_ms=60, threads=4),)), replace(consumer, accelerator=False), 4
    ) == pytest.approx(25), "the model wants cores, too"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("stall_pct > 10", ThresholdExceeded),
        ("stall_pct > 90", None),
        ("verdict == input-bound", ThresholdExceeded),
        ("gpu_busy_ms < 3", ThresholdExceeded),
        ("stal_pct > 10", InvalidParams),
        ("stall_pct > many", InvalidParams),
        ("wait_pct > 10", ThresholdExceeded),
        ("wait_pct < 10", ThresholdExceeded),
        ("stall_pct > nan", InvalidParams),
    ],
)
def test_conditions(text, told):
    figures = {
        "stall_pct": 52.5,
        "verdict": "input-bound",
        "gpu_busy_ms": None,
        "wait_pct": float("nan"),
        "autotuned": {},
    }
    if told is None:
        parse_threshold(text).check(figures)
    else:
        with pytest.raises(told):
            parse_threshold(text).check(figures)


def test_what_is_no_condition_is_refused_with_an_example():
    with pytest.raises(InvalidParams, match="such as 'stall_pct > 10'"):
        parse_threshold("stall_pct")
