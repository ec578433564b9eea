"""What a train function is given, and how far ahead of the device it may be called."""

from __future__ import annotations

import gc
import itertools
import sys
import weakref
from dataclasses import dataclass
from types import SimpleNamespace

from whowaits.timing.batches import BatchesTaken
from whowaits.timing.feeds import MAX_AHEAD, JaxFeed
from whowaits.timing.waits import Waits


@dataclass
class Later:
    """A value that a device has not computed yet; notes when it is waited for."""

    number: int
    waited_for: list[int]

    def block_until_ready(self) -> None:
        self.waited_for.append(self.number)


def test_of_the_steps_that_jax_is_asked_for_all_but_a_few_are_done():
    waited_for: list[int] = []
    steps = itertools.count()

    def train(state, iterator):
        return {"loss": Later(next(steps), waited_for)}, state

    feed = JaxFeed(train, Waits())
    for _ in range(6):
        feed.train(((), iter(())))
    assert waited_for == list(range(6 - MAX_AHEAD))
    feed.settle()
    assert waited_for[-1] == 5


class State:
    """What a step of JAX trains, and returns the next one of."""


def test_the_state_that_the_model_alone_ran_on_goes_with_its_batches(monkeypatch):
    tree = SimpleNamespace(tree_map=lambda copy, state: copy(state))
    jax = SimpleNamespace(tree_util=tree, numpy=SimpleNamespace(copy=lambda state: State()))
    monkeypatch.setitem(sys.modules, "jax", jax)
    feed = JaxFeed(lambda state, iterator: (next(iterator), state), Waits())
    memory = feed.memory(BatchesTaken([1, 2]))
    own = State()
    for _ in range(3):
        feed.train_alone((own, iter(())), memory)
    ran_on = weakref.ref(memory.state)
    assert ran_on() is not own
    del memory
    feed.train((own, iter([3])))
    gc.collect()
    assert ran_on() is None
