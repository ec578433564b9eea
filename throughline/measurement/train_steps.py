"""Train steps to be timed: the model on a batch that is ready, and on the batches of the pipeline.

`steady_state.py` says what is measured with them, and in which order.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import psutil
import tensorflow as tf

from throughline.kernels.elements import apply_ops, select_inputs
from throughline.measurement.other_processes import read_times
from throughline.measurement.rounds import SteadyState
from throughline.measurement.steady_state import (
    WARM_UP_STEPS,
    StepClock,
    StepFunction,
    measure_steady_state,
)
from throughline.models.builders import Models
from throughline.pipelines.input_pipeline import InputPipeline
from throughline.plan.plan import make_plan
from throughline.settings import MeasureSettings, PipelineConfig, ShuffleSettings, TrainSettings
from throughline.shared.scratch import Scratch
from throughline.training.gpus import count_training_gpus
from throughline.training.one_ahead import OneAhead
from throughline.training.step_function import make_execution
from throughline.training.step_model import Feed, make_step_model

MAX_EPOCHS = 1_000_000
MAX_STEPS = 1 << 40
BATCHES_IN_MEMORY = 64
FEW_STEPS = 100  # of an epoch: of more, one that is shorter hardly counts
CALLS = 5  # that are timed by themselves
# Cores in use that count as none, and how long to wait for that.
PAUSE_S, IDLE_CORES, IDLE_TIMEOUT_S = 0.01, 0.2, 5.0
IDLE_PAUSES = 3  # in a row: parallel calls pause, too


class TrainingLoop:
    """Keras' own train step on what the pipeline feeds, each epoch after the other.

    `ahead` follows its steps, and those that are timed in turn with them: as in training, the host
    is one step ahead of a GPU.
    """

    def __init__(
        self,
        models: Models,
        pipeline: InputPipeline,
        settings: TrainSettings,
        *,
        warm_up_steps: int = WARM_UP_STEPS,
    ) -> None:
        if pipeline.plan.gathers_on_device:
            steps = tf.data.Dataset.range(MAX_EPOCHS * pipeline.steps_per_epoch)
            last = pipeline.steps_per_epoch - 1
            if _ends_short(pipeline):
                steps = steps.filter(lambda step: step % pipeline.steps_per_epoch != last)
            self._batches: Iterator = iter(steps)
        else:
            self._batches = iter(_without_short(pipeline.dataset(epochs=MAX_EPOCHS), pipeline))
        self._fill = pipeline.steps_per_epoch if pipeline.plan.caches else 0
        self._warm_up_steps = min(warm_up_steps, pipeline.steps_per_epoch)
        self._step = _train_function(models, settings, Feed.of(pipeline, settings))
        self._pipeline, self.ahead = pipeline, OneAhead()
        # An accelerator, and XLA, compile kernels for a size of batches when they meet it. Where
        # all are full there is one.
        self._compiles_by_size = (
            not pipeline.plan.batching
            and pipeline.examples % pipeline.batch_size > 0
            and (settings.jit_compile or count_training_gpus() > 0)
        )

    def start(self) -> None:
        """Fill a cache, and take the steps in which the graph is traced and AUTOTUNE finds its
        settings.
        """
        for _ in range(self._fill):
            # a cache serves from the second epoch on, and that is what most of a training sees
            self.pull()
        for _ in range(self._warm_up_steps):
            self.step()
        if self._compiles_by_size:
            self.ahead.follow(self._step(self._last_batch()))

    def _last_batch(self) -> Iterator:
        """An iterator of one batch that is as large as the last one of an epoch."""
        steps = self._pipeline.steps_per_epoch
        if self._pipeline.plan.gathers_on_device:
            return iter(tf.data.Dataset.range(steps - 1, steps))
        size = self._pipeline.examples - (steps - 1) * self._pipeline.batch_size
        return repeat_batch(tf.nest.map_structure(lambda part: part[:size], next(self._batches)))

    def step(self) -> None:
        """Take a batch and train on it; returns when the step before has ended."""
        self.ahead.follow(self._step(self._batches))

    def pull(self) -> None:
        """Take a batch and leave it unused."""
        next(self._batches)


def _ends_short(pipeline: InputPipeline) -> bool:
    """Whether epochs of few steps end with a smaller batch. Its step is none as those that are
    compared with the model alone, and would pass for a shorter wait.
    """
    return (
        1 < pipeline.steps_per_epoch <= FEW_STEPS
        and pipeline.examples % pipeline.batch_size > 0
        and not pipeline.plan.batching
        and not _differs_in_length(pipeline)
    )


def _without_short(batches: tf.data.Dataset, pipeline: InputPipeline) -> tf.data.Dataset:
    size = int(pipeline.examples_per_step)

    def is_full(*batch: Any) -> tf.Tensor:
        return tf.equal(tf.shape(tf.nest.flatten(batch)[0])[0], size)

    return batches.filter(is_full, name="full") if _ends_short(pipeline) else batches


def make_model_only_step(
    models: Models, pipeline: InputPipeline, settings: TrainSettings, ahead: OneAhead
) -> StepFunction:
    """The layers that `pipeline` trains, on one batch that is there already: what the model does
    when input costs nothing. Where batches differ in size, they are the first ones of an epoch.
    Its way to a GPU is part of the step, as in training; a batch that training gathers there is
    there.
    """
    if pipeline.plan.gathers_on_device:
        batch = next(pipeline.batches())
        feed = replace(Feed.of(pipeline, settings, gathers=False), gather=lambda _: batch)
        train, steps = _train_function(models, settings, feed), tf.data.Dataset.range(MAX_STEPS)
        numbers = iter(steps)
        return lambda: ahead.follow(train(numbers))
    batches = (
        repeat_batches(pipeline)
        if _differs_in_length(pipeline)
        else repeat_batch(next(pipeline.batches()))
    )
    feed = Feed.of(pipeline, settings, gathers=False)
    step = _train_function(models, settings, feed)
    return lambda: ahead.follow(step(batches))


def make_reference_step(
    models: Models, pipeline: InputPipeline, settings: TrainSettings, ahead: OneAhead
) -> StepFunction:
    """The network on a postprocessed batch: the same work for every configuration, so that
    they can be compared by it.
    """
    inputs, labels = next(pipeline.batches())
    schema, epoch = pipeline.data.shards.schema, tf.constant(0, tf.int64)
    named = inputs if schema.table_input else {schema.input.name: inputs}
    postprocessed = apply_ops(
        pipeline.plan.device_ops, {**named, "label": labels}, seed=pipeline.seed, epoch=epoch
    )
    batches = repeat_batch((select_inputs(postprocessed, schema), labels))
    feed = replace(Feed.of(pipeline, settings, gathers=False), stored=False, segments=None)
    step = _train_function(models, settings, feed)
    return lambda: ahead.follow(step(batches))


def _differs_in_length(pipeline: InputPipeline) -> bool:
    """Whether batches differ in size: texts, unless they are windows of tokens."""
    return pipeline.plan.spec.schema.is_text and pipeline.plan.window is None


def batch_plainly(pipeline: InputPipeline) -> InputPipeline:
    """The texts of a pipeline in batches that no configuration has chosen by their lengths: the
    same for all, which pad and pack them in different ways. A process with lanes of its own reads
    these alone.
    """
    gather, shuffle = pipeline.plan.gather, ShuffleSettings(kind="global")
    if gather and gather.shuffle.lanes:
        shuffle = gather.shuffle
    plan = make_plan(PipelineConfig(read="snapshot", shuffle=shuffle), pipeline.plan.spec)
    return replace(pipeline, plan=plan, scratch=Scratch())


def time_training(
    loop: TrainingLoop,
    models: Models,
    pipeline: InputPipeline,
    *,
    train: TrainSettings,
    measure: MeasureSettings,
) -> SteadyState:
    """Time the model alone and training in alternating blocks, from full and drained buffers."""
    model = make_model_only_step(models, pipeline, train, loop.ahead)
    reference, examples = model, pipeline.examples_per_step
    if models.emulation:  # a step takes as long whatever is in it
        examples = pipeline.batch_size / pipeline.worker.count
    if not models.emulation and _differs_in_length(pipeline):
        plain = batch_plainly(pipeline)
        reference = make_model_only_step(models, plain, train, loop.ahead)
        examples = plain.examples_per_step
    elif not models.emulation and pipeline.plan.device_ops:
        reference = make_reference_step(models, pipeline, train, loop.ahead)
    clock = StepClock(wait_until_idle=wait_until_idle)
    state = measure_steady_state(
        loop,
        model,
        reference,
        clock,
        max_rounds=measure.rounds,
        max_seconds=measure.stall_max_seconds,
    )
    calls = [time_call(model, loop.ahead) for _ in range(CALLS)]
    return replace(
        state,
        examples_ratio=pipeline.examples_per_step / examples,
        held_ms=statistics.median(calls),
    )


def time_call(
    model: StepFunction, ahead: OneAhead, *, clock: Callable[[], float] = time.perf_counter
) -> float:
    """How long the call of a step takes when nothing is queued [ms]; a GPU takes only so much into
    its queue, and the call waits for the rest.
    """
    ahead.settle()
    started_at = clock()
    model()
    return (clock() - started_at) * 1e3


def wait_until_idle(timeout_s: float = IDLE_TIMEOUT_S) -> bool:
    """Wait until buffers are full and the input's threads and service workers rest; returns whether
    they do.
    """
    deadline, idle = time.perf_counter() + timeout_s, 0
    workers = psutil.Process().children(recursive=True)
    while idle < IDLE_PAUSES and time.perf_counter() < deadline:
        started, cpu = time.perf_counter(), _cpu_s(workers)
        time.sleep(PAUSE_S)
        idle = (
            idle + 1 if _cpu_s(workers) - cpu < IDLE_CORES * (time.perf_counter() - started) else 0
        )
    return idle >= IDLE_PAUSES


def _cpu_s(workers: list[psutil.Process]) -> float:
    """CPU seconds of this process, finer than psutil's ticks, and of the service's workers that it
    has started.
    """
    return time.process_time() + sum(sum(read_times(each)[:2]) for each in workers)


def _train_function(models: Models, settings: TrainSettings, feed: Feed) -> Any:
    """The function from an iterator to the logs of one step."""
    model = make_step_model(models, settings, feed)
    model.steps_per_execution = 1
    run = make_execution(model)
    return lambda batches: run(batches, tf.constant(1))


def repeat_batches(pipeline: InputPipeline) -> Iterator:
    """The first batches of an epoch again and again, kept in memory."""
    batches = pipeline.dataset().take(BATCHES_IN_MEMORY).cache()
    for _ in batches:  # a cache serves when it is full
        pass
    return iter(batches.repeat())


def repeat_batch(batch: Any) -> Iterator:
    """One batch again and again, kept in memory."""
    dataset = tf.data.Dataset.from_tensors(batch).repeat()
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    return iter(dataset.with_options(options))
