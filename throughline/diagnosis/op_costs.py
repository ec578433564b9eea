"""What the parts of an input pipeline cost on one core, measured on the data's own examples: what
predictions are made of.

Every cost is the difference of two drains of small datasets that tf.data runs call by call, with
nothing else running.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np
import tensorflow as tf

from throughline.diagnosis.cost_model import Costs, OpCost
from throughline.kernels.autograph import without_autograph
from throughline.kernels.elements import apply_ops
from throughline.pipelines.input_pipeline import InputPipeline
from throughline.pipelines.read import stream_readers
from throughline.plan.ops import Op
from throughline.plan.plan import Plan, make_plan
from throughline.plan.spec import InputSpec
from throughline.plan.steps import Map, Read
from throughline.plan.training_workers import TrainingWorker
from throughline.settings import PipelineConfig, ShuffleSettings, SnapshotPart
from throughline.shared.scratch import Scratch

SAMPLE = 256  # examples at most
# Drains left out, at least, at most, and how long there may be more.
WARM_UP_RUNS, MIN_RUNS, MAX_RUNS, BUDGET_S = 2, 6, 300, 0.05


PerElement = Callable[..., float]  # of a dataset, and perhaps how many at a time → [µs]


@without_autograph
def measure_costs(
    pipeline: InputPipeline,
    config: PipelineConfig,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> Costs:
    """Measure what this configuration's parts cost on a worker's slice of a batch, and those of the
    snapshot, which any configuration could read instead; a row of it has no cost where next to none
    is stored. Of a snapshot in an object store a worker with lanes of its own reads these alone.
    """
    per_element = partial(_per_element, clock=clock)
    gathering, part = _gather_rows(pipeline, config)
    pipeline, config = share_of_worker(pipeline, config)
    spec = pipeline.plan.spec
    later_ops = (*spec.augment[len(spec.per_example_augment) :], *spec.postprocess)
    read_us: dict[str, float] = {}
    if part == 1 or gathering.reader.stored >= WARM_UP_RUNS * spec.batch_size:
        # The same few batches again and again: a later epoch finds its rows in memory, which a
        # first look at them would not.
        read_us["snapshot"] = per_element(gathering.dataset().take(WARM_UP_RUNS)) / spec.batch_size
    batch = next(iter(gathering.dataset()))
    count = min(SAMPLE, len(batch["key"]))
    # In memory, so that delivering them costs next to nothing.
    rows = tf.data.Dataset.from_tensor_slices(batch).take(count).cache()
    idle = per_element(rows, count)
    call_us = (
        per_element(rows.map(lambda element: {**element, "key": element["key"] + 1}), count) - idle
    )
    stack_us = per_element(rows.batch(count)) / count - idle
    ops = _op_costs(pipeline, rows, later_ops, call_us, count, per_element)
    if config.snapshot.fraction < 1:  # the other rows come as records, whichever these are
        config = PipelineConfig(read="indexed_shards", shuffle=config.shuffle)
        pipeline = _with_plan(pipeline, make_plan(config, spec))
    if config.read != "snapshot" and spec.window is None:
        examples = _stored_examples(pipeline, config)
        read_us[config.read] = per_element(examples.take(4 * count), count)
        first = (
            examples.take(count)
            .map(lambda element: {"record": element} if tf.is_tensor(element) else element)
            .cache()
        )
        stream_ops = [
            op
            for step in make_plan(config, _without_later_ops(spec)).steps
            if isinstance(step, Map)
            for op in step.ops
        ]
        ops |= _op_costs(pipeline, first, stream_ops, call_us, count, per_element)
    return Costs(call_us=max(0.1, call_us), stack_us=max(0.05, stack_us), read_us=read_us, ops=ops)


def share_of_worker(
    pipeline: InputPipeline, config: PipelineConfig
) -> tuple[InputPipeline, PipelineConfig]:
    """A pipeline and a configuration whose whole batches are as large as this worker's slices are
    now. Lanes, which slices cannot be divided by, become one permutation: what a row costs does not
    depend on which one it is.
    """
    worker = pipeline.worker
    if worker.count == 1:
        return pipeline, config
    if config.shuffle.lanes:
        config = config.model_copy(update={"shuffle": ShuffleSettings(kind="global")})
    spec = replace(pipeline.plan.spec, batch_size=pipeline.batch_size // worker.count)
    return replace(pipeline, plan=make_plan(config, spec), worker=TrainingWorker()), config


def _gather_rows(pipeline: InputPipeline, config: PipelineConfig) -> tuple[InputPipeline, float]:
    """What reads as many rows of the snapshot at a time as this worker has of a batch, as dicts,
    and the share of the rows that are stored. Of a part it reads the first rows, which are stored,
    else any, or those of the lanes that are its own.
    """
    own, _ = share_of_worker(pipeline, config)
    data, worker, spec = pipeline.data, TrainingWorker(), own.plan.spec
    part, shuffle = data.stored_fraction(pipeline.split), ShuffleSettings(kind="global")
    if part < 1:
        shuffle = ShuffleSettings(kind="none")
        count = data.count_examples(pipeline.split, spec.window)
        data = data.for_rows((0, min(count, WARM_UP_RUNS * spec.batch_size)))
    elif config.shuffle.lanes:
        worker, spec, shuffle = pipeline.worker, pipeline.plan.spec, config.shuffle
    stored = PipelineConfig(read="snapshot", snapshot=SnapshotPart(fraction=part), shuffle=shuffle)
    plan = make_plan(stored, _without_later_ops(spec))
    return replace(_with_plan(pipeline, plan), data=data, worker=worker), part


def _without_later_ops(spec: InputSpec) -> InputSpec:
    """The same without the ops that take whole batches."""
    return replace(spec, augment=spec.per_example_augment, postprocess=())


def _stored_examples(pipeline: InputPipeline, config: PipelineConfig) -> tf.data.Dataset:
    """Stored examples, one by one, as a configuration that does not read the snapshot reads
    them.
    """
    if config.read == "indexed_shards":
        first = tf.constant(0, tf.int64)
        return pipeline.indexed_shards.batches(first, first + pipeline.steps_per_epoch).unbatch()
    if config.read == "snapshot":
        raise ValueError("a snapshot's rows are read as batches")
    return stream_readers.read(Read(source=config.read), pipeline.data, pipeline.split, seed=0)


def _op_costs(
    pipeline: InputPipeline,
    elements: tf.data.Dataset,
    ops: Sequence[Op],
    call_us: float,
    count: int,
    per_element: PerElement,
) -> dict[str, OpCost]:
    """Cost of each op of a chain, on the results of those before it; of several of one name, their
    mean.
    """
    costs: dict[str, list[OpCost]] = {}
    for op in ops:
        run = _runner(pipeline, op)
        batches = (
            elements.batch(count).cache()
            if op.takes != "example" and _alike(pipeline, elements)
            else None
        )
        batch_us = (
            None
            if batches is None
            else (per_element(batches.map(run)) - per_element(batches) - call_us) / count
        )
        if op.takes == "batch" and batches is not None:
            example_us, results = batch_us or 0.0, batches.map(run).unbatch()
        else:
            example_us, results = (
                per_element(elements.map(run), count) - per_element(elements, count) - call_us,
                elements.map(run),
            )
        cost = OpCost(
            example_us=max(0.0, example_us),
            batch_us=None if batch_us is None else max(0.0, batch_us),
        )
        costs.setdefault(op.name, []).append(cost)
        elements = results.cache()
    return {name: _mean(of_name) for name, of_name in costs.items()}


def _mean(costs: Sequence[OpCost]) -> OpCost:
    batches = [cost.batch_us for cost in costs if cost.batch_us is not None]
    return OpCost(
        example_us=fmean(cost.example_us for cost in costs),
        batch_us=fmean(batches) if len(batches) == len(costs) else None,
    )


def _alike(pipeline: InputPipeline, elements: tf.data.Dataset) -> bool:
    """Whether elements can be batched: all values have the same size, or have been given it."""
    known = all(spec.shape.is_fully_defined() for spec in tf.nest.flatten(elements.element_spec))
    return known or None not in pipeline.data.shards.schema.input.shape


def _runner(pipeline: InputPipeline, op: Op) -> Callable[[Any], Any]:
    return lambda element: apply_ops(
        [op], element, seed=pipeline.seed, epoch=tf.constant(0, tf.int64)
    )


def _with_plan(pipeline: InputPipeline, plan: Plan) -> InputPipeline:
    """The same data by another plan, as dicts that every op can work on."""
    return replace(pipeline, plan=plan, with_keys=True, worker=TrainingWorker(), scratch=Scratch())


def _per_element(
    dataset: tf.data.Dataset, elements: int = 1, *, clock: Callable[[], float]
) -> float:
    """Time per element [µs], of `elements` at a time, which tf.data goes through by itself; the
    first times are left out.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    drained = iter(dataset.repeat().shard(elements, elements - 1).with_options(options))
    taken: list[float] = []
    started_at = clock()
    while len(taken) < MIN_RUNS or (clock() - started_at < BUDGET_S and len(taken) < MAX_RUNS):
        start = clock()
        next(drained)
        taken.append((clock() - start) / elements * 1e6)
    return float(np.percentile(taken[WARM_UP_RUNS:], 25))  # what disturbs only makes it longer
