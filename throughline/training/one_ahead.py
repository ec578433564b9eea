"""Keeps the host one execution ahead of the GPU, so that the next batch is ready in time.

On a GPU the call of a step returns as soon as its work is queued. Reading its loss would wait for
all work that is queued by then. So a thread fetches each loss right after its step is queued, and
the host waits for the loss of the step before.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import keras
import numpy as np
import tensorflow as tf


class OneAhead:
    """Follows the executions on one device, in the order in which they are queued."""

    def __init__(self) -> None:
        # Read once, because reading it waits for all queued work.
        self._queues = not tf.config.experimental.get_synchronous_execution()
        self._thread: ThreadPoolExecutor | None = None
        self._last: Future[None] | None = None

    def follow(self, logs: Any, done: Callable[[], object] = lambda: None) -> None:
        """Follow the execution that has just been queued, and wait for the one before it.

        `done` is called once it has ended; on the host it has ended already.
        """
        queued = [
            value
            for value in tf.nest.flatten(logs)
            if self._queues or "GPU" in getattr(value, "backing_device", "")
        ]
        if not queued:
            done()
            return
        self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="loss")
        before, self._last = self._last, self._thread.submit(_wait, queued[0], done)
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
    methods = (
        getattr(getattr(callback, name), "__func__", None)
        for name in ("on_train_batch_end", "on_batch_end")
    )
    default = keras.callbacks.Callback
    return isinstance(callback, StepFollower) or list(methods) == [
        default.on_train_batch_end,
        default.on_batch_end,
    ]


def _wait(value: Any, done: Callable[[], object]) -> None:
    np.asarray(value)
    done()
