"""Each rule holds from its limit on, with its numbers as evidence, and not before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.facts import (
    IDLE_GPU,
    PHOTO_COSTS,
    STRAGGLING,
    TEXT,
    TINY,
    TINY_COSTS,
    WAITING,
    WELL,
    facts_of,
    model_step_of,
)
from throughline.diagnosis.cost_model import HostLoad, OpCost, estimate_load
from throughline.diagnosis.diagnose import diagnose
from throughline.diagnosis.facts import Facts
from throughline.diagnosis.rules import (
    RULES,
    padding,
    parallelism,
    repetition,
    service,
    sizes,
    training,
    volume,
    waits,
)
from throughline.diagnosis.rules.base import Change, Effort, list_rules, rule
from throughline.measurement.verdict import Stall
from throughline.plan.augmentations import Flip
from throughline.plan.parallelism import Parallelism
from throughline.plan.steps import BucketBatch, Map
from throughline.settings import BatchSettings

pytestmark = pytest.mark.integration

STEP_MS = 10.0  # of training: 0.5 ms of it, 7.8125 µs per example, are worth a change
ELSEWHERE = {"address": "grpc://input.example.org:5050"}


def reads(**microseconds: float) -> dict:
    return {"costs": replace(PHOTO_COSTS, read_us=microseconds)}


def op(name: str, microseconds: float) -> dict:
    cost = OpCost(example_us=microseconds, batch_us=None)
    return {"costs": replace(PHOTO_COSTS, ops={**PHOTO_COSTS.ops, name: cost})}


def tiny(call_us: float) -> dict:
    return {"spec": TINY, "costs": replace(TINY_COSTS, call_us=call_us)}


def straggling(p95: float) -> dict:
    return {"breakdown": replace(WAITING, iterators=(replace(STRAGGLING, call_ms_p95=p95),))}


EPOCH = {"epoch_ms": 50 * STEP_MS}
# A rule's topic and name, a configuration, what is just no fault, what is one, and the evidence.
LIMITS = [
    (parallelism, "no_prefetch", {}, {"load": HostLoad(serial_ms=0.49)},
     {"load": HostLoad(serial_ms=0.5)}, "0.50 ms of input run on the training's own thread"),
    (parallelism, "sequential_map", {}, {"cores": 1}, {"cores": 2}, "on one of 2 cores"),
    (parallelism, "costly_calls", {}, tiny(7.8), tiny(7.82),
     "64 calls per step, take 8 µs each, 0.50 ms, before any work of the ops (0.26 ms)"),
    (parallelism, "sequential_read", {}, reads(shards=7.8), reads(shards=7.82),
     "reading takes 0.50 ms of a step"),
    (repetition, "repeated_work", {}, {"config": {"cache": {}}}, {},
     "deterministic work takes 80.32 core-ms"),  # 64 × (20 + 5 + 900 + 300 + 30) µs
    (repetition, "no_cache", {}, {"stored_mib": 10_000.0}, {"stored_mib": 9_999.0},
     "its results take 9,999 MiB"),
    (volume, "decode_bound", {}, op("decode", 31.2), op("decode", 31.26),
     "decoding takes 2.00 core-ms"),
    (volume, "host_widening", {}, op("rescale", 7.8), op("rescale", 7.82),
     "rescale on the host takes 0.50 core-ms of a step and makes a batch 9.0 MiB"),
    (waits, "epoch_gap", {}, {"epoch_gap_ms": 49.0, "epoch_ms": 1000.0},
     {"epoch_gap_ms": 50.0, "epoch_ms": 1000.0}, "50 ms pass between two epochs of 1,000 ms"),
    (waits, "variable_cost", WELL, straggling(12.0), straggling(12.1),
     "a call of decode takes 4.0 ms (median) to 12.1 ms (p95)"),
    (service, "service_on_one_host", {}, {"config": {"service": ELSEWHERE}},
     {"config": {"service": {}}}, "share this host's 4 cores"),
    (service, "slow_service", {"service": ELSEWHERE},
     {"breakdown": replace(WAITING, wait_ms_mean=0.49)},
     {"breakdown": replace(WAITING, wait_ms_mean=0.5)},
     "0.50 ms of each step wait for batches from grpc://input.example.org:5050"),
    (sizes, "too_parallel", {}, {"config": {"map": {"parallel": 8}}},
     {"config": {"map": {"parallel": 9}}}, "9 calls at once on 4 cores"),
    (sizes, "few_threads", {}, {"config": {"threads": 4}}, {"config": {"threads": 3}},
     "3 threads for 4 cores"),
    (sizes, "buffer_memory", {"shuffle": {"size": 2000}}, {**EPOCH, "shard_mib": 400.0},
     {**EPOCH, "shard_mib": 400.0, "config": {"prefetch": 1}}, "takes up to 4,000 MiB of memory"),
    # Names of files are small, and a cache in memory shares its examples with the buffer.
    (sizes, "buffer_memory", {"shuffle": {"size": 9999}},
     {**EPOCH, "shard_mib": 900.0, "config": {"read": "files"}}, {**EPOCH, "shard_mib": 900.0},
     "of memory"),
    (sizes, "buffer_memory", {"shuffle": {"size": 9999}},
     {**EPOCH, "shard_mib": 900.0, "config": {"cache": {"where": "memory"}}},
     {**EPOCH, "shard_mib": 900.0}, "of memory"),
    # All 3,200 records of 8 shards, and no more.
    (sizes, "buffer_memory", {"shuffle": {"size": 9999}}, {**EPOCH, "shard_mib": 250.0},
     {**EPOCH, "shard_mib": 251.0}, "takes up to 2,008 MiB of memory"),
    (sizes, "few_shards", WELL, {"shard_count": 4}, {"shard_count": 3}, "3 shards for 4 readers"),
    (sizes, "small_shards", {}, {"shard_count": 64, "shard_mib": 0.5},
     {"shard_count": 65, "shard_mib": 0.5}, "65 shards of 0.50 MiB"),
    (sizes, "small_shards", {}, {"shard_count": 65, "shard_mib": 0.5, "config": {"cache": {}}},
     {"shard_count": 65, "shard_mib": 0.5}, "65 shards of 0.50 MiB"),
    (parallelism, "sequential_map", {}, {"config": {"cache": {"after": "preprocess"}},
     "costs": replace(PHOTO_COSTS, ops={"resize": OpCost(example_us=300, batch_us=None)})}, {},
     "one call after another"),
    (padding, "padding", {},
     {"spec": TEXT, "padding_pct": 23.9, "padding_pct_in_buckets": 20.0},
     {"spec": TEXT, "padding_pct": 24.0, "padding_pct_in_buckets": 20.0},
     "24 % of what the model computes on is padding, 20 % in buckets"),
    (training, "cold_start", {}, {"cold_examples_per_s": 700.0, "wait_pct": 0.0},
     {"cold_examples_per_s": 699.0, "wait_pct": 0.0},
     "699 examples/s in the first pass, 1,000 later"),
    (training, "gpu_idle", {}, {"gpu_utilization_pct": 80.0, "breakdown": IDLE_GPU,
                                "wait_pct": 0.0},
     {"gpu_utilization_pct": 79.0, "breakdown": IDLE_GPU, "wait_pct": 0.0},
     "the GPU is busy 50 % of a step"),
    (training, "gpu_idle", {},
     {"gpu_utilization_pct": 50.0, "breakdown": replace(IDLE_GPU, gpu_busy_ms=8.0),
      "wait_pct": 0.0},
     {"gpu_utilization_pct": 50.0, "breakdown": replace(IDLE_GPU, gpu_busy_ms=7.9),
      "wait_pct": 0.0}, "the GPU is busy 79 % of a step"),
    (training, "gpu_idle", {},
     {"gpu_utilization_pct": 50.0, "breakdown": IDLE_GPU, "wait_pct": 0.0,
      "steps_per_execution": 8},
     {"gpu_utilization_pct": 50.0, "breakdown": IDLE_GPU, "wait_pct": 0.0,
      "steps_per_execution": 7}, "the GPU is busy 50 % of a step"),
]  # fmt: skip


def test_where_the_trace_shows_no_wait_the_stall_says_whether_the_gpu_waits_for_input():
    detect = {rule.name: rule for rule in list_rules(training)}["gpu_idle"].detect

    def said(pct: float) -> str | None:
        known = {"gpu_utilization_pct": 50.0, "breakdown": IDLE_GPU, "wait_pct": None}
        return detect(facts_of({}, stall=Stall(pct=pct, low_pct=pct, high_pct=pct), **known))

    assert said(4.0) is not None and said(60.0) is None


@pytest.mark.parametrize(
    ("topic", "name", "config", "before", "at_limit", "evidence"),
    LIMITS,
    ids=[name for _, name, *_ in LIMITS],
)
def test_a_rule_holds_from_its_limit_on(topic, name, config, before, at_limit, evidence):
    detect = {rule.name: rule for rule in list_rules(topic)}[name].detect

    def facts(known: dict) -> Facts:
        changes = known.get("config", {})
        others = {key: value for key, value in known.items() if key != "config"}
        return facts_of({**config, **changes}, **{"train_step_ms": STEP_MS} | others)

    assert detect(facts(before)) is None
    assert evidence in (detect(facts(at_limit)) or "")
    step = model_step_of(STEP_MS, on_accelerator=True)
    findings = diagnose("p", facts(at_limit), step, model_examples_per_s=100.0).findings
    assert name in {each.rule for each in findings}, "its change is one that params.yaml takes"


def test_every_rule_has_a_limit():
    assert {name for _, name, *_ in LIMITS} == {rule.name for rule in RULES}


def test_a_detector_becomes_a_rule_of_its_name():
    @rule(params_key="prefetch", cause="no reason", change=Change(config={"prefetch": 2}))
    def _never(facts) -> None:
        return None

    assert (_never.name, _never.params_key, _never.effort) == ("never", "prefetch", Effort.SETTING)
    assert _never.change.config == {"prefetch": 2}
    assert _never.detect(facts_of({})) is None


@pytest.mark.parametrize("batch", [None, {"pad_to": "auto"}])
def test_a_map_before_batches_by_length_is_called_for_single_examples(batch):
    per_example_map = facts_of({"batch": batch}, spec=TEXT).per_example_map()
    assert per_example_map and [op.name for op in per_example_map.ops][-1] == "tokenize"


def test_a_map_after_batches_by_length_is_called_once_a_step():
    batch = BucketBatch(size=64, batching=BatchSettings(pad_to="auto"))
    flips = Map(ops=(Flip(),), parallel=Parallelism(), first_op_position=0)
    facts = facts_of({})
    plan = replace(facts.plan, steps=(batch, flips))
    assert replace(facts, plan=plan).per_example_map() is None
    load = estimate_load(plan, PHOTO_COSTS, cores=4)
    assert load and load.work_ms == pytest.approx((64 * (5 + 15) + 20) / 1e3)


@pytest.mark.parametrize("vectorize", [True, False])
def test_a_map_of_whole_batches_of_records_is_called_once_a_step(vectorize):
    costs = replace(TINY_COSTS, call_us=1000.0, read_us={"indexed_shards": 1})
    config = {"read": "indexed_shards", "shuffle": {"kind": "global"}, "vectorize": vectorize}
    facts = facts_of(config, spec=TINY, costs=costs)
    assert (facts.per_example_map() is None) is vectorize
    calls = 1 if vectorize else 64  # of 1 ms each
    assert facts.load and calls < facts.load.work_ms < calls + 1


def test_what_a_snapshot_does_not_store_is_repeated_work():
    part = {**WELL, "read": "snapshot", "shuffle": {"kind": "global"}, "interleave": None}
    costs = replace(PHOTO_COSTS, read_us={"snapshot": 8, "indexed_shards": 10})
    facts = facts_of({**part, "snapshot": {"fraction": 0.75}}, costs=costs)
    per_example_us = 1 + 900 + 300  # parsed in batches, decoded and resized one by one
    assert facts.decoding_ms() == pytest.approx(0.25 * 64 * per_example_us / 1e3)
    evidence = repetition._repeated_work.detect(facts)
    assert evidence and evidence.startswith("deterministic work takes 19.22 core-ms")
    assert repetition._repeated_work.detect(facts_of(part, costs=costs)) is None
    assert facts_of(part, costs=costs).decoding_ms() == facts_of({}).decoding_ms() == 0
