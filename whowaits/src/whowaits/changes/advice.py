"""What was tried, and what of that can be advised: only what has been seen to gain, and leaves the
training as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# What a change does to the training: nothing, other orders, what the script's Python makes of being
# called from several threads, or less drawn at random.
SAME, ORDER, THREADS, DRAWN_ONCE = "same", "order", "threads", "drawn less often"
WORTH = 1.1  # the least that a gain must be for a change to be named first
SHARED = "the same call makes another dataset, too, such as one for validation"
ALIKE = 0.9  # of the best gain: then the change that alters least is named first


@dataclass(frozen=True)
class Edit:
    """What a change is in the script: at FILE:LINE, the call of `called` gets what is added: an
    argument, calls after it where that begins with a dot, or arguments of a method that takes its
    place, as in `interleave(num_parallel_calls=2)`. `given` is the function that the call is given,
    if that has a name; `exact`: the line is that of the method's name.
    """

    where: str
    called: str
    adds: str
    given: str = ""
    exact: bool = True


@dataclass(frozen=True)
class Tried:
    """A change, and by what factor it made the training faster; where that factor lies. It is of
    the transformation of that kind and number from the dataset's end; `inside`: the function of a
    library that makes this one, where the script cannot change it; `shared`: the call that makes it
    has made another dataset, too.
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
    shared: bool = False

    @property
    def alters_another(self) -> bool:
        """Whether in the script it would change what another dataset delivers, or keep that."""
        return self.shared and (self.meaning != SAME or bool(self.keeps))

    @property
    def may_be_first(self) -> bool:
        """Whether it can be followed blindly."""
        return self.may_be_proven and self.is_certain and self.meaning != THREADS

    @property
    def may_be_proven(self) -> bool:
        """Whether it can be followed once a changed copy has delivered the same."""
        safe = self.meaning != DRAWN_ONCE and not self.inside
        return self.gain >= WORTH and safe and self.fits_memory

    @property
    def is_certain(self) -> bool:
        """Whether it gains enough wherever in its interval the gain lies."""
        return self.low >= WORTH

    def __str__(self) -> str:
        notes = [f"it keeps {self.keeps}"] if self.keeps else []
        if not self.fits_memory:
            notes.append("there may be no memory for that")
        notes += [self.says] if self.says else []
        noted = f" ({'; '.join(notes)})" if notes else ""
        at = f"{self.where}: " if self.where else ""
        return f"{self.gain:.2f} × ({self.low:.2f} to {self.high:.2f}) {at}{self.text}{noted}"


def find_first(tried: Sequence[Tried]) -> Tried | None:
    """What to change first: of those that may be followed blindly and gain about the same, one that
    keeps nothing in memory and leaves the order alone.
    """
    return next(iter(rank([each for each in tried if each.may_be_first])), None)


def rank(tried: Sequence[Tried]) -> list[Tried]:
    """Those that may be followed once they are proven, the one to try first before the others."""
    safe = [each for each in tried if each.may_be_proven]
    most = max((each.gain for each in safe), default=0.0)

    def order(each: Tried) -> tuple[object, ...]:
        less = each.gain < ALIKE * most
        alters = (SAME, ORDER, THREADS).index(each.meaning)
        return not each.is_certain, less, -each.gain if less else 0.0, alters, bool(each.keeps)

    return sorted(safe, key=order)
