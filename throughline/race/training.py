"""The jobs of contestants, each in a process of its own: train through a configuration for a
moment, as `fit` does, or run the model on a batch that is ready.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from throughline.assembly.inputs import (
    infer_input_shape,
    open_input_pipeline,
    open_input_service,
    open_inputs,
)
from throughline.assembly.model import build_models_for
from throughline.assembly.process_configuration import configure_process
from throughline.assembly.training import open_batches
from throughline.config.params import Params
from throughline.pipelines.input_pipeline import InputPipeline
from throughline.pipelines.read.sequence_batches import sequence_lengths
from throughline.pipelines.read.stream_readers import read
from throughline.plan.steps import Read
from throughline.race.jobs import Entry, Opened
from throughline.race.sample import sample_shards
from throughline.shared.layout import Layout
from throughline.training.fit import Position
from throughline.training.gpus import count_training_gpus
from throughline.training.step_function import StepFunction
from throughline.training.step_model import Feed, make_step_model

TURN_STEPS = 10  # a turn has so many, and takes as long as it is asked to,
LONGEST_TURN_S, FEWEST_STEPS = 5.0, 3  # unless that takes too long
WARM_UP_STEPS = 10  # in which graphs are traced and AUTOTUNE begins,
LEAST_WARM_UP_STEPS, WARM_UP_S = 2, 5.0  # unless those after the first call take too long
MANY_EPOCHS = 1_000_000  # of batches, for epochs of few steps
BATCHES_IN_MEMORY = 64
MOST_READY, READY_S = 512, 0.004  # batches that lie ready, and what taking one takes at most


class Training:
    """Trains through a configuration, turn by turn, or takes its batches alone. What is kept in
    memory or in a cache is a sample: how long an epoch takes follows from its rate.
    """

    def __init__(self, entry: Entry) -> None:
        os.environ.update(entry.environment)
        self._service = ExitStack()
        address = self._service.enter_context(open_input_service(entry.config))
        pipeline, self._step, self._sample = _open(entry, address=address)
        self._pipeline = pipeline
        started_at = time.perf_counter()
        self._batches = iter(open_batches(pipeline, Position(), epochs=MANY_EPOCHS))
        saves = entry.config.cache is not None and entry.config.cache.where == "save_load"
        self._saved_s = time.perf_counter() - started_at if saves else 0.0
        self._left, has_cache, self._is_drained = 0, bool(pipeline.plan.caches), False
        next(self._batches)
        first_batch_s = time.perf_counter() - started_at - self._saved_s
        if has_cache:
            shape = infer_input_shape(entry.params, pipeline.data)
            zeros = _repeat_zeros(pipeline, self._batches.element_spec, shape)
            advance(self._step, zeros)  # builds the graph, and what the device needs for it
            self._step.settle()
        else:
            warm_up(self._step, self._advance, seconds=WARM_UP_S)
        self._compile_last(entry)
        self.opened = Opened(
            has_cache=has_cache,
            loads=_find_loaded(pipeline) is not None,
            first_batch_s=None if pipeline.plan.gathers_on_device else first_batch_s,
        )

    def _compile_last(self, entry: Entry) -> None:
        """Run a step of the size of an epoch's last one, for which a GPU, and XLA, compile kernels
        when they meet it.
        """
        compiles = entry.params.train.jit_compile or count_training_gpus() > 0
        last = _last_batch_size(self._pipeline)
        if compiles and last and not self._pipeline.plan.gathers_on_device:
            shape = infer_input_shape(entry.params, self._pipeline.data)
            spec = self._batches.element_spec
            advance(self._step, _repeat_zeros(self._pipeline, spec, shape, examples=last))
            self._step.settle()

    def load(self) -> float:
        """Load once more what is read from memory; returns what that takes of all examples [s]."""
        if (step := _find_loaded(self._pipeline)) is None:
            return 0.0
        started_at = time.perf_counter()
        read(step, self._pipeline.data, self._pipeline.split, seed=0)
        return (time.perf_counter() - started_at) / self._sample.share

    def fill(self) -> float:
        """Train through the first epoch, in which a cache is filled; returns what that takes of all
        examples [s].
        """
        started_at = time.perf_counter()
        first = done = self._advance()
        began_at = time.perf_counter()
        while done < self._sample.steps:
            done += self._advance()
        self._step.settle()
        ended_at, sample = time.perf_counter(), self._sample
        saved_s = self._saved_s / sample.share
        if done == first:
            return (ended_at - started_at) / sample.share + saved_s
        # What an epoch begins with, as opening files, is not the more for more examples.
        more = (sample.steps / sample.share - first) / (done - first)
        return began_at - started_at + (ended_at - began_at) * more + saved_s

    def train(self, seconds: float) -> float:
        """Train for a moment, from the state in which the last turn has left all buffers; returns
        on how many examples. The first turn, which does not count, begins on empty buffers: what
        lies ready after opening, no turn has paid for.
        """
        if not self._is_drained:
            self._is_drained = True
            self._drain()
        return self._sample.mean_batch * _train_for_a_turn(self._step, self._advance, seconds)

    def _drain(self) -> None:
        """Take batches until one has to be waited for."""
        for _ in range(0 if self._pipeline.plan.gathers_on_device else MOST_READY):
            asked_at = time.perf_counter()
            self._pull()
            if time.perf_counter() - asked_at > READY_S:
                return

    def pull(self, seconds: float) -> float:
        """Take batches for a moment, and train on none; returns how many examples."""
        return self._sample.mean_batch * _repeat_for_a_turn(self._pull, seconds)

    def _pull(self) -> int:
        next(self._batches)
        return 1

    def _advance(self) -> int:
        """Run the next execution, as `fit` does; returns its steps."""
        if self._left == 0:
            self._left = self._pipeline.steps_per_epoch
            self._step.begin(self._left)
        self._step(self._batches)
        self._left -= self._step.steps
        return self._step.steps


class ModelAlone:
    """Trains the model on a batch that is ready, of floats: as fast as if input cost nothing."""

    def __init__(self, entry: Entry) -> None:
        os.environ.update(entry.environment)
        pipeline, self._step, self._sample = _open(entry, gathers=False)
        if pipeline.plan.spec.schema.is_text:
            batches = repeat_batches(pipeline)
        else:
            batches = repeat_epoch(next(pipeline.batches()), pipeline)
        self._advance, self.opened = partial(advance, self._step, batches), Opened()
        warm_up(self._step, self._advance, seconds=WARM_UP_S)

    def train(self, seconds: float) -> float:
        """Train for a moment; returns on how many examples."""
        return self._sample.mean_batch * _train_for_a_turn(self._step, self._advance, seconds)


@dataclass(frozen=True, kw_only=True)
class _Sample:
    """The share of the training split's examples that there are for an entry, the steps of their
    epoch, and the examples that this process has of a batch, on average over an epoch, whose last
    one may be small.
    """

    share: float
    steps: int
    mean_batch: float


def _open(
    entry: Entry, *, address: str = "", gathers: bool = True
) -> tuple[InputPipeline, StepFunction, _Sample]:
    """The input pipeline and the train step of an entry, and what sample it reads."""
    params = _only(entry)
    configure_process(params.train)
    data = open_inputs(params, Layout(entry.root))
    models = build_models_for(params, data)
    keeps = entry.config.cache is not None or entry.config.read == "arrays"
    given = sample_shards(data, entry.config.sampling) if keeps else data
    pipeline = open_input_pipeline(
        params, entry.name, given, split="train", purpose="train", address=address
    )
    step = StepFunction(
        make_step_model(models, params.train, Feed.of(pipeline, params.train, gathers=gathers))
    )
    share = given.shards.examples("train") / data.shards.examples("train")
    steps, counted = pipeline.steps_per_epoch, pipeline
    if share < 1:  # windows of tokens and buckets are counted in the snapshot, which has all
        whole = replace(pipeline, data=data)
        steps = min(steps, math.ceil(share * whole.steps_per_epoch))
        counted = whole if pipeline.plan.batching else pipeline
    mean_batch = counted.examples / counted.steps_per_epoch / pipeline.worker.count
    return pipeline, step, _Sample(share=share, steps=steps, mean_batch=mean_batch)


def _find_loaded(pipeline: InputPipeline) -> Read | None:
    """The first step, where it reads from memory."""
    step = pipeline.plan.steps[0]
    return step if isinstance(step, Read) and step.source == "arrays" else None


def _last_batch_size(pipeline: InputPipeline) -> int | None:
    """How many examples this process has of an epoch's last batch, where those are fewer than of
    the others; None where they are not, or where batches differ anyway.
    """
    last = pipeline.examples % pipeline.batch_size
    texts = pipeline.plan.spec.schema.is_text and pipeline.plan.window is None
    if texts or pipeline.plan.batching or not last or pipeline.steps_per_epoch == 1:
        return None
    return last // pipeline.worker.count or None


def _repeat_zeros(
    pipeline: InputPipeline,
    spec: Any,
    input_shape: tuple[int | None, ...],
    *,
    examples: int | None = None,
) -> Iterator[Any]:
    """Batches of zeros, as `spec` says; what that leaves open is that of the model's input, whose
    texts are as long as the longest.
    """
    is_text = pipeline.plan.spec.schema.is_text
    lengths = sequence_lengths(pipeline.data, pipeline.split) if is_text else np.ones(1, int)
    longest, batching = int(lengths.max(initial=1)), pipeline.plan.batching
    tokens = batching.tokens if batching else None
    whole = pipeline.batch_size // pipeline.worker.count
    examples = examples or (max(1, tokens // longest) if tokens else whole)
    usual = [examples, *(size or longest for size in input_shape)]

    def zeros(one: Any) -> tf.Tensor:
        sizes = [size or other for size, other in zip(one.shape, usual, strict=False)]
        return tf.zeros(sizes, one.dtype)

    batch = tf.nest.map_structure(zeros, spec)
    batches = tf.data.Dataset.from_generator(lambda: itertools.repeat(batch), output_signature=spec)
    return iter(batches)


def _only(entry: Entry) -> Params:
    return replace(entry.params, pipelines={entry.name: entry.config})


def advance(step: StepFunction, batches: Iterator[Any]) -> int:
    """Run the next execution, whatever epochs there are; returns its steps."""
    step.begin(MANY_EPOCHS)
    step(batches)
    return step.steps


def warm_up(step: StepFunction, advance: Callable[[], int], *, seconds: float) -> int:
    """Run the steps in which the graph is traced and AUTOTUNE begins, fewer where those after the
    first call take longer than `seconds`; returns how many.
    """
    done, limit = 0, math.inf
    while done < WARM_UP_STEPS and (done < LEAST_WARM_UP_STEPS or time.perf_counter() < limit):
        done += advance()
        step.settle()
        limit = min(limit, time.perf_counter() + seconds)
    return done


def _train_for_a_turn(step: StepFunction, advance: Callable[[], int], seconds: float) -> int:
    """Train as `fit` does: of a GPU, the step before each is waited for, and the last one."""
    steps = _repeat_for_a_turn(advance, seconds)
    step.settle()
    return steps


def _repeat_for_a_turn(advance: Callable[[], int], seconds: float) -> int:
    """Run executions for as long as a turn is; returns how many steps they were."""
    steps, started_at, taken_s = 0, time.perf_counter(), 0.0
    while steps < FEWEST_STEPS or (
        (steps < TURN_STEPS or taken_s < seconds) and taken_s < LONGEST_TURN_S
    ):
        steps += advance()
        taken_s = time.perf_counter() - started_at
    return steps


def repeat_batches(pipeline: InputPipeline) -> Iterator[Any]:
    """The first batches of an epoch again and again, kept in memory."""
    batches = pipeline.dataset().take(BATCHES_IN_MEMORY).cache()
    for _ in batches:  # a cache serves when it is full
        pass
    return iter(batches.repeat())


def repeat_epoch(batch: Any, pipeline: InputPipeline) -> Iterator[Any]:
    """One batch, kept in memory, as often as an epoch has steps, and as many of its examples as the
    last one has; again and again.
    """
    dataset, last = tf.data.Dataset.from_tensors(batch), _last_batch_size(pipeline)
    if last is not None:
        ending = tf.data.Dataset.from_tensors(
            tf.nest.map_structure(lambda part: part[:last], batch)
        )
        dataset = dataset.repeat(pipeline.steps_per_epoch - 1).concatenate(ending)
    dataset = dataset.repeat()
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    return iter(dataset.with_options(options))
