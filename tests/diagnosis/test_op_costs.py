"""Costs are those of the data's own examples: what each call takes, in virtual time."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import pytest
import tensorflow as tf

from tests.support.lanes import slow_but_first
from throughline.diagnosis.cost_model import estimate_load
from throughline.diagnosis.op_costs import measure_costs, share_of_worker
from throughline.pipelines.input_pipeline import InputPipeline
from throughline.pipelines.read.prepared_data import open_prepared_data
from throughline.plan.ops import Decode, Op, Rescale
from throughline.plan.plan import make_plan
from throughline.plan.spec import InputSpec
from throughline.plan.training_workers import TrainingWorker
from throughline.settings import PipelineConfig, ShuffleSettings

pytestmark = pytest.mark.integration

BATCH, DECODE = 4, (Decode(),)
REST_S = 0.002


class Clock:
    """Virtual time [s], which passes a little between two looks at it."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        self.now_s += 1e-3
        return self.now_s


class Rest(Op):
    """An op that takes `REST_S` once per call, whether that is of an example or of a batch."""

    name: ClassVar[str] = "rest"
    clock: ClassVar[Clock] = Clock()

    def compute(self, element, draw):
        def rest(key):
            self.clock.now_s += REST_S
            return key

        key = tf.numpy_function(rest, [element["key"]], tf.int64)
        key.set_shape(element["key"].shape)
        return {**element, "key": key}


@pytest.fixture(scope="module")
def data(layout):
    files = {"manifest": layout.manifest, "shards": layout.shards, "snapshot": layout.snapshot}
    return open_prepared_data(**files, preprocess=DECODE)


def open_pipeline(data, config, *, augment=(), worker=TrainingWorker()):  # noqa: B008
    """A configuration of this data, in batches of four."""
    ops = {"preprocess": DECODE, "augment": augment, "postprocess": (Rescale(),)}
    plan = make_plan(config, InputSpec(schema=data.shards.schema, batch_size=BATCH, **ops))
    return InputPipeline(plan=plan, data=data, split="train", seed=0, worker=worker)


def test_every_part_of_a_stream_has_the_cost_of_its_calls(data):
    config = PipelineConfig(read="shards")
    costs = measure_costs(open_pipeline(data, config, augment=(Rest(),)), config, clock=Rest.clock)
    assert set(costs.read_us) == {"snapshot", "shards"}
    assert set(costs.ops) == {"parse", "decode", "rest", "rescale"}
    rest = costs.ops["rest"]
    assert rest.example_us == pytest.approx(REST_S * 1e6)
    assert rest.batch_us == pytest.approx(REST_S / BATCH * 1e6), "per example"
    assert costs.ops["decode"].example_us == pytest.approx(0, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "needed"),
    slow_but_first(
        [
            ({"read": "snapshot", "snapshot": {"fraction": 0.25}}, {"snapshot", "indexed_shards"}),
            ({"read": "snapshot", "snapshot": {"fraction": 0.0}}, {"indexed_shards"}),
            ({"read": "indexed_shards", "vectorize": True}, {"indexed_shards"}),
        ]
    ),
    ids=["a part stored", "nothing stored", "indexed shards"],
)
def test_a_plan_has_a_price_where_all_that_it_reads_has_one(data, config, needed):
    config = PipelineConfig(**config, shuffle={"kind": "global"})
    pipeline = open_pipeline(data, config)
    costs, plan = measure_costs(pipeline, config, clock=Rest.clock), pipeline.plan
    assert set(costs.read_us) == {"snapshot", "indexed_shards"}
    assert estimate_load(plan, costs, cores=2).work_ms > 0
    for missing in costs.read_us:
        others = {name: cost for name, cost in costs.read_us.items() if name != missing}
        unpriced = dataclasses.replace(costs, read_us=others)
        assert (estimate_load(plan, unpriced, cores=2) is None) == (missing in needed)


LANES = {"kind": "lanes", "lanes": 4}  # which no slice of a batch of four can be shared by


@pytest.mark.parametrize("read", ["snapshot", "indexed_shards"])
def test_the_slice_of_a_process_with_lanes_of_its_own_has_a_plan(data, read):
    config = PipelineConfig(read=read, shuffle=LANES, prefetch=2)
    worker = TrainingWorker(index=1, count=2)
    alone, changed = share_of_worker(open_pipeline(data, config, worker=worker), config)
    assert (alone.plan.spec.batch_size, alone.worker) == (BATCH // 2, TrainingWorker())
    assert changed == config.model_copy(update={"shuffle": ShuffleSettings(kind="global")})
    one = open_pipeline(data, config)
    assert share_of_worker(one, config) == (one, config)


@pytest.mark.slow
@pytest.mark.parametrize("read", ["snapshot", "indexed_shards"])
def test_the_parts_of_a_plan_with_lanes_have_prices_in_every_process(data, read):
    config = PipelineConfig(read=read, shuffle=LANES, prefetch=2)
    pipeline = open_pipeline(data, config, worker=TrainingWorker(index=1, count=2))
    costs = measure_costs(pipeline, config, clock=Rest.clock)
    assert set(costs.read_us) == {"snapshot", read}
    assert estimate_load(share_of_worker(pipeline, config)[0].plan, costs, cores=2)
