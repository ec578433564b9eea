"""Feeds Keras' train functions with batches, in the way of each backend, also from memory."""

from __future__ import annotations

import itertools
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from .accelerators import default_accelerator, synchronize
from .batches import ENDS, BatchesTaken, copy_batch, count_bytes, drain, keep_batches, most_bytes
from .waits import Waits

MAX_KEPT = 16  # batches of a DataLoader
MAX_AHEAD = 2  # steps given to a device before it has finished them


class Feed:
    """The way in which a train function gets its batches, which differs between backends."""

    waits_between_calls = False
    waits_in_graph = False  #: counted in the graph, with nothing to do at a call

    def __init__(self, function: Callable[..., Any], waits: Waits) -> None:
        self._function, self._waits = function, waits
        self._result: Any = None

    def prepare(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return arguments

    def train(self, arguments: tuple[Any, ...]) -> Any:
        self._result = self._function(*arguments)
        return self._result

    def settle(self) -> None:
        """Wait until the device has finished its work."""
        wait_for(self._result)

    def keep(self, arguments: tuple[Any, ...]) -> None:
        """Keep a copy of a batch before it is trained on, if Keras takes the batches itself."""

    def drain(self, arguments: tuple[Any, ...], *, most_s: float) -> None:
        drain(lambda: self._take(arguments[-1]), most_s=most_s)

    def collect(self, arguments: tuple[Any, ...]) -> BatchesTaken:
        return keep_batches(lambda: self._take(arguments[-1]))

    def memory(self, taken: BatchesTaken) -> Any:
        return itertools.cycle(taken.batches)

    def train_alone(self, arguments: tuple[Any, ...], memory: Any) -> None:
        self.train((*arguments[:-1], memory))

    def make_step(self, arguments: tuple[Any, ...]) -> Callable[[Any], Any]:
        """Return a function that trains on the next batch of a tf.data iterator."""

        def step(iterator: Any) -> Any:
            self.train_alone(arguments, iterator)
            return self._result

        return step

    def _take(self, iterator: Iterator[Any]) -> Any:
        try:
            return (next(iterator),)
        except Exception as error:
            if type(error).__name__ in ENDS:
                return None
            raise


class TensorFlowFeed(Feed):
    """The function takes its batches from a tf.data iterator within its graph."""

    waits_in_graph = True

    def memory(self, taken: BatchesTaken) -> Any:
        """Return an endless iterator over the batches, which the training's graph accepts."""
        tf = sys.modules["tensorflow"]
        dataset = tf.data.Dataset.from_tensors(taken.batches[0])
        for batch in taken.batches[1:]:
            dataset = dataset.concatenate(tf.data.Dataset.from_tensors(batch))
        options = tf.data.Options()
        options.autotune.enabled = False
        options.experimental_optimization.apply_default_optimizations = False
        iterator = iter(dataset.cache().repeat().with_options(options))
        for name in ("_element_spec", "_flat_output_types", "_flat_output_shapes"):
            if hasattr(taken.iterator, name):
                setattr(iterator, name, getattr(taken.iterator, name))
        for _ in taken.batches:  # a cache serves once it is full
            next(iterator)
        return iterator

    def collect(self, arguments: tuple[Any, ...]) -> BatchesTaken:
        return replace(super().collect(arguments), iterator=arguments[-1])


class JaxFeed(Feed):
    """The function takes a state and a Python iterator, and returns before the step is computed."""

    def __init__(self, function: Callable[..., Any], waits: Waits) -> None:
        super().__init__(function, waits)
        self._ahead: deque[Any] = deque()

    def train(self, arguments: tuple[Any, ...]) -> Any:
        """Run a step; wait if the device is more than MAX_AHEAD steps behind.

        Otherwise the wait for the device would come at the epoch's end, where it is not timed.
        """
        result = super().train(arguments)
        self._ahead.append(result[0])  # the next step consumes the state
        if len(self._ahead) > MAX_AHEAD:
            wait_for(self._ahead.popleft())
        return result

    def prepare(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        *state, iterator = arguments
        batches = iter(iterator)

        def take(_: None) -> Any:
            return self._waits.time(lambda: next(batches))  # once, even if it is tf.data's

        return (*state, map(take, itertools.repeat(None)))

    def memory(self, taken: BatchesTaken) -> Any:
        """Return the batches, with a place for a copy of the model's state."""
        return _JaxMemory(super().memory(taken))

    def train_alone(self, arguments: tuple[Any, ...], memory: _JaxMemory) -> None:
        if memory.state is None:  # a step consumes its state, so the training keeps its own
            jax = sys.modules["jax"]
            memory.state = jax.tree_util.tree_map(jax.numpy.copy, arguments[0])
        _, memory.state = self.train((memory.state, memory.batches))

    def make_step(self, arguments: tuple[Any, ...]) -> Callable[[Any], Any]:
        step, memory = super().make_step(arguments), self.memory(BatchesTaken())

        def step_on_arrays(iterator: Any) -> Any:
            memory.batches = map(_convert, iterator)
            return step(memory)

        return step_on_arrays


class TorchFeed(Feed):
    """With PyTorch, Keras takes a batch from a DataLoader, then calls the function with it."""

    waits_between_calls = True

    def __init__(self, function: Callable[..., Any], waits: Waits) -> None:
        super().__init__(function, waits)
        self._kept: list[Any] = []
        self._left_bytes = most_bytes()

    def keep(self, arguments: tuple[Any, ...]) -> None:
        """Keep a copy, so that memory shared with workers is released."""
        if len(self._kept) < MAX_KEPT and self._left_bytes > 0:
            self._kept.append(copy_batch(sys.modules["torch"], arguments[-1]))
            self._left_bytes -= count_bytes(arguments[-1])

    def settle(self) -> None:
        torch = sys.modules["torch"]
        accelerator = default_accelerator(torch)
        if accelerator:
            synchronize(torch, accelerator)

    def drain(self, arguments: tuple[Any, ...], *, most_s: float) -> None:
        self._kept, self._left_bytes = [], most_bytes()

    def collect(self, arguments: tuple[Any, ...]) -> BatchesTaken:
        return BatchesTaken(self._kept)

    def train_alone(self, arguments: tuple[Any, ...], memory: Any) -> None:
        self._result = self._function(*arguments[:-1], next(memory))

    def make_step(self, arguments: tuple[Any, ...]) -> Callable[[Any], Any]:
        step, to_tensor = super().make_step(arguments), sys.modules["torch"].as_tensor
        return lambda iterator: step([_convert(each, to_tensor)] for each in iterator)


@dataclass
class _JaxMemory:
    batches: Iterator[Any]
    state: Any = None


def _convert(batch: Any, to: Callable[[Any], Any] = lambda array: array) -> Any:
    """Convert the tensors of a tf.data batch to NumPy arrays, or to what `to` makes of these."""
    return sys.modules["tensorflow"].nest.map_structure(lambda part: to(part.numpy()), batch)


def wait_for(result: Any) -> None:
    """Wait for a step's values, nested in dictionaries, lists and tuples."""
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, (list, tuple)):
        for part in result:
            wait_for(part)
    elif hasattr(result, "block_until_ready"):
        result.block_until_ready()
    elif hasattr(result, "detach"):
        result.cpu()  # waits for a tensor of PyTorch, perhaps on a GPU
    elif hasattr(result, "numpy"):
        result.numpy()


FEEDS = {"tensorflow": TensorFlowFeed, "jax": JaxFeed, "torch": TorchFeed}
