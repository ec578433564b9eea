"""What a search has measured so far, in a file that each round is added to, so that an interrupted
search goes on where it was.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from throughline.results.base import parse
from throughline.results.race import Cost, Round
from throughline.shared.files import atomic_file, dump_json
from throughline.tuning.needs import format_bytes
from throughline.tuning.space import CEILING

JOURNAL = "journal.json"


@dataclass(frozen=True, kw_only=True)
class Entrance:
    """What is known of a contestant that has opened: what its training costs besides, the memory
    that this takes, with its cache full, and what the contestant itself has held at most;
    `disturbed`: others were at work while the cost was measured.
    """

    cost: Cost
    ram_bytes: float
    held_bytes: float
    disturbed: bool = False


@dataclass(kw_only=True)
class Pages:
    """The journal as a value: entrances and why contestants were dropped, by name; rounds in their
    order; whose examples are proven, and whose are not, and why. `lost` are those
    of the dropped ones that may race the next time.
    """

    entrances: dict[str, Entrance] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    proven: dict[str, str] = field(default_factory=dict)
    refuted: dict[str, str] = field(default_factory=dict)


class Journal:
    """The pages of a search in its folder: read when it is opened, written with every change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pages = Pages()
        with suppress(OSError, ValueError, TypeError):  # none, or one of another form
            self.pages = parse(Pages, json.loads((folder / JOURNAL).read_bytes()))
            # Who was lost, or took too much of what there was then, is tried again.
            self.pages.dropped, self.pages.lost = dict(self.pages.refuted), []

    def save(self) -> None:
        """Write all pages, atomically."""
        with atomic_file(self.folder / JOURNAL) as temporary:
            temporary.write_text(dump_json(asdict(self.pages), indent=None))

    def forget(self) -> None:
        """Begin again with empty pages."""
        self.pages = Pages()
        self.save()

    def enter(self, name: str, entrance: Entrance) -> None:
        """A contestant has opened."""
        self.pages.entrances[name] = entrance
        self.save()

    def drop(self, name: str, reason: str, *, passing: bool = False) -> None:
        """A candidate is out, and why, which may be `passing`; the first reason stays."""
        if self.pages.dropped.setdefault(name, reason) is reason:
            self.pages.lost += [name] * passing
            self.save()

    def drop_large(self, name: str, allowed_bytes: float) -> bool:
        """Drop a contestant whose training has taken more memory than is allowed, but not the model
        alone; returns whether it has.
        """
        taken = self.pages.entrances[name].ram_bytes
        if taken <= allowed_bytes or name == CEILING:
            return False
        allowed = format_bytes(allowed_bytes)
        self.drop(name, f"takes {format_bytes(taken)} of memory, {allowed} are allowed")
        return True

    def add(self, one: Round) -> None:
        """A round is complete."""
        self.pages.rounds.append(one)
        self.save()

    def note_proof(self, name: str, digest: str) -> None:
        """The examples of a configuration are proven to be the snapshot's."""
        self.pages.proven[name] = digest
        self.save()

    def refute(self, name: str, reason: str) -> None:
        """The examples of a configuration are not the snapshot's: it is out for good."""
        self.pages.refuted[name] = reason
        self.drop(name, reason)

    def forget_disturbed(self) -> None:
        """Let the rounds in which other programs were at work be raced again, and all that follows
        from a cache that was filled meanwhile.
        """
        entrances = self.pages.entrances
        again = {name for name, entrance in entrances.items() if entrance.disturbed}
        self.pages.entrances = {name: entrances[name] for name in entrances if name not in again}
        self.pages.rounds = [
            replace(
                one, turns={name: turn for name, turn in one.turns.items() if name not in again}
            )
            for one in self.pages.rounds
            if not one.disturbed
        ]
        self.save()

    def rounds_of(self, heat: str, names: Sequence[str]) -> int:
        """How many rounds of a heat all of these contestants have had."""
        return sum(
            one.heat == heat and all(name in one.turns for name in names)
            for one in self.pages.rounds
        )
