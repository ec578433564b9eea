"""Times how long a step waits for its batch, also inside of a TensorFlow graph.

While Keras' `tf.function` is traced, two reads of the clock are put around the op that takes a
batch, and their difference is added to a variable on the host; the step stays the same. Eager code
is timed by Python's clock.
"""

import threading
from collections.abc import Callable
from time import perf_counter
from typing import Any


class _Thread(threading.local):
    takes = False  #: whether this thread is taking a batch


class Waits:
    """Counts the seconds spent waiting for batches."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._python_s = 0.0
        self._handle: Any = None
        self._taken = 0.0
        self._tf: Any = None
        self.thread = _Thread()

    def start(self, tf: Any) -> None:
        """Make the variable that graphs add to."""
        if self._handle is None:
            self._tf = tf
            with tf.init_scope(), tf.device("/CPU:0"):
                self._handle = tf.raw_ops.VarHandleOp(
                    dtype=tf.float64, shape=[], shared_name="whowaits_waited"
                )
                tf.raw_ops.AssignVariableOp(
                    resource=self._handle, value=tf.constant(0.0, tf.float64)
                )

    def add(self, seconds: float) -> None:
        """Add a wait that Python measured."""
        self._python_s += seconds

    def take(self) -> float:
        """Return the seconds waited since the last call."""
        seconds, self._python_s = self._python_s, 0.0
        if self._handle is not None:
            total = float(
                self._tf.raw_ops.ReadVariableOp(resource=self._handle, dtype=self._tf.float64)
            )
            seconds, self._taken = seconds + total - self._taken, total
        return seconds

    def time(self, take_batch: Callable[[], Any]) -> Any:
        """Take a batch, eagerly or in a graph, and count how long that takes."""
        if self.thread.takes:
            return take_batch()
        self.thread.takes = True
        try:
            return self._time(take_batch)
        finally:
            self.thread.takes = False

    def _time(self, take_batch: Callable[[], Any]) -> Any:
        tf = self._tf
        if tf is not None and not tf.executing_eagerly():
            return self._time_in_graph(tf, take_batch)
        began = self._clock()
        try:
            return take_batch()
        finally:
            self.add(self._clock() - began)

    def _time_in_graph(self, tf: Any, take_batch: Callable[[], Any]) -> Any:
        with tf.device("/CPU:0"):
            before = tf.timestamp()
        with tf.control_dependencies([before]):
            batch = take_batch()
        parts = tf.nest.flatten(batch, expand_composites=True)
        tensors = [part for part in parts if part is not None]  # absent sample weights
        with tf.control_dependencies(tensors), tf.device("/CPU:0"):
            tf.raw_ops.AssignAddVariableOp(resource=self._handle, value=tf.timestamp() - before)
        return batch
