"""The saves that are left out once a training has had other batches than its script meant."""

import os
from collections.abc import Callable


class LeftOutSaves:
    """Saves that are not written; `say` prints a line about the first."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say, self._pid = say, os.getpid()
        self._names: list[str] | None = None  # None while saves are written
        self.on_first: Callable[[], object] = lambda: None  #: called before any is left out

    def leave_out(self) -> None:
        """Leave out all further saves."""
        if self._names is None:
            self._names = []
            self.on_first()

    @property
    def are_left_out(self) -> bool:
        """Whether saves of this process are left out; those of the script's children are not."""
        return self._names is not None and os.getpid() == self._pid

    def add(self, save: str) -> None:
        """Record the name of a skipped save; print a line about the first one."""
        if not self._names:
            self._say(f"{save} and later saves are left out: the model has seen repeated batches")
        if self._names is not None:
            self._names.append(save)

    @property
    def notes(self) -> list[str]:
        if not self._names:
            return []
        return [
            f"saves of the script that were left out, since the model had seen repeated batches:"
            f" {len(self._names)}; the first was {self._names[0]}"
        ]
