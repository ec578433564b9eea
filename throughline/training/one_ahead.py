"""Steps that a GPU has not finished: the host is one execution ahead of it, so that the next batch
is taken, and given to the GPU, while it works.

On a GPU the call of a step returns as soon as all of its work is queued. Who looks at its loss
waits for whatever is queued at that moment: so each loss is fetched by a thread as soon as its step
is queued, and it is the loss of the step before that is waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import keras
import numpy as np
import tensorflow as tf


class OneAhead:
    """Follows executions of steps on one device, in the order in which they are queued there."""

    def __init__(self) -> None:
        # Asked once, since asking waits for whatever is queued.
        self._queues = not tf.config.experimental.get_synchronous_execution()
        self._thread: ThreadPoolExecutor | None = None
        self._last: Future[None] | None = None

    def follow(self, logs: Any, done: Callable[[], object] = lambda: None) -> None:
        """Follow the execution that has just been queued, with these logs, and wait until the one
        before it has ended; `done` is called when it has ended itself. On the host it has already.
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
        """Wait until the last execution has ended."""
        last, self._last = self._last, None
        if last:
            last.result()


class StepFollower(keras.callbacks.Callback):
    """A callback that is called when a step has been queued, with logs that may not be there yet.
    It looks at none of them as a rule, so that the host can be ahead.
    """


def follows_steps(callback: keras.callbacks.Callback) -> bool:
    """Whether a callback leaves the logs of steps alone: a follower, or one of epochs alone."""
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
