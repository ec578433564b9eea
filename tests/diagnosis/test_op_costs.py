"""Costs are those of the data's own examples: what sleeps for each costs at least that."""

from __future__ import annotations

import dataclasses
import time
from typing import ClassVar

import pytest
import tensorflow as tf

from throughline.diagnosis.cost_model import estimate_load
from throughline.diagnosis.op_costs import measure_costs, share_of_worker
from throughline.pipelines.input_pipeline import InputPipeline
from throughline.pipelines.read.prepared_data import open_prepared_data
from throughline.plan.ops import Decode, Op, Rescale
from throughline.plan.plan import make_plan
from throughline.plan.spec import InputSpec
from throughline.plan.training_workers import TrainingWorker
from throughline.settings import PipelineConfig, ShuffleSettings

BATCH, DECODE = 4, (Decode(),)
SLEEP_S = 0.002


class Rest(Op):
    """An op that sleeps once per call, whether that is of an example or of a batch."""

    name: ClassVar[str] = "rest"

    def compute(self, element, draw):
        def rest(key):
            time.sleep(SLEEP_S)
            return key

        key = tf.numpy_function(rest, [element["key"]], tf.int64)
        key.set_shape(element["key"].shape)
        return {**element, "key": key}


@pytest.fixture(scope="module")
def data(layout):
    return open_prepared_data(
        manifest=layout.manifest,
        shards=layout.shards,
        snapshot=layout.snapshot,
        preprocess=DECODE,
    )


def open_pipeline(data, config, *, preprocess=DECODE, augment=(), worker=TrainingWorker()):  # noqa: B008
    """A configuration of this data, in batches of four."""
    spec = InputSpec(
        schema=data.shards.schema,
        preprocess=preprocess,
        augment=augment,
        postprocess=(Rescale(),),
        batch_size=BATCH,
    )
    plan = make_plan(config, spec)
    return InputPipeline(plan=plan, data=data, split="train", seed=0, worker=worker)


@pytest.mark.slow
def test_every_part_of_a_stream_and_reading_the_snapshot_have_a_cost(data):
    config = PipelineConfig(read="shards")
    costs = measure_costs(open_pipeline(data, config, augment=(Rest(),)), config)
    assert set(costs.read_us) == {"snapshot", "shards"}
    assert set(costs.ops) == {"parse", "decode", "rest", "rescale"}
    rest = costs.ops["rest"]
    assert rest.example_us > SLEEP_S / 2 * 1e6, "the cost of the call itself is taken off"
    assert rest.batch_us is not None
    assert SLEEP_S / BATCH / 2 * 1e6 < rest.batch_us < rest.example_us / 2, "per example"
    assert max(costs.ops.values(), key=lambda cost: cost.example_us) is rest


@pytest.mark.slow
@pytest.mark.parametrize("fraction", [0.0, 0.25])
def test_a_part_of_the_snapshot_has_the_price_of_what_is_read_and_what_is_decoded(data, fraction):
    config = PipelineConfig(
        read="snapshot", shuffle={"kind": "global"}, snapshot={"fraction": fraction}
    )
    pipeline = open_pipeline(data, config, preprocess=(Decode(), Rest()))
    costs, plan = measure_costs(pipeline, config), pipeline.plan
    assert set(costs.read_us) == {"snapshot", "indexed_shards"}
    load = estimate_load(plan, costs, cores=2)
    assert load is not None
    rest_us = costs.ops["rest"].batch_us
    assert load.work_ms > (1 - fraction) * BATCH * (rest_us + costs.read_us["indexed_shards"]) / 1e3
    unpriced = dataclasses.replace(costs, read_us={"snapshot": 1.0})
    assert estimate_load(plan, unpriced, cores=2) is None
    unpriced = dataclasses.replace(costs, read_us={"indexed_shards": 1.0})
    assert (estimate_load(plan, unpriced, cores=2) is None) == (fraction > 0)


@pytest.mark.slow
def test_a_plan_of_indexed_shards_has_a_price(data):
    config = PipelineConfig(read="indexed_shards", shuffle={"kind": "global"}, vectorize=True)
    pipeline = open_pipeline(data, config)
    costs, plan = measure_costs(pipeline, config), pipeline.plan
    assert set(costs.read_us) == {"snapshot", "indexed_shards"}
    load = estimate_load(plan, costs, cores=2)
    assert load is not None
    assert load.work_ms >= BATCH * costs.read_us["indexed_shards"] / 1e3 > 0
    unpriced = dataclasses.replace(costs, read_us={"snapshot": 1.0})
    assert estimate_load(plan, unpriced, cores=2) is None


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
    for index in (0, 1):
        pipeline = open_pipeline(data, config, worker=TrainingWorker(index=index, count=2))
        costs = measure_costs(pipeline, config)
        assert set(costs.read_us) == {"snapshot", read}
        assert estimate_load(share_of_worker(pipeline, config)[0].plan, costs, cores=2)
