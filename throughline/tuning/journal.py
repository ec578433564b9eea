"""The measurements of a search in a file, so that an interrupted search continues."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from throughline.results.base import parse
from throughline.results.race import Cost, Round
from throughline.shared.files import atomic_file, dump_json
from throughline.tuning.budgets import format_bytes
from throughline.tuning.space import CEILING

JOURNAL = "journal.json"


@dataclass(frozen=True, kw_only=True)
class Admission:
    """The costs and the memory of a contestant that has opened."""

    cost: Cost
    ram_bytes: float  # memory of its training, with the cache full
    held_bytes: float  # the most memory that the contestant itself has held
    disturbed: bool = False  # whether other programs disturbed the measurement of the cost


@dataclass(kw_only=True)
class JournalContent:
    """The content of the journal; all mappings are by name."""

    admissions: dict[str, Admission] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)  # the reasons
    lost: list[str] = field(default_factory=list)  # dropped, but may succeed in the next search
    rounds: list[Round] = field(default_factory=list)
    proven: dict[str, str] = field(default_factory=dict)  # digests of their training splits
    refuted: dict[str, str] = field(default_factory=dict)  # why the proof failed


class Journal:
    """The journal of a search in its folder: read when opened, written at every change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.content = JournalContent()
        with suppress(OSError, ValueError, TypeError):  # no journal, or one of another form
            self.content = parse(JournalContent, json.loads((folder / JOURNAL).read_bytes()))
            # Contestants that were lost, or took too much memory, are tried again.
            self.content.dropped, self.content.lost = dict(self.content.refuted), []

    def save(self) -> None:
        with atomic_file(self.folder / JOURNAL) as temporary:
            temporary.write_text(dump_json(asdict(self.content), indent=None))

    def forget(self) -> None:
        self.content = JournalContent()
        self.save()

    def admit(self, name: str, admission: Admission) -> None:
        self.content.admissions[name] = admission
        self.save()

    def drop(self, name: str, reason: str, *, transient: bool = False) -> None:
        """Note why a candidate is out, unless it is already; a `transient` reason may not recur."""
        if self.content.dropped.setdefault(name, reason) is reason:
            self.content.lost += [name] * transient
            self.save()

    def drop_large(self, name: str, allowed_bytes: float) -> bool:
        """Drop a contestant that needs too much memory, except the model alone; return whether."""
        taken = self.content.admissions[name].ram_bytes
        is_large = taken > allowed_bytes and name != CEILING
        if is_large:
            allowed = format_bytes(allowed_bytes)
            self.drop(name, f"needs {format_bytes(taken)} of memory (allowed: {allowed})")
        return is_large

    def add(self, one: Round) -> None:
        self.content.rounds.append(one)
        self.save()

    def note_proof(self, name: str, digest: str) -> None:
        self.content.proven[name] = digest
        self.save()

    def refute(self, name: str, reason: str) -> None:
        """Note that a configuration does not deliver the snapshot's examples; drop it for good."""
        self.content.refuted[name] = reason
        self.drop(name, reason)

    def forget_disturbed(self) -> None:
        """Forget disturbed rounds, and contestants with disturbed costs, to measure them again."""
        admissions = self.content.admissions
        again = {name for name, admission in admissions.items() if admission.disturbed}
        for name in again:
            del admissions[name]
        calm = [one for one in self.content.rounds if not one.disturbed]
        kept = [{name: one.turns[name] for name in one.turns if name not in again} for one in calm]
        self.content.rounds = [
            replace(one, turns=turns) for one, turns in zip(calm, kept, strict=True)
        ]
        self.save()

    def rounds_of(self, phase: str, names: Sequence[str]) -> int:
        """Count the rounds of a phase in which all of these contestants took part."""
        rounds = self.content.rounds
        return sum(one.phase == phase and one.turns.keys() >= {*names} for one in rounds)
