"""A training or an input that is not of our making, under the clock, and what a change of its
dataset gains when it is tried.
"""

from __future__ import annotations

import gc
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import keras
import tensorflow as tf

from throughline.measurement.steady_state import (
    SteadyState,
    StepClock,
    measure_steady_state,
    median_interval,
)
from throughline.measurement.train_steps import repeat_batch, wait_for_loss, wait_until_idle
from throughline.shared.errors import UnmeasurableTraining

MAX_ROUNDS = 9
WARM_UP_S = 1.0  # AUTOTUNE finds its pace
FIT_WARM_UP_STEPS, FIT_WARM_UP_MAX_S, FIT_BLOCKS = 20, 4.0, 7
BLOCK_S, MIN_STEPS, MAX_STEPS, INPUT_ROUNDS = 1.0, 10, 2000, 3


@dataclass(frozen=True, kw_only=True)
class Gain:
    """By what factor something became faster, and where that factor lies."""

    factor: float
    low: float
    high: float

    @classmethod
    def of(cls, before: Sequence[float], after: Sequence[float]) -> Gain:
        """From rates [any unit] that were measured in the same way."""
        (low, high), (new_low, new_high) = median_interval(before), median_interval(after)
        factor = statistics.median(after) / statistics.median(before)
        return cls(factor=factor, low=new_low / high, high=new_high / low)

    def __str__(self) -> str:
        return f"{self.factor:.2f} × ({self.low:.2f} to {self.high:.2f})"


class BlockRates(keras.callbacks.Callback):
    """Ends a `fit` when its steady rate is known: after a warm-up, and blocks of equal time."""

    def __init__(self, *, max_seconds: float) -> None:
        super().__init__()
        self.rates: list[float] = []  #: steps per second
        self._block_s = max(0.0, max_seconds - WARM_UP_S) / FIT_BLOCKS
        self._begun: float | None = None
        self._steps, self._warming_up = 0, True

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count a step, and end the block that it completes."""
        now = perf_counter()
        if self._begun is None:  # this step has traced the graph
            self._begun = now
            return
        self._steps += 1
        seconds = now - self._begun
        if not self._ends(seconds):
            return
        if not self._warming_up:
            self.rates.append(self._steps / seconds)
        self._begun, self._steps, self._warming_up = now, 0, False
        model: Any = self.model
        model.stop_training = len(self.rates) == FIT_BLOCKS

    def _ends(self, seconds: float) -> bool:
        """Whether a block, or the warm-up, has lasted long enough."""
        if not self._warming_up:
            return seconds >= self._block_s
        enough = seconds >= WARM_UP_S and self._steps >= FIT_WARM_UP_STEPS
        return enough or seconds >= FIT_WARM_UP_MAX_S


class UserTraining:
    """A model, and the dataset that it was to be fitted on."""

    def __init__(self, model: keras.Model, dataset: tf.data.Dataset) -> None:
        self.batch = first_batch(dataset)
        self._model, self._batches = model, iter(dataset.repeat())
        model.steps_per_execution = 1
        model.make_train_function()
        self._train: Any = model.train_function

    @property
    def examples(self) -> int:
        """In a batch."""
        return count_examples(self.batch)

    def start(self) -> None:
        """Trace the graph, and let the input find its pace."""
        begun = perf_counter()
        self.step()
        while perf_counter() - begun < WARM_UP_S:
            self.step()

    def step(self) -> float:
        """Take a batch, train on it, wait until its loss is known on the host."""
        return wait_for_loss(self._train(self._batches))

    def pull(self) -> None:
        """Take a batch and leave it unused."""
        next(self._batches)

    def measure(self, *, max_seconds: float) -> SteadyState:
        """Time the model alone and the training, from full and from empty buffers."""
        batches = repeat_batch(self.batch)

        def model_step() -> float:
            return wait_for_loss(self._train(batches))

        return measure_steady_state(
            self,
            model_step,
            model_step,
            StepClock(wait_until_idle=wait_until_idle),
            max_rounds=MAX_ROUNDS,
            max_seconds=max_seconds,
        )

    def measure_rates(self, dataset: tf.data.Dataset, *, max_seconds: float) -> list[float]:
        """Steps per second of Keras' own `fit` of the same model on any dataset, in blocks: what
        `fit` does in Python between two steps competes for the GIL with an input made in Python.
        """
        blocks = BlockRates(max_seconds=max_seconds)
        # Not keras.Model's own method, in whose place a script's call has been taken.
        super(keras.Model, self._model).fit(dataset.repeat(), verbose=0, callbacks=[blocks])
        gc.collect()  # fit's iterator is part of a cycle, and would go on making batches
        return blocks.rates


class UserInput:
    """A dataset without a training: a step takes a batch."""

    def __init__(self, dataset: tf.data.Dataset) -> None:
        self.batch = first_batch(dataset)
        self._batches = iter(dataset.repeat())

    @property
    def examples(self) -> int:
        """In a batch."""
        return count_examples(self.batch)

    def step(self) -> None:
        """Take a batch."""
        next(self._batches)

    def measure(self, *, max_seconds: float) -> list[float]:
        """Batches per second of each round."""
        clock = StepClock(wait_until_idle=wait_until_idle)
        seconds = min(BLOCK_S, max_seconds / (2 * INPUT_ROUNDS))
        first = clock.block(self.step, MIN_STEPS, warm_up=MIN_STEPS).mean_ms
        steps = max(MIN_STEPS, min(MAX_STEPS, math.ceil(seconds * 1e3 / first)))
        return [
            1e3 / clock.block(self.step, steps, warm_up=steps).mean_ms for _ in range(INPUT_ROUNDS)
        ]

    def measure_rates(self, dataset: tf.data.Dataset, *, max_seconds: float) -> list[float]:
        """Batches per second of another dataset."""
        return UserInput(dataset).measure(max_seconds=max_seconds)


def count_examples(batch: Any) -> int:
    """In a batch."""
    return int(tf.nest.flatten(batch)[0].shape[0])


def first_batch(dataset: tf.data.Dataset) -> Any:
    """Raises:
    UnmeasurableTraining: it is empty, or its elements are single examples.
    """
    first = list(dataset.take(1))
    if not first:
        raise UnmeasurableTraining("the dataset delivers nothing")
    if any(part.shape.rank == 0 for part in tf.nest.flatten(first[0])):
        raise UnmeasurableTraining(
            "the dataset delivers single examples, of which no model takes one; end it with"
            " .batch(256).prefetch(tf.data.AUTOTUNE)"
        )
    return first[0]
