"""State of one of the script's own loops: where its batches come from, and the open step."""

from __future__ import annotations

import copy
import weakref
from collections import deque
from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass, field
from typing import Any

from whowaits.training import Training

FEWEST_SHARED = 3  # fewer steps with a batch of another dataset are exceptions


@dataclass
class Source:
    """The source of a loop's batches; `key` identifies it in the next epoch."""

    key: Hashable
    name: Callable[[], str]
    facts: Callable[[], dict[str, Any]]
    copy: Callable[[Any], Any] = copy.deepcopy
    keep: Callable[[Any], Any] | None = None  #: copies a batch that stays in memory, or as `copy`
    settle: Callable[[], object] = lambda: None
    buffered: bool = True  #: whether batches may be prepared ahead
    steps: Callable[[], int | None] = lambda: None
    #: yields batches on which changes are tried, and is sent the seconds of work on each
    tries: Callable[[Training], Generator[Any, float | None, None]] | None = None


@dataclass
class Pulls:
    """Batches taken since the last gradients, with the waits for them and the work on them [s]."""

    steps: int = 0
    wait_s: float = 0.0
    work_s: float = 0.0
    others: bool = False  # whether another loop took a batch meanwhile
    validates: bool = False


@dataclass
class Loop:
    source: Source
    training: Training | None = None
    iterator: Callable[[], Any] | None = None  #: returns this epoch's iterator
    handed: float | None = None  #: when its last batch was given to the script
    wait_s: float = 0.0  # for that batch
    marks: int = 0  # gradients taken before that batch
    others: int = 0  # batches that other loops took within the step
    others_wait_s: float = 0.0
    validates: bool = False  # within the step
    pulls: Pulls = field(default_factory=Pulls)
    trained: int = 0  # steps in which gradients were taken
    shared: int = 0  # steps in which another loop took a batch
    single: int = 0  # successive epochs of one batch until now
    epoch: int = 0  # counts epochs in which gradients were taken
    confirmed: bool = False  #: whether a gradient was taken in this epoch
    batches: int = 0  # in this epoch
    taken: int = 0  # batches for another purpose, in this epoch
    repeated: int = 0  # batches given from memory, in this epoch
    ended: bool = False  # whether this epoch's iterator is exhausted
    opens: bool = True
    exhausted: Exception | None = None  #: the error that ended the iterator, if noticed
    memory: list[Any] = field(default_factory=list)
    copies: deque[Any] = field(default_factory=deque)  #: of `memory`, given next
    from_memory: bool = False
    warm_up: int = 0
    trials: Generator[Any, float | None, None] | None = None
    tried_s: float | None = None  # work on a trial's last batch, if the step had only that one

    @property
    def current(self) -> Any:
        """The iterator of this epoch, if it still exists and may give more."""
        return None if self.iterator is None else self.iterator()

    @property
    def shares(self) -> bool:
        """Whether most steps take a batch of another dataset, too."""
        return self.shared >= FEWEST_SHARED and 2 * self.shared > self.trained

    def begin_epoch(self, iterator: Any) -> None:
        """Start an epoch with another iterator, or with the same one again."""
        self.single = self.single + 1 if self.batches + self.taken + self.repeated == 1 else 0
        if self.training is not None and self.confirmed:
            # A script that counts its steps also counts those on batches from memory.
            besides = self.taken if self.ended else self.repeated
            self.training.timing.steps_per_epoch = self.batches + besides
        self.iterator, self.opens, self.exhausted = refer_to(iterator), True, None
        self.epoch += int(self.confirmed)
        self.confirmed, self.ended = False, False
        self.batches = self.taken = self.repeated = 0
        self.pulls = Pulls()

    def forget(self) -> None:
        self.memory = []
        self.copies.clear()


def refer_to(iterator: Any) -> Callable[[], Any]:
    """Return a weak reference to an iterator, or, if it allows none, a function that returns it."""
    try:
        return weakref.ref(iterator)
    except TypeError:
        return lambda: iterator
