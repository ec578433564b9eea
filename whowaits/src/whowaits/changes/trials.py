"""Measures how much changes of the dataset speed up a `fit`, each in turn with the original."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from whowaits.timing.batches import ENDS, MAX_DRAIN_S, drain, drained_s
from whowaits.timing.feeds import wait_for
from whowaits.timing.machine import memory_left_bytes

from .advice import Edit, Tried, sort_by_gain
from .places import find_others, locate
from .proposals import InputChange, propose_changes
from .ratios import Ratios

WARM_UP_S, BLOCK_S, MIN_STEPS = 0.5, 1.0, 4
MEMORY_FRACTION = 0.5  # share of the free memory that a cache may take
MEMORY_RESERVE = 2.0  # free memory needed to try a change, in multiples of what the largest took


@dataclass(frozen=True)
class Pace:
    """The pace of a training, as far as it is known.

    `between_ms` is the part of a step that is neither the model's nor the input's, `batches` the
    length of the input, if it was seen.
    """

    step_ms: float
    between_ms: float = 0.0
    batches: int | None = None


class Trials:
    """Trains on datasets in alternation; calls `heartbeat` before each step that may take long.

    Begins no trial that would end after `deadline`.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        dataset: Any,
        pace: Pace,
        *,
        deadline: float,
        heartbeat: Callable[[], object],
    ) -> None:
        self._function, self._dataset, self._heartbeat = function, dataset, heartbeat
        self._batches, self._deadline = pace.batches, deadline
        self._step_s, self._between_s = pace.step_ms / 1e3, pace.between_ms / 1e3

    def run(self, *, examples: int) -> Iterator[list[Tried]]:
        """Try changes while time and memory last, then the best again; yield all tried so far."""
        changes = propose_changes(self._dataset, batch=examples, steps=self._batches)
        self._heartbeat()
        unchanged = Epochs(self._function, self._dataset)
        feeds: list[Epochs] = []
        ratios = Ratios(self._rate(unchanged))
        left, most = _left_bytes(), 0.0
        for number, change in enumerate(changes):
            # Each dataset keeps its buffers to the end.
            if not self._has_time(2) or left < MEMORY_RESERVE * most:
                break
            feeds.append(Epochs(self._function, change.dataset, repeats=bool(change.keeps)))
            self._pair(unchanged, feeds[number], ratios, number)
            yield sort_by_gain(self._describe_all(changes, ratios).values())
            had, left = left, _left_bytes()
            most = max(most, had - left)
        while self._has_time(2):
            best = ratios.find_doubtful(self._describe_all(changes, ratios))
            if best is None:
                break
            self._pair(unchanged, feeds[best], ratios, best)
            yield sort_by_gain(self._describe_all(changes, ratios).values())

    def _pair(self, unchanged: Epochs, feed: Epochs, ratios: Ratios, number: int) -> None:
        changed = self._rate(feed)
        ratios.add(number, changed=changed, unchanged=self._rate(unchanged))

    def _has_time(self, blocks: int) -> bool:
        each = max(WARM_UP_S + BLOCK_S, MAX_DRAIN_S / 2 + (MIN_STEPS + 1) * self._step_s)
        return perf_counter() + blocks * each < self._deadline

    def _rate(self, feed: Epochs) -> float:
        return 1 / (1 / feed.time(self._step_s, self._heartbeat) + self._between_s)

    def _describe_all(self, changes: Sequence[InputChange], ratios: Ratios) -> dict[int, Tried]:
        return {at: self._describe(changes[at], *ratios.interval(at)) for at in ratios.tried}

    def _describe(self, change: InputChange, gain: float, low: float, high: float) -> Tried:
        edited = change.adds and not change.inside
        shared = find_others(self._dataset, change.kind, change.number) if edited else ""
        return Tried(
            text=change.text,
            meaning=change.meaning,
            says="; ".join(filter(None, (change.says, shared))),
            keeps=change.keeps,
            where=locate(self._dataset, change.kind, change.number).where,
            gain=gain,
            low=low,
            high=high,
            fits_memory=change.kept_bytes < MEMORY_FRACTION * _left_bytes(),
            edits=tuple(find_edits(self._dataset, change)),
            kind=change.kind,
            number=change.number,
            inside=change.inside,
            shared=shared,
        )


def _left_bytes() -> float:
    left = memory_left_bytes()
    return math.inf if left is None else left


def find_edits(dataset: Any, change: InputChange) -> Iterator[Edit]:
    if change.adds:
        called, _, given = change.title.rstrip(")").partition("(")
        place = locate(dataset, change.kind, change.number)
        where = "" if change.inside else place.where  # another call there may look the same
        yield Edit(where, called, change.adds, given)
    if change.ahead:
        place = locate(dataset, "", 0)
        yield Edit(place.where, place.called, change.ahead)


# Never destroyed: an iterator over a repeated cache may wait forever.
_NEVER_DESTROYED: list[object] = []


class Epochs:
    """A training on a dataset, epoch after epoch; `repeats` says that a cache in it is repeated."""

    def __init__(
        self, function: Callable[[Any], Any], dataset: Any, *, repeats: bool = False
    ) -> None:
        self._function, self._dataset, self._repeats = function, dataset, repeats
        self._iterator, self.ended = iter(dataset), 0  # number of epochs that have ended
        _NEVER_DESTROYED.append(self)

    def time(self, step_s: float, heartbeat: Callable[[], object]) -> float:
        """Return steps per second once prepared batches are used up; a step takes some `step_s`."""
        drain(
            lambda: next(self._iterator, None) is not None or self._open(),
            most_s=drained_s(1e3 * step_s),
        )
        self._train(WARM_UP_S, 1, heartbeat)
        began = perf_counter()
        steps = self._train(BLOCK_S, MIN_STEPS, heartbeat)
        return steps / (perf_counter() - began)

    def _train(self, seconds: float, least: int, heartbeat: Callable[[], object]) -> int:
        """Train, and wait for the device; return the number of steps."""
        began, steps = perf_counter(), 0
        while perf_counter() - began < seconds or steps < least:
            heartbeat()
            result = self.step()
            steps += 1
        wait_for(result)
        return steps

    def step(self) -> Any:
        """Train on the next batch, opening an epoch if needed; return the result, None if empty."""
        for _ in range(2):
            try:
                return self._function(self._iterator)
            except Exception as error:
                if type(error).__name__ not in ENDS:
                    raise
                self._open()
        return None

    def _open(self) -> None:
        if self._repeats:
            _NEVER_DESTROYED.append(self._iterator)
        self._iterator, self.ended = iter(self._dataset), self.ended + 1
