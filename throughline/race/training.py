"""What contestants do, each in a process of its own: train through a configuration for a moment, as
`fit` does, or run the model on a batch that is ready.
"""

from __future__ import annotations

import itertools
import math
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
from throughline.measurement.train_steps import repeat_batch, repeat_batches
from throughline.pipelines.input_pipeline import InputPipeline
from throughline.pipelines.read.sequence_batches import sequence_lengths
from throughline.pipelines.read.stream_readers import read
from throughline.plan.steps import Read
from throughline.race.jobs import Entry, Opened
from throughline.race.rounds import Turn
from throughline.race.sample import sample_shards
from throughline.shared.layout import Layout
from throughline.training.fit import Position
from throughline.training.step_function import StepFunction
from throughline.training.step_model import Feed, make_step_model

TURN_S, TURN_STEPS = 0.4, 10  # a turn is as long as both ask for,
LONGEST_TURN_S, FEWEST_STEPS = 5.0, 3  # unless that takes too long
WARM_UP_STEPS = 10  # in which graphs are traced and AUTOTUNE begins,
LEAST_WARM_UP_STEPS, WARM_UP_S = 2, 5.0  # unless those after the first call take too long
MANY_EPOCHS = 1_000_000  # of batches, for epochs of few steps


class Training:
    """Trains through a configuration, turn by turn. What is kept in memory or in a cache is a
    sample: how long an epoch takes follows from its rate.
    """

    def __init__(self, entry: Entry) -> None:
        self._service = ExitStack()
        address = self._service.enter_context(open_input_service(entry.config))
        pipeline, self._step, self._sample = _open(entry, address=address)
        self._pipeline = pipeline
        started_at = time.perf_counter()
        self._batches = iter(open_batches(pipeline, Position(), epochs=MANY_EPOCHS))
        saves = entry.config.cache is not None and entry.config.cache.where == "save_load"
        self._saved_s = time.perf_counter() - started_at if saves else 0.0
        self._left, has_cache = 0, bool(pipeline.plan.caches)
        if has_cache:
            shape = infer_input_shape(entry.params, pipeline.data)
            zeros = _repeat_zeros(pipeline, self._batches.element_spec, shape)
            advance(self._step, zeros)  # builds the graph, and what the device needs for it
            self._step.settle()
        else:
            warm_up(self._step, self._advance, seconds=WARM_UP_S)
        self.opened = Opened(has_cache=has_cache, loads=_find_loaded(pipeline) is not None)

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

    def turn(self) -> Turn:
        """Train for a moment, from the state in which the last turn has left all buffers."""
        return _take_turn(self._step, self._advance, self._sample.mean_batch)

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
        pipeline, self._step, _ = _open(entry, gathers=False)
        self._examples_per_step = pipeline.examples_per_step
        text = pipeline.plan.spec.schema.is_text
        batches: Iterator[Any] = (
            repeat_batches(pipeline) if text else repeat_batch(next(pipeline.batches()))
        )
        self._advance, self.opened = partial(advance, self._step, batches), Opened()
        warm_up(self._step, self._advance, seconds=WARM_UP_S)

    def turn(self) -> Turn:
        """Train for a moment."""
        return _take_turn(self._step, self._advance, self._examples_per_step)


@dataclass(frozen=True, kw_only=True)
class _Sample:
    """The share of the training split's examples that there are for an entry, the steps of their
    epoch, and the examples of a batch, on average over an epoch, whose last one may be small.
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
    mean_batch = counted.examples / counted.steps_per_epoch
    return pipeline, step, _Sample(share=share, steps=steps, mean_batch=mean_batch)


def _find_loaded(pipeline: InputPipeline) -> Read | None:
    """The first step, where it reads from memory."""
    step = pipeline.plan.steps[0]
    return step if isinstance(step, Read) and step.source == "arrays" else None


def _repeat_zeros(
    pipeline: InputPipeline, spec: Any, input_shape: tuple[int | None, ...]
) -> Iterator[Any]:
    """Batches of zeros, as `spec` says; what that leaves open is that of the model's input, whose
    texts are as long as the longest.
    """
    is_text = pipeline.plan.spec.schema.is_text
    lengths = sequence_lengths(pipeline.data, pipeline.split) if is_text else np.ones(1, int)
    longest, batching = int(lengths.max(initial=1)), pipeline.plan.batching
    tokens = batching.tokens if batching else None
    examples = max(1, tokens // longest) if tokens else pipeline.batch_size
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


def _take_turn(step: StepFunction, advance: Callable[[], int], examples_per_step: float) -> Turn:
    """Train as `fit` does: of a GPU, the step before each is waited for, and the last one."""
    cpu_s, started_at, seconds = time.process_time(), time.perf_counter(), 0.0
    steps = advance()
    held_ms = (time.perf_counter() - started_at) / steps * 1e3
    while steps < FEWEST_STEPS or (
        (steps < TURN_STEPS or seconds < TURN_S) and seconds < LONGEST_TURN_S
    ):
        steps += advance()
        seconds = time.perf_counter() - started_at
    step.settle()
    return Turn(
        examples=steps * examples_per_step,
        seconds=time.perf_counter() - started_at,
        core_ms=(time.process_time() - cpu_s) / steps * 1e3,
        held_ms=held_ms,
    )
