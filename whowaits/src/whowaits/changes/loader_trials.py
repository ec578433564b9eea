"""Measures how much changes of the DataLoader speed up a PyTorch loop, which trains in turn on
batches of a changed and of an unchanged copy. `ServedLoader` lets a script alternate with a changed
copy of itself, as `serve` does for `fit`.
"""

from __future__ import annotations

import ast
import functools
import os
from collections.abc import Generator
from time import perf_counter
from typing import Any

from whowaits.timing.batches import MAX_DRAIN, MAX_DRAIN_S, drained_s
from whowaits.timing.blocks import Timing, statistics
from whowaits.timing.machine import count_cores, wait_until_idle
from whowaits.timing.rounds import Block, Step

from .advice import LOADER, SHARED, UNSHOWN, WORTH, Tried, sort_by_gain
from .loader_proof import UNCHANGED, LoaderProof, run_forked
from .loaders import (
    LoaderChange,
    LoaderPlace,
    copy_loader,
    find_handle,
    gives_whole_batches,
    is_iterable,
    propose_changes,
    propose_whole_batches,
    spoils_another,
)
from .ratios import Ratios

WARM_UP_S, BLOCK_S, MIN_STEPS = 0.6, 1.2, 4
REST_S = 1.0  # for workers of the copy whose turn has just ended
PROBE_S = 5.0
GAP_SHARE = 0.1  # a gap with this share of an epoch makes persistent workers worth a trial

# A loop gets the yielded batch and sends back its seconds of work on that batch, or None if the
# step does not count, such as one with a validation.
Steps = Generator[Any, "float | None", Any]


class CannotBeTried(Exception):
    """No change of a loader can be tried; the message says why."""


class _Over(Exception):
    """The time for trials is over."""


class _Feed:
    """A copy of a loader, whose epochs follow each other."""

    def __init__(self, loader: Any) -> None:
        self.loader, self._iterator = loader, None
        self.gaps_s: list[float] = []  # waits for an epoch's first batch

    def take(self) -> tuple[Any, float, bool]:
        """Return the next batch, the time [s] that took, and whether it is an epoch's first."""
        began, starts = perf_counter(), self._iterator is None
        opens = starts
        for _ in range(2):
            if self._iterator is None:
                self._iterator, opens = iter(self.loader), True
            for batch in self._iterator:
                took_s = perf_counter() - began
                # Persistent workers start once, which is no gap between epochs.
                if opens and not (starts and self.loader.persistent_workers):
                    self.gaps_s.append(took_s)
                return batch, took_s, opens
            self._iterator = None
        raise CannotBeTried("an epoch of the DataLoader has no batch")

    def drain(self, most_s: float) -> None:
        began = perf_counter()
        for _ in range(MAX_DRAIN):
            _, took_s, opens = self.take()
            if (took_s > most_s and not opens) or perf_counter() - began > MAX_DRAIN_S:
                return

    def pause(self) -> None:
        """End workers, which would work during another copy's turn, unless they are persistent."""
        if not self.loader.persistent_workers:
            self.close()

    def close(self) -> None:
        """End its workers."""
        stop = getattr(self._iterator, "_shutdown_workers", None)
        self._iterator = self.loader._iterator = None
        if stop is not None:
            stop()


class LoaderTrials:
    """Tries the changes of a training's loader until `deadline`; `found` has those timed so far."""

    def __init__(
        self, torch: Any, loader: Any, place: LoaderPlace, timing: Timing, *, deadline: float
    ) -> None:
        self._torch, self._loader, self._place = torch, loader, place
        self._timing, self._deadline = timing, deadline
        self._proof = LoaderProof(torch, loader)
        self._shown: dict[LoaderChange, tuple[str, str]] = {}
        self._feeds: dict[LoaderChange, _Feed] = {}
        self._unchanged = _Feed(copy_loader(torch, loader, UNCHANGED))
        self._shared = spoils_another(torch, loader, place)
        self._unchanged.gaps_s.extend(timing.gaps_s)
        self.found: list[Tried] = []
        self.refused: list[str] = []  # changes that failed, or that would alter the examples

    def run(self) -> Steps:
        """Try changes, then the best with persistent workers if gaps are long, then the best again.

        Raises:
          CannotBeTried: nothing could be timed; the message says why.
        """
        if not hasattr(os, "fork"):
            raise CannotBeTried("this system cannot fork a process to compare batches in")
        try:
            yield from self._try_all(self._propose())
        except _Over:
            if not self.found:
                raise CannotBeTried("the time was over before a change was timed") from None
        finally:
            for feed in (self._unchanged, *self._feeds.values()):
                feed.close()

    def _try_all(self, changes: list[LoaderChange]) -> Steps:
        ratios = Ratios((yield from self._rate(self._unchanged)))
        for number, change in enumerate(changes):
            if self._has_time() and not self._is_refused(change):
                yield from self._pair(change, ratios, number)
                self._describe_all(changes, ratios)
        stays = self._keep_workers(changes[self.found[0].number]) if self.found else None
        if stays is not None and self._has_time():
            changes.append(stays)
            yield from self._pair(stays, ratios, len(changes) - 1)
        while self._has_time():
            best = ratios.find_doubtful(self._describe_all(changes, ratios))
            if best is None:
                break
            yield from self._pair(changes[best], ratios, best)
        self._describe_all(changes, ratios)

    def _propose(self) -> list[LoaderChange]:
        loader, torch = self._loader, self._torch
        proposed = propose_changes(
            loader,
            cores=count_cores(),
            on_cuda=torch.cuda.is_initialized(),
            gap_matters=self._has_long_gaps(self._timing.gaps_s, self._timing.step_ms),
        )
        handle = "" if loader.num_workers else find_handle(loader.dataset)
        changes = [each for each in proposed if not (handle and each.more_workers)]
        whole = None if is_iterable(torch, loader) else propose_whole_batches(torch, loader)
        probe = functools.partial(gives_whole_batches, torch, loader)
        if whole and run_forked(probe, limit_s=PROBE_S) is True:
            changes.insert(0, whole)
        if not changes:
            because = f": its dataset holds `{handle}`, which workers cannot share"
            raise CannotBeTried(f"the DataLoader leaves nothing to try{because if handle else ''}")
        return changes

    def _has_long_gaps(self, gaps_s: list[float], step_ms: float) -> bool:
        steps = self._timing.steps_per_epoch
        if not gaps_s or not steps:
            return False
        gap_s = statistics.median(gaps_s)
        return gap_s > GAP_SHARE * (gap_s + steps * step_ms / 1e3)

    def _keep_workers(self, change: LoaderChange) -> LoaderChange | None:
        """Return a change of num_workers with persistent_workers; None if set or gaps are short."""
        if self._loader.persistent_workers or not change.more_workers:
            return None
        step_ms = self._timing.step_ms / self.found[0].gain
        if not self._has_long_gaps(self._feeds[change].gaps_s, step_ms):
            return None
        return LoaderChange((*change.keywords, ("persistent_workers", True)))

    def _has_time(self) -> bool:
        block_s = max(REST_S + WARM_UP_S + BLOCK_S, (MIN_STEPS + 1) * self._timing.step_ms / 1e3)
        return perf_counter() + 2 * block_s < self._deadline

    def _is_refused(self, change: LoaderChange) -> bool:
        """Return whether a change of a stream is not tried, since it may alter the examples."""
        if not is_iterable(self._torch, self._loader):
            return False
        meaning, says = self._show(change)
        if meaning == UNSHOWN:
            self.refused.append(f"{change.text(self._place)} is not tried: {says}")
        return meaning == UNSHOWN

    def _show(self, change: LoaderChange) -> tuple[str, str]:
        if change not in self._shown:
            self._shown[change] = self._proof.compare(change)
        return self._shown[change]

    def _pair(self, change: LoaderChange, ratios: Ratios, number: int) -> Steps:
        try:
            if change not in self._feeds:
                self._feeds[change] = _Feed(copy_loader(self._torch, self._loader, change))
            changed = yield from self._rate(self._feeds[change])
        except (CannotBeTried, _Over):
            raise
        except Exception as error:  # noqa: BLE001 - a change that fails is not advised
            why = str(error).strip().rpartition("\n")[2]  # the last line of a worker's traceback
            self.refused.append(f"{change.text(self._place)} fails: {type(error).__name__}: {why}")
            return
        finally:
            if change in self._feeds:
                self._feeds[change].pause()
        ratios.add(number, changed=changed, unchanged=(yield from self._rate(self._unchanged)))

    def _rate(self, feed: _Feed) -> Steps:
        """Return steps per second, with an average share of the gaps between epochs."""
        wait_until_idle(REST_S)
        feed.drain(drained_s(self._timing.step_ms))
        yield from self._train(feed, WARM_UP_S, 1)
        block = yield from self._train(feed, BLOCK_S, MIN_STEPS)
        gaps_s, steps = feed.gaps_s or self._unchanged.gaps_s, self._timing.steps_per_epoch
        if gaps_s and steps:
            return 1e3 / block.with_gaps(statistics.median(gaps_s), steps).step_ms
        return 1e3 / block.without_gaps().step_ms

    def _train(self, feed: _Feed, seconds: float, least: int) -> Steps:
        """Train on batches of a feed; return the block of steps."""
        block, began = Block(first_epoch=False), perf_counter()
        self._timing.settle()
        while perf_counter() - began < seconds or block.steps < least:
            batch, wait_s, opens = feed.take()
            work_s = yield batch
            if work_s is not None:
                block.add(Step(wait_s=wait_s, work_s=work_s, epoch=1, opens_epoch=opens))
            if perf_counter() > self._deadline:
                raise _Over
        asked = perf_counter()
        self._timing.settle()
        block.work_s += perf_counter() - asked
        return block

    def _describe_all(self, changes: list[LoaderChange], ratios: Ratios) -> dict[int, Tried]:
        """Describe the tried changes; compare the batches of those that gain."""
        known = {at: self._describe(changes[at], at, *ratios.interval(at)) for at in ratios.tried}
        self.found[:] = sort_by_gain(known.values())
        return known

    def _describe(
        self, change: LoaderChange, number: int, gain: float, low: float, high: float
    ) -> Tried:
        shows = gain >= WORTH or change in self._shown
        meaning, says = self._show(change) if shows else (UNSHOWN, "")
        shared = SHARED if self._shared and change.more_workers else ""
        return Tried(
            text=change.text(self._place),
            meaning=meaning,
            says="; ".join(filter(None, (says, shared))),
            keeps="",
            where=self._place.where,
            gain=gain,
            low=low,
            high=high,
            edits=change.edits(self._place),
            kind=LOADER,
            number=number,
            shared=shared,
        )


class ServedLoader(LoaderTrials):
    """The requests that a loop answers, by `ask_` methods."""

    def ask_batches(self) -> dict[str, Any]:
        """Digest an epoch's (first) batches in order, and their examples in any order."""
        return self._proof.digest(UNCHANGED, by_example=False)

    def ask_drawn(self) -> dict[str, Any]:
        """Digest an epoch's (first) batches, with random draws seeded by the example's index."""
        return self._proof.digest(UNCHANGED, by_example=True)

    def ask_changed(self, _kind: str, _number: int, added: str) -> bool:
        name, _, value = added.partition("=")
        found = getattr(self._loader, name[len(self._place.prefix) :])
        if name == "sampler":
            return value.startswith(f"{type(found).__name__}(")
        return found == ast.literal_eval(value)

    def ask_fill(self) -> bool:
        return True

    def ask_rate(self, _step_s: float) -> Steps:
        return self._rate(self._unchanged)
