"""Several train steps per call into the runtime, and yet exactly the steps of an epoch.

Keras runs ⌈steps / k⌉ executions of k steps an epoch: with k that does not divide the steps of an
epoch, or what is left of a resumed one, an epoch would eat into the next one. Here the last
execution of an epoch is cut: what is left of it runs step by step.
"""

from __future__ import annotations

from typing import Any

import keras


class TrainFunction:
    """The train function of a compiled Keras `model`, cut at the end of each epoch.

    Every execution is k steps, k being what the model was compiled with, and the last one of an
    epoch is what is left. Both run the model's own train step; the graph of the second function is
    built only where an epoch has a remainder.
    """

    def __init__(self, model: keras.Model) -> None:
        self.steps = 0  # that the last execution has run
        self.model, self._most = model, int(model.steps_per_execution)
        self._several = self._function(self._most)
        self._single = self._several if self._most == 1 else self._function(1)
        self._built: set[int] = set()
        self._left = 0

    def begin(self, steps: int) -> None:
        """Begin an epoch, or what is left of one, of N `steps`."""
        self._left = steps

    @property
    def builds_graph(self) -> bool:
        """Whether the next execution builds a graph first, so that its time and work are not those
        of training.
        """
        return self._size not in self._built

    def __call__(self, iterator: Any) -> Any:
        """Run the next execution on an iterator of batches; returns the logs of its last step."""
        size = self._size
        self.steps = min(self._most, self._left)
        if size == self._most:
            logs = self._several(iterator)
        else:
            self.model.steps_per_execution = 1  # which Keras reads while it builds the graph
            try:
                for _ in range(self.steps):
                    logs = self._single(iterator)
            finally:
                self.model.steps_per_execution = self._most
        self._built.add(size)
        self._left -= self.steps
        return logs

    @property
    def _size(self) -> int:
        """Steps of the function that runs next."""
        return self._most if self._left >= self._most else 1

    def _function(self, steps: int) -> Any:
        """Keras' own train function of N `steps`, whose graph is not built yet."""
        before = self.model.steps_per_execution
        self.model.steps_per_execution, self.model.train_function = steps, None
        self.model.make_train_function()
        self.model.steps_per_execution = before
        return self.model.train_function
