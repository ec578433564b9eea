"""What a train function is given, and how far ahead of the device it may be called."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from whowaits.feeds import MAX_AHEAD, JaxFeed
from whowaits.waits import Waits


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
