"""Lets a script with a PyTorch loop alternate with a changed copy, as `serve` does for `fit`."""

import ast
from typing import Any

from .loader_proof import UNCHANGED
from .loader_trials import LoaderTrials, Steps


class ServedLoader(LoaderTrials):
    """What can be asked of a loop, by `ask_` methods."""

    def ask_batches(self) -> dict[str, Any]:
        """Digest an epoch's (first) batches in order, and their examples in any order."""
        return self._proof.digest(UNCHANGED, by_example=False)

    def ask_drawn(self) -> dict[str, Any]:
        """Digest an epoch's (first) batches, with random draws seeded by the example's index."""
        return self._proof.digest(UNCHANGED, by_example=True)

    def ask_changed(self, _kind: str, _number: int, added: str) -> bool:
        name, _, value = added.partition("=")
        name = name[len(self._place.prefix) :]
        return getattr(self._loader, name) == ast.literal_eval(value)

    def ask_fill(self) -> bool:
        return True

    def ask_rate(self, _step_s: float) -> Steps:
        return self._rate(self._unchanged)
