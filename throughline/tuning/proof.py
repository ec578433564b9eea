"""The proof, after the race, that the winner delivers the snapshot's examples."""

from __future__ import annotations

from throughline.race.contestant import ContestantLost, do_once
from throughline.race.jobs import Entry
from throughline.shared.errors import UnequalConfigurations
from throughline.shared.progress import echo
from throughline.tuning.journal import Journal

PROOF = "throughline.tuning.survey:prove_equal"
PROOF_S = 24 * 3600.0  # reads every example twice


def prove(entry: Entry, journal: Journal) -> bool:
    """Prove that the examples are the snapshot's, and return whether they are.

    A candidate with other examples is out for good. If the proof fails for another reason, such as
    too little memory, the next search tries the candidate again.
    """
    if entry.name in journal.pages.proven:
        return True
    echo(f"proving that {entry.name} delivers the snapshot's examples")
    try:
        digest = do_once(PROOF, entry, log=journal.folder / "prove.log", timeout_s=PROOF_S)
    except ContestantLost as lost:
        if lost.failure and lost.failure.kind == UnequalConfigurations.__name__:
            journal.refute(entry.name, f"not proven: {lost}")
        else:
            journal.drop(entry.name, f"not proven: {lost}", transient=lost.transient)
        return False
    journal.note_proof(entry.name, digest)
    return True
