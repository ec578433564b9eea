"""Each rule holds from its limit on, with its numbers; its change is one that params.yaml takes."""

from dataclasses import replace
from typing import Any

import pytest

from throughline.data.encodings.arrays import pixels_feature
from throughline.data.encodings.images import image_feature
from throughline.data.encodings.labels import labeled
from throughline.data.encodings.texts import text_feature
from throughline.diagnosis.facts import Facts
from throughline.diagnosis.findings import MOST_TRIED, find_all
from throughline.diagnosis.rules import RULES
from throughline.plan.augmentations import Flip
from throughline.plan.ops import Decode, Rescale, Resize
from throughline.plan.plan import InputSpec, make_plan
from throughline.plan.steps import BucketBatch, Map, Parallelism
from throughline.plan.text_ops import Tokenize
from throughline.results.profiling import Breakdown, IteratorTime
from throughline.settings import BatchSettings, PipelineConfig

pytestmark = pytest.mark.integration

CORES, BATCH, STEPS, STEP_MS = 4, 64, 20, 10.0
PHOTOS = InputSpec(
    schema=labeled(image_feature()),
    preprocess=(Decode(), Resize(height=224, width=224)),
    augment=(Flip(),),
    postprocess=(Rescale(),),
    batch_size=BATCH,
)
TEXT = replace(
    PHOTOS,
    schema=labeled(text_feature()),
    preprocess=(Decode(), Tokenize(kind="bytes")),
    augment=(),
    postprocess=(),
)
RAW = replace(PHOTOS, schema=labeled(pixels_feature((28, 28, 1))), preprocess=(Decode(),))
NO_WAITS = {"wait_ms_p50": 0.0, "wait_ms_p95": 0.0, "wait_ms_mean": 0.0}
TRACED = Breakdown(steps=STEPS, traced_step_ms_mean=STEP_MS, iterators=(), **NO_WAITS)
CORE_EACH = {"parallel": "cores"}
WELL = {"read": "shards", "interleave": CORE_EACH, "map": CORE_EACH, "prefetch": 2}


def iterator(step: str, self_ms: float, **more: Any) -> IteratorTime:
    """A step of a plan that worked so long in each train step."""
    usual = {"call_ms_p50": 4.0, "call_ms_p95": 4.0, "parallelism": 1.0, "critical_pct": 60.0}
    path = f"Iterator::Root::ParallelMapV2::{step}Map"
    return IteratorTime(path=path, step=step, calls=40, self_ms=STEPS * self_ms, **usual | more)


def facts_of(config: dict, *, spec: InputSpec = PHOTOS, work_ms: float = 5.0, **more: Any) -> Facts:
    """About a configuration, each of whose steps works `work_ms` in a train step."""
    checked = PipelineConfig.model_validate(config)
    plan = make_plan(checked, spec)
    iterators = tuple(iterator(step.trace_name, work_ms) for step in plan.steps)
    known: dict[str, Any] = {
        "breakdown": replace(TRACED, iterators=iterators), "cores": CORES, "batch_mib": 9.0,
        "stored_mib": 400.0, "available_memory_mib": 20_000.0, "shard_count": 8,
        "shard_mib": 120.0, "examples": 3200.0, "examples_per_step": spec.batch_size,
    }  # fmt: skip
    return Facts(config=checked, plan=plan, **{**known, **more})


ELSEWHERE = {"address": "grpc://input.example.org:5050"}
STORED = {"read": "snapshot", "shuffle": {"kind": "global"}}
IDLE = replace(TRACED, gpu_busy_ms=5.0)
OFTEN_IDLE = {"gpu_utilization_pct": 50.0, "breakdown": IDLE}
SHUFFLED = {"shuffle": {"size": 9999}}
SMALL = {"shard_count": 65, "shard_mib": 0.5}
BYTES = {"spec": TEXT, "padding_pct_in_buckets": 20.0}


def works(milliseconds: float) -> dict:
    return {"work_ms": milliseconds}


def straggling(p95: float) -> dict:
    slow = iterator("decode", 20.0, call_ms_p95=p95)
    return {"breakdown": replace(TRACED, iterators=(slow,))}


def waits(milliseconds: float) -> dict:
    return {"breakdown": replace(TRACED, wait_ms_mean=milliseconds)}


# A rule's name, a configuration, what is just no fault, what is one, and the evidence.
LIMITS = [
    ("no_prefetch", {}, waits(0.49), waits(0.5), "each step waits 0.50 ms for a batch"),
    ("sequential_map", {}, {"cores": 1}, {"cores": 2}, "on one of 2 cores"),
    ("sequential_map", {}, works(0.49), works(0.5), "its ops take 0.50 ms of a step"),
    ("costly_calls", {}, works(0.49), works(0.5),
     "64 calls per step take 0.50 core-ms, 8 µs each"),
    ("sequential_read", {}, works(0.49), works(0.5), "reading takes 0.50 ms of a step"),
    ("repeated_work", {}, {"config": {"cache": {}}}, {}, "the ops take 5.00 core-ms"),
    ("no_cache", {}, {"stored_mib": 10_000.0}, {"stored_mib": 9_999.0},
     "their results take 9,999 MiB"),
    ("decode_bound", {}, works(1.99), works(2.0), "decoding and what follows take 2.00 core-ms"),
    ("host_widening", {}, works(0.49), works(0.5), "a batch has 9.0 MiB after rescale on the host"),
    ("variable_cost", WELL, straggling(12.0), straggling(12.1),
     "a call of decode takes 4.0 ms (median) to 12.1 ms (p95)"),
    ("service_on_one_host", {}, {"config": {"service": ELSEWHERE}}, {"config": {"service": {}}},
     "share this host's 4 cores"),
    ("slow_service", {"service": ELSEWHERE}, waits(0.49), waits(0.5),
     "each step waits 0.50 ms for batches from grpc://input.example.org:5050"),
    ("too_parallel", {}, {"config": {"map": {"parallel": 8}}},
     {"config": {"map": {"parallel": 9}}}, "9 calls at once on 4 cores"),
    ("few_threads", {}, {"config": {"threads": 4}}, {"config": {"threads": 3}},
     "3 threads for 4 cores"),
    ("buffer_memory", {"shuffle": {"size": 2000}}, {"shard_mib": 400.0},
     {"shard_mib": 400.0, "config": {"prefetch": 1}}, "takes up to 4,000 MiB of memory"),
    # Names of files are small, and a cache in memory shares its examples with the buffer.
    ("buffer_memory", {**SHUFFLED, "read": "files"}, {"shard_mib": 900.0},
     {"shard_mib": 900.0, "config": {"read": "shards"}}, "of memory"),
    ("buffer_memory", SHUFFLED, {"shard_mib": 900.0, "config": {"cache": {"where": "memory"}}},
     {"shard_mib": 900.0}, "of memory"),
    # All 3,200 records of 8 shards, and no more.
    ("buffer_memory", SHUFFLED, {"shard_mib": 250.0}, {"shard_mib": 251.0}, "up to 2,008 MiB of"),
    ("few_shards", WELL, {"shard_count": 4}, {"shard_count": 3}, "3 shards for 4 readers"),
    ("small_shards", {}, {**SMALL, "shard_count": 64}, SMALL, "65 shards of 0.50 MiB"),
    ("small_shards", {}, {**SMALL, "config": {"cache": {}}}, SMALL, "65 shards of 0.50 MiB"),
    ("padding", {}, {**BYTES, "padding_pct": 23.9}, {**BYTES, "padding_pct": 24.0},
     "24 % of the model's input is padding; in buckets of doubling length it would be 20 %"),
    ("gpu_idle", {}, {"gpu_utilization_pct": 80.0, "breakdown": IDLE},
     {"gpu_utilization_pct": 79.0, "breakdown": IDLE}, "the GPU is busy 50 % of a step"),
    ("gpu_idle", {}, {**OFTEN_IDLE, "breakdown": replace(IDLE, gpu_busy_ms=8.0)},
     {**OFTEN_IDLE, "breakdown": replace(IDLE, gpu_busy_ms=7.9)}, "is busy 79 % of a step"),
    ("gpu_idle", {}, {**OFTEN_IDLE, "breakdown": replace(IDLE, wait_ms_mean=0.5)}, OFTEN_IDLE,
     "the GPU is busy 50 % of a step"),
    ("gpu_idle", {}, {**OFTEN_IDLE, "steps_per_execution": 8},
     {**OFTEN_IDLE, "steps_per_execution": 7}, "the GPU is busy 50 % of a step"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "config", "before", "at_limit", "evidence"), LIMITS, ids=[name for name, *_ in LIMITS]
)
def test_a_rule_holds_from_its_limit_on(name, config, before, at_limit, evidence):
    detect = {rule.name: rule for rule in RULES}[name].detect

    def facts(known: dict) -> Facts:
        others = {key: value for key, value in known.items() if key != "config"}
        return facts_of({**config, **known.get("config", {})}, **others)

    assert detect(facts(before)) is None
    assert evidence in (detect(facts(at_limit)) or "")
    found = {each.rule for each in find_all("p", facts(at_limit))}
    assert name in found, "its change is one that params.yaml takes"


def test_every_rule_has_a_limit():
    assert {name for name, *_ in LIMITS} == {rule.name for rule in RULES}


def test_a_map_is_called_for_single_examples_before_batches_by_length_and_once_a_step_after():
    for batch in (None, {"pad_to": "auto"}):
        before = facts_of({"batch": batch}, spec=TEXT).per_example_map()
        assert before and [op.name for op in before.ops][-1] == "tokenize"
    records = {**STORED, "read": "indexed_shards"}
    assert facts_of(records).per_example_map()
    assert facts_of({**records, "vectorize": True}, spec=RAW).per_example_map() is None
    bucket = BucketBatch(size=64, batching=BatchSettings(pad_to="auto"))
    flips = Map(ops=(Flip(),), parallel=Parallelism(), first_op_position=0)
    facts = facts_of({})
    after = replace(facts.plan, steps=(bucket, flips))
    assert replace(facts, plan=after).per_example_map() is None


def test_work_before_a_cache_is_none_of_a_warm_epoch():
    assert facts_of({}).work_ms(Map) == 5
    assert facts_of({"cache": {"after": "preprocess"}}).work_ms(Map) == 5, "flip and rescale"
    assert facts_of({"cache": {"after": "preprocess"}}, spec=TEXT).work_ms(Map) == 0


def find(config: dict, rule: str, **known):
    """The finding of a rule."""
    return next(each for each in find_all("p", facts_of(config, **known)) if each.rule == rule)


def test_a_change_is_one_that_params_yaml_takes():
    part = {**STORED, "snapshot": {"fraction": 0.3}}
    more = find(part, "repeated_work", stored_fraction=0.3)
    assert more.change == {"pipelines.p.snapshot": {"fraction": 1.0}, "snapshot.fraction": "auto"}
    assert more.untried == "it changes snapshot.fraction, which other stages read"
    whole = find(WELL, "repeated_work")
    assert "snapshot.fraction" not in whole.change
    assert PipelineConfig.model_validate(whole.config).read == "snapshot"
    few = find({**WELL, "interleave": {"cycle_length": 32}}, "few_shards", shard_count=16)
    assert few.change == {"shard.min_shards": 32} and few.config is None


def test_at_most_three_changes_are_tried_and_none_that_changes_results_or_takes_memory_first():
    found = find_all("p", facts_of({}))
    tried = [each for each in found if each.config is not None]
    assert [each.rule for each in tried] == ["repeated_work", "costly_calls", "sequential_map"]
    assert len(tried) == MOST_TRIED
    assert find({}, "no_cache").untried == "not among the first 3 to try"
    others = "it changes the examples, their order or their batches"
    assert find({"decode": {"ratio": 2}}, "repeated_work").untried == others
    assert find({}, "decode_bound").untried == others
    vectorized = {**WELL, "vectorize": True, "postprocess_on": "device"}
    assert find(vectorized, "no_cache").config is not None, "where there are fewer"
    assert all(bool(each.untried) == (each.config is None) for each in found)


def test_what_is_no_step_of_the_input_is_not_blamed_on_one():
    idle = replace(IDLE, iterators=(iterator("decode", 3.0),))
    found = find(WELL, "gpu_idle", gpu_utilization_pct=40.0, breakdown=idle)
    assert found.step == "train.steps_per_execution"
