"""A model's own train step or test step on an iterator's next batches, several steps per call into
the runtime, and yet exactly the steps of an epoch.

Keras runs ⌈steps / k⌉ executions of k steps an epoch: with k that does not divide the steps of an
epoch, or what is left of a resumed one, an epoch would eat into the next one. Here the last
execution of an epoch is as many steps as are left. One of several processes that train together
runs the train step on its slice of each batch, and its logs are their mean over the processes.
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

Execution = Callable[[Any, tf.Tensor], Any]  # iterator, number of steps → logs of the last


class StepFunction:
    """The train step of a compiled Keras `model`, or else its test step, in executions that are cut
    at the end of each epoch.

    Every execution is as many steps as the model was compiled with, and the last one of an epoch
    what is left, by the same graph. On a GPU the host is one execution ahead. `timer` notes when
    each has ended, and `draws` are the ops of the step, known once its graph is built, whose draws
    nothing that a checkpoint holds decides.
    """

    def __init__(
        self,
        model: keras.Model,
        *,
        trains: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.steps = 0  # that the last execution has run
        self.model, self._most = model, int(model.steps_per_execution)
        self.draws: set[str] = set()
        self._run = make_execution(
            model, trains=trains, traced=lambda graph: self.draws.update(find_draws(graph))
        )
        self.builds_graph = True  # in its next execution, whose time and work are then others
        self.timer, self._ahead = StepTimer(clock), OneAhead()
        self._left = 0

    @property
    def last_steps(self) -> int:
        """The steps of the next execution where it is the epoch's last one; else 0."""
        return self._left if self._left <= self._most else 0

    def begin(self, steps: int) -> None:
        """Begin an epoch, or what is left of one, of N `steps`."""
        self._left = steps
        self.timer.begin()

    def __call__(self, iterator: Any) -> Any:
        """Run the next execution on an iterator of batches; returns the logs of its last step. The
        execution before it has ended, this one may not have.
        """
        self.steps = min(self._most, self._left)
        logs = self._run(iterator, tf.constant(self.steps))
        self._left -= self.steps
        self.builds_graph = False
        self._ahead.follow(logs, partial(self.timer.tick, self.steps))
        return logs

    def settle(self) -> None:
        """Wait until the last execution has ended."""
        self._ahead.settle()

    def end(self) -> None:
        """End an epoch, when its last execution has ended."""
        self.settle()
        self.timer.end()


def make_execution(
    model: keras.Model,
    *,
    trains: bool = True,
    traced: Callable[[tf.Graph], object] = lambda graph: None,
) -> Execution:
    """The function that runs the model's train step, or test step, on the next batches of an
    iterator and returns the logs of the last one. Its graph is built at its first call; `traced`
    is given that of a step, which an eager model has not.
    """
    strategy, step = model.distribute_strategy, model.train_step if trains else model.test_step
    # Each process evaluates the whole of a split.
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
    """The mean of each log over the processes that train together: what it is of the whole batch,
    since their slices are equally large.
    """
    strategy = tf.distribute.get_strategy()
    if strategy.num_replicas_in_sync == 1:
        return logs
    return tf.nest.map_structure(
        lambda value: strategy.reduce(tf.distribute.ReduceOp.MEAN, value, axis=None), logs
    )
