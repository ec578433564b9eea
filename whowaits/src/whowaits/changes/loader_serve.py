"""Lets a script with a PyTorch loop alternate with a changed copy, as `serve` does a `fit`."""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Generator
from typing import Any

from .loader_proof import UNCHANGED
from .loader_trials import LoaderTrials, Steps


class ServedLoader(LoaderTrials):
    """Answers requests: reads lines that name `ask_` methods, and writes their results."""

    def serve(self, reads: int, writes: int) -> Steps:
        """Answer requests until the other end closes; meanwhile yield batches to train on."""
        with os.fdopen(reads) as asked, os.fdopen(writes, "w") as answers:
            for line in asked:
                name, *arguments = json.loads(line)
                try:
                    found = getattr(self, f"ask_{name}")(*arguments)
                    if isinstance(found, Generator):
                        found = yield from found
                    answer = {"is": found}
                except Exception as error:  # noqa: BLE001 - goes to the one who asked
                    answer = {"failed": f"{type(error).__name__}: {error}"}
                print(json.dumps(answer), file=answers, flush=True)

    def ask_batches(self) -> dict[str, Any]:
        """Digest the batches of an epoch in order, and their examples in any order."""
        return self._proof.digest(UNCHANGED, by_example=False)

    def ask_drawn(self) -> dict[str, Any]:
        """Digest an epoch's batches, with random draws seeded by the example's index."""
        return self._proof.digest(UNCHANGED, by_example=True)

    def ask_changed(self, _kind: str, _number: int, added: str) -> bool:
        name, _, value = added.partition("=")
        name = name[len(self._place.prefix) :]
        return getattr(self._loader, name) == ast.literal_eval(value)

    def ask_fill(self) -> bool:
        return True

    def ask_rate(self, _step_s: float) -> Steps:
        return self._rate(self._unchanged)
