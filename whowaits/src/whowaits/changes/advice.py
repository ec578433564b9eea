"""Changes that were tried, and the choice of those to advise: faster, and with the same data."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# Effects of a change on the training: none, another order, other random draws, threads, fewer
# random draws, or an unknown effect.
SAME, ORDER, DRAWS, THREADS = "same", "order", "draws", "threads"
DRAWN_ONCE, UNSHOWN = "drawn less often", "not shown"
LOADER = "DataLoader"  # the `kind` of changes of a PyTorch loader; others name a tf.data method
WORTH = 1.1  # least gain of a change to advise
SHARED = "the same call may make another dataset, too, such as one for validation"
SEVERAL = "the same call also makes other transformations of the dataset"
ALIKE = 0.9  # share of the best gain; of changes that reach it, the least altering is first


@dataclass(frozen=True)
class Edit:
    """A change in the script: an addition to the call of `called` at FILE:LINE.

    Attributes:
      adds: An argument (or its new value); or, with a dot in front, calls to append; or a method
        that replaces `called`, with arguments: `interleave(num_parallel_calls=2)`.
      given: The name of the function that the call is given, if it has one.
      exact: Whether LINE is that of the method's name, as Python gives it from 3.11 on.
    """

    where: str
    called: str
    adds: str
    given: str = ""
    exact: bool = sys.version_info >= (3, 11)


@dataclass(frozen=True)
class Tried:
    """A change that was tried, and the factor by which it made the training faster.

    Attributes:
      low, high: The interval of `gain`.
      kind, number: The transformation's kind, and which one of it from the dataset's end.
      inside: The library function that makes it, if the script cannot change it.
      shared: What else the script's call makes, or may make: SHARED, SEVERAL or "".
    """

    text: str
    meaning: str
    says: str
    keeps: str
    where: str
    gain: float
    low: float
    high: float
    fits_memory: bool = True
    edits: tuple[Edit, ...] = ()
    kind: str = ""
    number: int = 0
    inside: str = ""
    shared: str = ""

    @property
    def alters_another(self) -> bool:
        """Whether the change alters another dataset or transformation that the same call makes."""
        alters = self.meaning != SAME or bool(self.keeps) or self.kind == LOADER
        return self.shared == SEVERAL or (bool(self.shared) and alters)

    @property
    def may_be_first(self) -> bool:
        """Whether the change can be advised without a proof."""
        alone = self.meaning != THREADS and self.shared != SEVERAL
        return self.may_be_proven and self.is_certain and alone

    @property
    def may_be_proven(self) -> bool:
        """Whether the change can be advised once a changed copy has delivered the same data."""
        safe = self.meaning not in (DRAWN_ONCE, UNSHOWN) and not self.inside
        return self.gain >= WORTH and safe and self.fits_memory

    @property
    def is_certain(self) -> bool:
        """Whether the whole interval of the gain is large enough."""
        return self.low >= WORTH

    @property
    def at(self) -> str:
        return f"{self.where}: " if self.where else ""

    @property
    def span(self) -> str:
        return f"{self.gain:.2f} × ({self.low:.2f} to {self.high:.2f})"

    def __str__(self) -> str:
        keeps = f"it keeps {self.keeps}" if self.keeps else ""
        lacks = "" if self.fits_memory else "there may be no memory for that"
        noted = "; ".join(filter(None, (keeps, lacks, self.says)))
        return f"{self.span} {self.at}{self.text}{f' ({noted})' if noted else ''}"


def sort_by_gain(tried: Iterable[Tried]) -> list[Tried]:
    return sorted(tried, key=lambda each: -each.gain)


def find_first(tried: Sequence[Tried]) -> Tried | None:
    """Return the change to make first: safe, about as good as the best, altering least; or None."""
    return next(iter(rank([each for each in tried if each.may_be_first])), None)


def rank(tried: Sequence[Tried]) -> list[Tried]:
    """Return the changes that may be advised once proven, sorted as `find_first` prefers them."""
    safe = [each for each in tried if each.may_be_proven]
    most = max((each.gain for each in safe), default=0.0)

    def order(each: Tried) -> tuple[object, ...]:
        less = each.gain < ALIKE * most
        alters = (SAME, ORDER, DRAWS, THREADS).index(each.meaning)
        return not each.is_certain, less, -each.gain if less else 0.0, alters, bool(each.keeps)

    return sorted(safe, key=order)
