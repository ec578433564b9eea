"""Runs a model's train or test step several times per call into the runtime.

Keras runs ⌈steps / k⌉ executions of k steps per epoch. If k does not divide the steps of an epoch,
or the rest of a resumed one, the epoch would consume batches of the next. Here the last execution
of an epoch has as many steps as are left. A process that trains with others runs the step on its
slice of each batch; the logs are the mean over the processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from throughline.models.emulation import EmulatedTraining
from throughline.training.model_state import find_draws
from throughline.training.one_ahead import OneAhead
from throughline.training.step_timer import StepTimer

Execution = Callable[[Any, tf.Tensor], Any]  # (iterator, number of steps) → logs of the last step


class StepFunction:
    """The train step (or test step) of a compiled Keras `model`, in executions of several steps.

    Every execution has as many steps as the model was compiled with, and an epoch's last execution
    the steps that are left, in the same graph. On a GPU the host is one execution ahead.

    Attributes:
      steps: How many steps the last execution ran.
      draws: Random ops of the step whose state no checkpoint holds; known once the graph is built.
      builds_graph: Whether the next execution builds the graph, so that it takes longer.
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
        self.timer, self._ahead = StepTimer(clock), OneAhead()
        self._left = 0

    @property
    def last_steps(self) -> int:
        """The steps of the next execution if it is the epoch's last one; else 0."""
        return self._left if self._left <= self._most else 0

    def begin(self, steps: int) -> None:
        self._left = steps
        self.timer.begin()

    def __call__(self, iterator: Any) -> Any:
        """Run the next execution on an iterator of batches, and return the logs of its last step.

        On return the previous execution has ended; this one may still run.
        """
        self.steps = min(self._most, self._left)
        logs = self._run(iterator, tf.constant(self.steps))
        self._left -= self.steps
        self.builds_graph = False
        self._ahead.follow(logs, partial(self.timer.tick, self.steps))
        return logs

    def settle(self) -> None:
        self._ahead.settle()

    def end(self) -> None:
        """Wait until the epoch's last execution has ended, and stop the timer."""
        self.settle()
        self.timer.end()


def make_execution(
    model: keras.Model,
    *,
    trains: bool = True,
    traced: Callable[[tf.Graph], object] = lambda graph: None,
) -> Execution:
    """Return a function that runs a step on the next batches and returns the last step's logs.

    The graph is built at the first call. `traced` is then called with the graph of a step; an eager
    model has none.
    """
    strategy, step = model.distribute_strategy, model.train_step if trains else model.test_step
    # Each process evaluates a whole split, so its logs need no average.
    finish = average_over_processes if trains else lambda logs: logs

    def one(batch: Any) -> Any:
        logs = strategy.run(step, args=(batch,))
        if not tf.executing_eagerly():
            traced(tf.compat.v1.get_default_graph())
        return logs

    if not model.run_eagerly:
        one = tf.function(
            one, jit_compile=model.jit_compile, reduce_retracing=True, autograph=False
        )

    def run(iterator: Any, steps: tf.Tensor) -> Any:
        def run_next(left: tf.Tensor) -> tuple[tf.Tensor]:
            with tf.control_dependencies(tf.nest.flatten(one(next(iterator)))):
                return (left - 1,)

        if model.steps_per_execution > 1:
            tf.while_loop(lambda left: left > 0, run_next, [steps - 1])
        return finish(one(next(iterator)))

    if trains and isinstance(model, EmulatedTraining):
        return model.pace(tf.function(lambda batch: finish(one(batch)), autograph=False))
    return run if model.run_eagerly else tf.function(run, reduce_retracing=True, autograph=False)


def average_over_processes(logs: Any) -> Any:
    """Average each log over the processes: its value for the whole batch, as slices are equal."""
    strategy = tf.distribute.get_strategy()
    if strategy.num_replicas_in_sync == 1:
        return logs
    return tf.nest.map_structure(
        lambda value: strategy.reduce(tf.distribute.ReduceOp.MEAN, value, axis=None), logs
    )
