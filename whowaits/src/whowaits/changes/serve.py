"""Lets a script train in turn with a changed copy: each does what `proof.py` asks, then rests."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from time import perf_counter
from typing import Any

from .passes import arrays_of_tensors, digest_epoch
from .places import find, is_changed
from .proof import answer
from .trials import Epochs

EPOCHS_S = 40.0  # for two epochs' batches, or one epoch of training


class Served:
    """A training that answers requests by its `ask_` methods."""

    def __init__(self, function: Callable[[Any], Any], training: Any, session: Any) -> None:
        self._dataset, self._steps = training.dataset, training.steps
        self._session = session
        self._epochs = Epochs(function, training.dataset)

    def serve(self, reads: int, writes: int) -> None:
        """Answer requests until the other end closes; then end the script."""
        self._session.heartbeat(expects=None)
        list(answer(self, reads, writes))
        self._session.end()

    def ask_batches(self) -> dict[str, Any]:
        """Digest the batches of two epochs in order, and their examples in any order."""
        return _digest_epochs(self._dataset, self._steps, by_example=True)

    def ask_elements(self, kind: str, number: int) -> dict[str, Any]:
        """Digest the elements after one transformation and its caches and shuffles."""
        return _digest_epochs(find(self._dataset, kind, number), None, by_example=False)

    def ask_changed(self, kind: str, number: int, added: str) -> bool:
        return is_changed(self._dataset, kind, number, added)

    def ask_fill(self) -> bool:
        """Train until the first epoch has ended; return whether it did in time."""
        began = perf_counter()
        while not self._epochs.ended and perf_counter() - began < EPOCHS_S:
            self._epochs.step()
        return bool(self._epochs.ended)

    def ask_rate(self, step_s: float) -> float:
        return self._epochs.time(step_s, lambda: None)


def _digest_epochs(dataset: Any, steps: int | None, *, by_example: bool) -> dict[str, Any]:
    """Digest two epochs of `steps` elements, if given; `whole` says that neither was cut short."""
    deadline = perf_counter() + EPOCHS_S
    iterator = iter(dataset.repeat()) if steps else None
    passes = [
        digest_epoch(
            itertools.islice(iterator, steps) if iterator else iter(dataset),
            arrays_of_tensors,
            lambda _: perf_counter() > deadline,
            by_example=by_example,
        )
        for _ in range(2)
    ]
    return {"epochs": [epoch for epoch, _ in passes], "whole": all(whole for _, whole in passes)}
