"""Train steps under the clock: the model on a batch that is already there and on what the pipeline feeds, by turns, then traced."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tasks.evidence.xspace import STEP
from tasks.models import Models, Resident, compile_model
from tasks.pipelines.dataset import InputPipeline
from tasks.settings import TrainSettings

WARM_UP_STEPS = 3
PLENTY = 1000  # epochs
PAUSE_S, RESTING, PATIENCE_S = 0.01, 0.2, 2.0  # cores in use that count as none, and how long to wait for that
ENOUGH = 7  # rounds, for an interval that a single disturbed one cannot widen
Step = Callable[[], Any]  # one train step; returns Keras' logs


@dataclass(frozen=True, kw_only=True)
class Turn:
    """Some steps one after another: each one's time [ms], up to the moment its loss is known on the host, and their work on all cores."""

    steps_ms: tuple[float, ...]
    core_ms: float

    @property
    def median_ms(self) -> float:
        """A step's time."""
        return statistics.median(self.steps_ms)


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """Turns of the model alone and of training, one after the other, so that the machine's drift hits both alike."""

    model: tuple[Turn, ...]
    train: tuple[Turn, ...]

    @property
    def model_step_ms(self) -> float:
        """A step of the model alone: median over the rounds [ms]."""
        return statistics.median(turn.median_ms for turn in self.model)

    @property
    def model_core_ms(self) -> float:
        """Work of such a step on all cores [ms]."""
        return statistics.median(turn.core_ms for turn in self.model)

    @property
    def train_step_ms(self) -> float:
        """A real step: median over the rounds [ms]."""
        return statistics.median(turn.median_ms for turn in self.train)

    @property
    def stalls_pct(self) -> tuple[float, ...]:
        """Stall of each round, ascending: what a real step takes beyond the model's step of the same round."""
        pairs = zip(self.model, self.train, strict=True)
        return tuple(sorted(max(0.0, 100 * (1 - model.median_ms / train.median_ms)) for model, train in pairs))

    @property
    def stall_pct(self) -> float:
        """Median over the rounds."""
        return statistics.median(self.stalls_pct)

    @property
    def stall_interval_pct(self) -> tuple[float, float]:
        """Where the median lies, for all that the rounds tell."""
        return interval(self.stalls_pct)

    @property
    def train_step_interval_ms(self) -> tuple[float, float]:
        """The same for a real step's time."""
        return interval(sorted(turn.median_ms for turn in self.train))

    @property
    def train_steps_ms(self) -> list[float]:
        """Every real step."""
        return [step for turn in self.train for step in turn.steps_ms]


def interval(ascending: Sequence[float]) -> tuple[float, float]:
    """Interval of the median from the order of the values: the extremes are left out where there are at least seven.

    Of nine independent values it covers the median with a probability of 96 %, whatever their distribution; of five, with all of them, 94 %.
    """
    spare = 1 if len(ascending) >= ENOUGH else 0
    return ascending[spare], ascending[-1 - spare]


def in_turns(alone: Step, training: Step, *, rounds: int, seconds: float, at_least: int) -> Rounds:
    """Time a step of the model alone and one of training by turns of `seconds`, but at least so many steps."""
    for _ in range(WARM_UP_STEPS):
        alone()
        training()
    turns = []
    for _ in range(rounds):
        settle()
        turns.append((_turn(alone, seconds, at_least), _turn(training, seconds, at_least)))
    return Rounds(model=tuple(turn for turn, _ in turns), train=tuple(turn for _, turn in turns))


def settle() -> None:
    """Wait until the input's threads have filled their buffers and rest, so that they do not slow the model that is timed alone."""
    deadline = time.perf_counter() + PATIENCE_S
    while time.perf_counter() < deadline:
        begun, cpu = time.perf_counter(), time.process_time()
        time.sleep(PAUSE_S)
        if time.process_time() - cpu < RESTING * (time.perf_counter() - begun):
            return


def _turn(step: Step, seconds: float, at_least: int) -> Turn:
    times: list[float] = []
    _done(step())  # what the other's turn has pushed out of the caches comes back
    begun, cpu = time.perf_counter(), time.process_time()
    while len(times) < at_least or time.perf_counter() - begun < seconds:
        start = time.perf_counter()
        _done(step())
        times.append((time.perf_counter() - start) * 1e3)
    return Turn(steps_ms=tuple(times), core_ms=(time.process_time() - cpu) * 1e3 / len(times))


def _done(logs: Any) -> float:
    """Wait until the step's loss has arrived on the host."""
    return float(next(iter(logs.values())))


def alone(models: Models, pipeline: InputPipeline, settings: TrainSettings) -> Step:
    """Keras' own train step on one batch that is there already: what the model can do when input costs nothing."""
    return _step_of(models.whole if pipeline.plan.device_ops else models.network, models, pipeline, settings, _endless(next(pipeline.batches())))


def training(models: Models, pipeline: InputPipeline, settings: TrainSettings) -> Step:
    """Keras' own train step on what the pipeline feeds."""
    model = models.whole if pipeline.plan.device_ops else models.network
    model = Resident(model, pipeline.gatherer()) if pipeline.plan.resident else model
    return _step_of(model, models, pipeline, settings, _epochs(pipeline))


def _step_of(model: keras.Model, models: Models, pipeline: InputPipeline, settings: TrainSettings, batches: Iterator) -> Step:
    compile_model(model, settings.model_copy(update={"steps_per_execution": 1}), target=models.target, steps=pipeline.steps)
    model.make_train_function()
    step: Any = model.train_function
    return lambda: step(batches)


def trace(step: Step, folder: Path, *, steps: int) -> None:
    """Record a TensorBoard-readable trace of `steps` steps into `folder`."""
    tf.profiler.experimental.start(str(folder))
    try:
        for number in range(steps):
            with tf.profiler.experimental.Trace(STEP, step_num=number, _r=1):
                step()
    finally:
        tf.profiler.experimental.stop()


def _endless(batch: Any) -> Iterator:
    """One batch again and again, kept on the training device."""
    device = "/GPU:0" if tf.config.list_physical_devices("GPU") else "/CPU:0"
    with tf.device(device):
        batch = tf.nest.map_structure(tf.identity, batch)
    dataset = tf.data.Dataset.from_tensors(batch).repeat()
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    return iter(dataset.with_options(options))


def _epochs(pipeline: InputPipeline) -> Iterator:
    """What training is fed, without end, its cache full."""
    if pipeline.plan.resident:
        return iter(tf.data.Dataset.range(PLENTY * pipeline.steps))
    batches = iter(pipeline.dataset(epochs=PLENTY))
    for _ in range(pipeline.steps if pipeline.plan.caches else 0):
        next(batches)  # a cache serves from the second epoch on, and that is what most of a training sees
    return batches
