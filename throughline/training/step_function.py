"""Runs a model's train or test step several times per call into the runtime, and times it.

Keras runs ⌈steps / k⌉ executions of k steps per epoch: if k does not divide the steps of an epoch,
or the rest of a resumed one, Keras would consume batches of the next epoch. Here the last execution
of an epoch has as many steps as are left. Processes that train together run the step on their
slices of each batch; logs and losses are their mean.

The host is kept one execution ahead of a GPU, so that the next batch is ready in time. The call of
a step returns as soon as its work is queued, and reading its loss would wait for all queued work.
So a thread fetches each loss right after its step is queued, and the host waits for the one before.
"""

import time
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from throughline.models.emulation import EmulatedTraining
from throughline.results.train import StepTimes
from throughline.training.model_state import find_draws
from throughline.training.step_model import find_network

# (iterator, number of steps) → logs of the last step, loss of each (steps,) float32
Execution = Callable[[Any, tf.Tensor], tuple[Any, tf.Tensor]]
EPOCH_WARM_UP_STEPS = 5  # excluded at the start of each epoch: they include tracing and start-up


class StepFunction:
    """The train step (or test step) of a compiled Keras `model`, in executions of several steps.

    Every execution has as many steps as the model was compiled with, and an epoch's last execution
    the steps that are left, in the same graph. On a GPU the host is one execution ahead.

    Attributes:
      steps: Number of steps in the last execution.
      draws: Random ops of the step whose state no checkpoint holds; known once the graph is built.
      builds_graph: Whether the next execution builds the graph, so that it takes longer.
      losses: The loss of each step since `begin`, float32; NaN if the model has none of that name.
    """

    def __init__(
        self,
        model: keras.Model,
        *,
        trains: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.steps = 0
        self.model, self._most = model, int(model.steps_per_execution)
        self.draws: set[str] = set()
        self._run = make_execution(
            model, trains=trains, traced=lambda graph: self.draws.update(find_draws(graph))
        )
        self.builds_graph = True
        self.losses = array("f")
        self.timer, self._ahead = StepTimer(clock), OneAhead()
        self._left = 0

    @property
    def last_steps(self) -> int:
        """The steps of the next execution if it is the epoch's last one; else 0."""
        return self._left if self._left <= self._most else 0

    def begin(self, steps: int) -> None:
        self._left, self.losses = steps, array("f")
        self.timer.begin()

    def __call__(self, iterator: Any) -> Any:
        """Run the next execution on an iterator of batches, and return the logs of its last step.

        On return the previous execution has ended; this one may still run.
        """
        self.steps = min(self._most, self._left)
        logs, losses = self._run(iterator, tf.constant(self.steps))
        self._left -= self.steps
        self.builds_graph = False
        self._ahead.follow(losses, partial(self._note, self.steps))
        return logs

    def _note(self, steps: int, losses: np.ndarray) -> None:
        self.timer.tick(steps)
        self.losses.frombytes(losses.tobytes())

    def settle(self) -> None:
        """Wait until the last execution has ended."""
        self._ahead.settle()

    def end(self) -> None:
        self.settle()
        self.timer.end()


def make_execution(
    model: keras.Model,
    *,
    trains: bool = True,
    traced: Callable[[tf.Graph], object] = lambda graph: None,
) -> Execution:
    """Return a function that runs steps on the next batches; the first call builds the graph.

    `traced` is then called with the graph of a step; an eager model has none.
    """
    strategy, step = model.distribute_strategy, with_loss(model, trains=trains)
    mean = tf.distribute.ReduceOp.MEAN

    def finish(results: Any) -> Any:
        """Average over the processes; each evaluates a whole split, so these need no average."""
        if not trains or strategy.num_replicas_in_sync == 1:
            return results
        return tf.nest.map_structure(lambda one: strategy.reduce(mean, one, axis=None), results)

    def one(batch: Any) -> Any:
        logs, loss = strategy.run(step, args=(batch,))
        if not tf.executing_eagerly():
            traced(tf.compat.v1.get_default_graph())
        return logs, loss[None]

    if not model.run_eagerly:
        one = tf.function(
            one, jit_compile=model.jit_compile, reduce_retracing=True, autograph=False
        )

    def run(iterator: Any, steps: tf.Tensor) -> Any:
        def run_next(done: tf.Tensor, losses: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
            logs, loss = one(next(iterator))
            with tf.control_dependencies(tf.nest.flatten(logs)):
                return done + 1, losses.write(done, loss[0])

        if model.steps_per_execution == 1:
            return finish(one(next(iterator)))
        _, losses = tf.while_loop(
            lambda done, losses: done < steps - 1,
            run_next,
            [tf.constant(0), tf.TensorArray(tf.float32, size=steps, element_shape=())],
        )
        logs, loss = one(next(iterator))
        return finish((logs, losses.write(steps - 1, loss[0]).stack()))

    if trains and isinstance(model, EmulatedTraining):
        return model.pace(tf.function(lambda batch: finish(one(batch)), autograph=False))
    return run if model.run_eagerly else tf.function(run, reduce_retracing=True, autograph=False)


def with_loss(model: keras.Model, *, trains: bool) -> Callable[[Any], tuple[Any, tf.Tensor]]:
    """Return the model's step, which also returns the loss of its batch, a float32 scalar.

    Keras' logs have the mean over the epoch so far. So the loss is the mean of the values that the
    step adds to the metric `loss`, or the log of that name if it adds none. The loss is NaN without
    either, and if the step adds to the metric within a graph of its own.
    """
    step, network = model.train_step if trains else model.test_step, find_network(model)

    def run(batch: Any) -> tuple[Any, tf.Tensor]:
        added: list[Any] = []
        mean = next((metric for metric in network.metrics if metric.name == "loss"), None)
        with note_updates(mean, added):
            logs = step(batch)
        if not added:
            return logs, tf.cast(logs.get("loss", np.nan), tf.float32)
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        if any(getattr(loss, "graph", graph) is not graph for loss in added):
            return logs, tf.constant(np.nan)
        return logs, tf.reduce_mean([tf.reduce_mean(tf.cast(one, tf.float32)) for one in added])

    return run


@contextmanager
def note_updates(metric: keras.metrics.Metric | None, values: list[Any]) -> Iterator[None]:
    """Note the values that are added to a metric within the block, if there is one."""
    if metric is None:
        yield
        return
    update = metric.update_state

    def note(value: Any, *rest: Any, **more: Any) -> Any:
        values.append(value)
        return update(value, *rest, **more)

    metric.update_state = note
    try:
        yield
    finally:
        del metric.update_state


class OneAhead:
    """Follows the executions on one device, in the order in which they are queued."""

    def __init__(self) -> None:
        # Read once, because reading it waits for all queued work.
        self._queues = not tf.config.experimental.get_synchronous_execution()
        self._thread: ThreadPoolExecutor | None = None
        self._last: Future[object] | None = None

    def follow(self, values: Any, done: Callable[[np.ndarray], object]) -> None:
        """Follow the execution just queued, wait for the one before; `done` gets its losses."""
        if not (self._queues or "GPU" in getattr(values, "backing_device", "")):
            done(np.asarray(values))  # on the host it has ended already
            return
        self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="loss")
        before, self._last = self._last, self._thread.submit(lambda: done(np.asarray(values)))
        if before:
            before.result()

    def settle(self) -> None:
        last, self._last = self._last, None
        if last:
            last.result()


class StepFollower(keras.callbacks.Callback):
    """A callback that rarely reads the logs of a step, so that the host can stay ahead."""


def follows_steps(callback: keras.callbacks.Callback) -> bool:
    """Return whether a callback ignores the logs of steps, or is a StepFollower."""
    names = "on_train_batch_end", "on_batch_end"
    methods = [getattr(getattr(callback, name), "__func__", None) for name in names]
    unused = [getattr(keras.callbacks.Callback, name) for name in names]
    return isinstance(callback, StepFollower) or methods == unused


@dataclass(frozen=True, kw_only=True)
class EpochTimes:
    """An epoch's start and the ends of its executions [s], (executions + 1,), and their `steps`."""

    moments: np.ndarray
    steps: np.ndarray

    @property
    def rate(self) -> float:
        return float(self.steps.sum() / (self.moments[-1] - self.moments[0]))

    @property
    def step_ms(self) -> np.ndarray:
        """The time per step in each execution [ms], (executions,)."""
        return np.diff(self.moments) * 1e3 / self.steps


class StepTimer:
    """Notes when each execution ended and how many steps it had; costs about a microsecond."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.epochs: list[EpochTimes] = []
        self._moments: list[float] = []
        self._steps: list[int] = []

    def begin(self) -> None:
        self._moments, self._steps = [self._clock()], []

    def tick(self, steps: int) -> None:
        self._moments.append(self._clock())
        self._steps.append(steps)

    def end(self) -> None:
        """Close the epoch, unless it is closed already or has no step."""
        if self._steps:
            moments, steps = np.asarray(self._moments), np.asarray(self._steps)
            self.epochs.append(EpochTimes(moments=moments, steps=steps))
        self._moments, self._steps = [], []

    @property
    def rates(self) -> list[float]:
        return [epoch.rate for epoch in self.epochs]

    def step_times(self) -> StepTimes:
        """Return percentiles over the steady steps; an execution counts once per step.

        The first of several epochs and each epoch's first steps count only if no others are left.
        """
        each = [np.repeat(epoch.step_ms, epoch.steps) for epoch in self.epochs]
        milliseconds = np.concatenate([one[EPOCH_WARM_UP_STEPS:] for one in each[1:] or each])
        if not milliseconds.size:
            milliseconds = each[-1]
        p50, p95, p99 = np.percentile(milliseconds, (50, 95, 99)).tolist()
        return StepTimes(ms_p50=p50, ms_p95=p95, ms_p99=p99, count=milliseconds.size)
