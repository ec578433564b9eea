"""What a train function is given, and how far ahead of the device it may be called."""

from __future__ import annotations

import gc
import itertools
import sys
import weakref
from array import array
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from whowaits.timing.batches import BatchesTaken
from whowaits.timing.feeds import MAX_AHEAD, JaxFeed, TorchFeed
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


def torch_feed(monkeypatch):
    cuda = SimpleNamespace(is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    return TorchFeed(lambda batch: None, Waits())


def test_batches_of_a_loader_are_kept_as_copies(monkeypatch):
    feed, batch = torch_feed(monkeypatch), [array("b", [1])]
    for _ in range(20):
        feed.keep((batch,))
    batch[0][0] = 2
    kept = feed.collect((batch,)).batches
    assert len(kept) == 16 and kept[0] == [array("b", [1])]
    feed.drain((batch,), most_s=0.0)
    assert not feed.collect((batch,)).batches


def test_large_batches_of_a_loader_are_kept_while_there_is_memory(monkeypatch):
    monkeypatch.setattr("whowaits.timing.feeds.most_bytes", lambda: 100)
    feed = torch_feed(monkeypatch)
    for _ in range(9):
        feed.keep(([SimpleNamespace(nbytes=40, shape=(5, 8))],))
    assert len(feed.collect(()).batches) == 3


@pytest.mark.parametrize(
    ("counts", "ended", "kept"),
    [
        ([8, 8, 3], True, 2),
        ([3], True, 0),
        ([8, 8], True, 2),
        ([8, 3], False, 2),
        ([5, 8], True, 2),
    ],
)
def test_a_smaller_last_batch_is_no_batch_of_the_model(counts, ended, kept):
    batches = [SimpleNamespace(shape=(count, 2)) for count in counts]
    taken = BatchesTaken(batches, ended=ended)
    taken.drop_remainder(8)
    assert len(taken.batches) == kept
