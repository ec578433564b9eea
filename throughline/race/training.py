"""The jobs of contestants: training through a configuration, and training on ready batches.

Each runs in a process of its own and trains for a moment at a time.
"""

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
from throughline.assembly.model import build_models_for, configure_process
from throughline.pipelines.input_pipeline import InputPipeline
from throughline.pipelines.read.prepared_data import PreparedData, read_labels_and_weights
from throughline.pipelines.read.sequence_batches import sequence_lengths
from throughline.pipelines.read.stream_readers import read
from throughline.plan.steps import Read
from throughline.race.jobs import Entry, Opened
from throughline.settings import Sampling
from throughline.shared.layout import Layout
from throughline.training.replicas import count_training_gpus
from throughline.training.step_function import StepFunction
from throughline.training.step_model import Feed, make_step_model

# The least steps of a turn, besides its duration. An input that waits while it is frozen gets up to
# a batch per turn for nothing, so turns of few steps last twice as long.
TURN_STEPS, MANY_STEPS = 10, 30
LONGEST_TURN_S, FEWEST_STEPS = 5.0, 3  # a turn this long ends after FEWEST_STEPS
WARM_UP_STEPS = 10  # in which graphs are traced and AUTOTUNE starts
LEAST_WARM_UP_STEPS, WARM_UP_S = 2, 5.0  # fewer steps, if those after the first call take WARM_UP_S
MANY_EPOCHS = 1_000_000  # more than a race gets through, even if epochs have few steps
BATCHES_IN_MEMORY = 64
MOST_READY, READY_S = 512, 0.004  # ready batches, and the time to get one, at most
SAMPLE_BYTES = 64 * 2**20  # size of the shards in a sample


class Training:
    """Trains through a configuration, or only takes its batches, turn by turn.

    Memory and caches hold only a sample, whose rate gives the time of a whole epoch.
    """

    def __init__(self, entry: Entry) -> None:
        os.environ.update(entry.environment)
        self._service = ExitStack()
        address = self._service.enter_context(open_input_service(entry.config))
        pipeline, self._step, self._sample = _open(entry, address=address)
        self._pipeline, first = pipeline, pipeline.plan.steps[0]
        self._loaded = first if isinstance(first, Read) and first.source == "arrays" else None
        started_at = time.perf_counter()
        self._batches = iter(pipeline.steps(epochs=MANY_EPOCHS))
        saves = entry.config.cache is not None and entry.config.cache.where == "save_load"
        self._saved_s = time.perf_counter() - started_at if saves else 0.0
        self._left, self._is_drained = 0, False
        next(self._batches)
        first_batch_s = time.perf_counter() - started_at - self._saved_s
        if pipeline.plan.caches:
            self._train_on_zeros(entry)  # builds the graph, and its kernels on the device
        else:
            warm_up(self._step, self._advance, seconds=WARM_UP_S)
        on_device, last = pipeline.plan.gathers_on_device, _last_batch_size(pipeline)
        compiles = entry.params.train.jit_compile or count_training_gpus() > 0
        if compiles and last and not on_device:
            self._train_on_zeros(entry, examples=last)  # a GPU, and XLA, compile kernels for it
        self.opened = Opened(
            has_cache=bool(pipeline.plan.caches),
            loads=self._loaded is not None,
            first_batch_s=None if on_device else first_batch_s,
        )

    def _train_on_zeros(self, entry: Entry, *, examples: int | None = None) -> None:
        """Train on a batch of zeros, which has the sizes of the input, or of the longest text."""
        pipeline, spec = self._pipeline, self._batches.element_spec
        is_text, batching = pipeline.plan.spec.schema.is_text, pipeline.plan.batching
        lengths = sequence_lengths(pipeline.data, pipeline.split) if is_text else np.ones(1, int)
        longest = int(lengths.max(initial=1))
        whole = pipeline.batch_size // pipeline.worker.count
        if batching and batching.tokens:
            whole = max(1, batching.tokens // longest)
        shape = infer_input_shape(entry.params, pipeline.data)
        usual = [examples or whole, *(size or longest for size in shape)]

        def zeros(one: Any) -> tf.Tensor:
            sizes = [size or other for size, other in zip(one.shape, usual, strict=False)]
            return tf.zeros(sizes, one.dtype)

        repeated = partial(itertools.repeat, tf.nest.map_structure(zeros, spec))
        batches = tf.data.Dataset.from_generator(repeated, output_signature=spec)
        advance(self._step, iter(batches))
        self._step.settle()

    def load(self) -> float:
        """Load the sample again; return the time for all examples [s], 0 if none is in memory."""
        if self._loaded is None:
            return 0.0
        started_at = time.perf_counter()
        read(self._loaded, self._pipeline.data, self._pipeline.split, seed=0)
        return (time.perf_counter() - started_at) / self._sample.share

    def fill(self) -> float:
        """Train for the first epoch, which fills a cache; return the time for all examples [s]."""
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
        # Work done once per epoch, such as opening files, does not grow with the examples.
        more = (sample.steps / sample.share - first) / (done - first)
        return began_at - started_at + (ended_at - began_at) * more + saved_s

    def train(self, seconds: float) -> float:
        """Train for a moment, and return the number of examples.

        Buffers are as the last turn left them. They are emptied before the first turn, which does
        not count, because no turn has paid for the batches that are ready by then.
        """
        if not self._is_drained and not self._pipeline.plan.gathers_on_device:
            self._drain()
        self._is_drained = True
        steps = _repeat_for_a_turn(self._advance, seconds)
        self._step.settle()
        return self._sample.mean_batch * steps

    def _drain(self) -> None:
        for _ in range(MOST_READY):
            asked_at = time.perf_counter()
            self._pull()
            if time.perf_counter() - asked_at > READY_S:
                return

    def pull(self, seconds: float) -> float:
        return self._sample.mean_batch * _repeat_for_a_turn(self._pull, seconds)

    def _pull(self) -> int:
        next(self._batches)
        return 1

    def _advance(self) -> int:
        if self._left == 0:
            self._left = self._pipeline.steps_per_epoch
            self._step.begin(self._left)
        self._step(self._batches)
        self._left -= self._step.steps
        return self._step.steps


class ModelAlone:
    """Trains the model on batches that are ready in memory, as fast as if input cost nothing."""

    def __init__(self, entry: Entry) -> None:
        os.environ.update(entry.environment)
        pipeline, self._step, self._sample = _open(entry, gathers=False)
        is_text = pipeline.plan.spec.schema.is_text
        batches = repeat_batches(pipeline) if is_text else repeat_epoch(pipeline)
        self._advance, self.opened = partial(advance, self._step, batches), Opened()
        warm_up(self._step, self._advance, seconds=WARM_UP_S)

    def train(self, seconds: float) -> float:
        steps = _repeat_for_a_turn(self._advance, seconds)
        self._step.settle()
        return self._sample.mean_batch * steps


@dataclass(frozen=True, kw_only=True)
class _Sample:
    """The sample of the training split that an entry reads."""

    share: float
    steps: int
    mean_batch: float  # this process's examples per batch; the last one may be smaller


def _open(
    entry: Entry, *, address: str = "", gathers: bool = True
) -> tuple[InputPipeline, StepFunction, _Sample]:
    params = replace(entry.params, pipelines={entry.name: entry.config})
    configure_process(params.train)
    data = open_inputs(params, Layout(entry.root))
    models = build_models_for(params, data)
    keeps = entry.config.cache is not None or entry.config.read == "arrays"
    given = sample_shards(data, entry.config.sampling) if keeps else data
    pipeline = open_input_pipeline(params, entry.name, given, address=address)
    feed = Feed.of(pipeline, params.train, gathers=gathers)
    step = StepFunction(make_step_model(models, params.train, feed))
    share = given.shards.examples("train") / data.shards.examples("train")
    steps, counted = pipeline.steps_per_epoch, pipeline
    if share < 1:  # windows of tokens and buckets are counted in the whole snapshot
        whole = replace(pipeline, data=data)
        steps = min(steps, math.ceil(share * whole.steps_per_epoch))
        counted = whole if pipeline.plan.batching else pipeline
    mean_batch = counted.examples / counted.steps_per_epoch / pipeline.worker.count
    return pipeline, step, _Sample(share=share, steps=steps, mean_batch=mean_batch)


def sample_shards(data: PreparedData, sampling: Sampling = "uniform") -> PreparedData:
    """Keep only the first shards of the training split, up to `SAMPLE_BYTES` but at least one.

    Examples are in random order, so these stand for all. If classes are sampled, as many shards are
    kept as it takes for every class with a weight to have an example.
    """
    kept, size, lacking, end = [], 0, set[int](), 0
    if sampling != "uniform":
        labels, weights = read_labels_and_weights(sampling, data, "train")
        lacking = {*np.flatnonzero(weights).tolist()}
    for shard in data.shards.for_split("train"):
        if not kept or lacking or size + shard.bytes <= SAMPLE_BYTES:
            kept.append(shard.name)
            size += shard.bytes
            if lacking:
                lacking -= {*labels[end : end + shard.examples].tolist()}
        end += shard.examples
    whole = data.shards.shards
    shards = tuple(shard for shard in whole if shard.split != "train" or shard.name in kept)
    return replace(data, shards=replace(data.shards, shards=shards))


def _last_batch_size(pipeline: InputPipeline) -> int | None:
    """Return this process's share of a smaller last batch; None if there is none, or for texts."""
    texts = pipeline.plan.spec.schema.is_text and pipeline.plan.window is None
    if texts or pipeline.plan.batching or pipeline.steps_per_epoch == 1:
        return None
    return pipeline.examples % pipeline.batch_size // pipeline.worker.count or None


def advance(step: StepFunction, batches: Iterator[Any]) -> int:
    """Run the next call of the step function, regardless of epochs, and return its steps."""
    step.begin(MANY_EPOCHS)
    step(batches)
    return step.steps


def warm_up(step: StepFunction, advance: Callable[[], int], *, seconds: float) -> int:
    """Trace the graph and start AUTOTUNE in a few steps, fewer after `seconds`; return how many."""
    done, limit = 0, math.inf
    while done < WARM_UP_STEPS and (done < LEAST_WARM_UP_STEPS or time.perf_counter() < limit):
        done += advance()
        step.settle()
        limit = min(limit, time.perf_counter() + seconds)
    return done


def _repeat_for_a_turn(advance: Callable[[], int], seconds: float) -> int:
    steps, started_at, is_short = 0, time.perf_counter(), True
    while steps < FEWEST_STEPS or is_short:
        steps += advance()
        taken_s = time.perf_counter() - started_at
        least = TURN_STEPS if taken_s > 2 * seconds else MANY_STEPS
        is_short = taken_s < LONGEST_TURN_S and (steps < least or taken_s < seconds)
    return steps


def repeat_batches(pipeline: InputPipeline) -> Iterator[Any]:
    """Repeat the first batches of an epoch endlessly, from memory."""
    batches = pipeline.dataset().take(BATCHES_IN_MEMORY).cache()
    for _ in batches:  # a cache is used once it is complete
        pass
    return iter(batches.repeat())


def repeat_epoch(pipeline: InputPipeline) -> Iterator[Any]:
    """Repeat the first batch endlessly, from memory; the last of each epoch may be smaller."""
    batch, last = next(pipeline.batches()), _last_batch_size(pipeline)
    dataset = tf.data.Dataset.from_tensors(batch)
    if last is not None:
        ending = tf.nest.map_structure(lambda part: part[:last], batch)
        dataset = dataset.repeat(pipeline.steps_per_epoch - 1)
        dataset = dataset.concatenate(tf.data.Dataset.from_tensors(ending))
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    return iter(dataset.repeat().with_options(options))
