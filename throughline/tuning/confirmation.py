"""What is asked of a winner after the race: a small lead once more by `fit` itself, in fresh
processes, and that it delivers the snapshot's examples.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

from throughline.shared.errors import UnequalConfigurations
from throughline.shared.progress import echo
from throughline.tuning.choice import LEAST_GAIN, SURE, Choice
from throughline.tuning.contestant import ContestantLost, do_once
from throughline.tuning.jobs import Entry
from throughline.tuning.journal import Journal
from throughline.tuning.race import Race

FIT_S, FIT_RUNS = 4.0, 2  # how long epochs, and how many pairs of runs, confirm a small lead
PROOF_S = 24 * 3600.0  # reads every example twice


def confirm(
    choice: Choice, race: Race, journal: Journal, entry_of: Callable[[str], Entry]
) -> str | None:
    """Train by `fit` where the lead is small; returns why it is none, unless the choice takes less
    time than the incumbent in each pair of runs, whose order alternates.
    """
    if 1 / choice.to_incumbent.median >= SURE:
        return None
    one, other = names = choice.name, choice.incumbent
    pair = f"{one} against {other}"
    echo(f"confirming by fit in fresh processes: {pair}")
    try:
        for number in range(len(journal.pages.fits.get(pair, [])), FIT_RUNS):
            order = names if number % 2 == 0 else (other, one)
            rates = {name: _fit(entry_of(name), race.rate(name), journal) for name in order}
            journal.note_fits(pair, (rates[one], rates[other]))
    except ContestantLost as lost:
        journal.drop(one, why := f"fit in a fresh process failed: {lost}", passing=lost.passing)
        return why
    ratios = [
        race.total_s(one, rates[0]) / race.total_s(other, rates[1])
        for rates in journal.pages.fits[pair][:FIT_RUNS]
    ]
    if max(ratios) < 1 and statistics.median(ratios) <= 1 / LEAST_GAIN:
        return None
    return f"by fit in fresh processes it takes {statistics.median(ratios):.2f} times as long"


def _fit(entry: Entry, rate: float, journal: Journal) -> float:
    """Examples per second by `fit`, in epochs of about `FIT_S` at this rate."""
    steps = max(1, round(FIT_S * rate / entry.params.batch_size))
    return do_once("fit", entry, steps, log=journal.folder / "fit.log")


def prove(entry: Entry, journal: Journal) -> bool:
    """Whether the examples are the snapshot's. A candidate whose are not is out for good; one whose
    proof is cut short, perhaps for want of memory, is tried again by the next search.
    """
    if entry.name in journal.pages.proven:
        return True
    echo(f"proving that {entry.name} delivers the snapshot's examples")
    try:
        digest = do_once("prove", entry, log=journal.folder / "prove.log", timeout_s=PROOF_S)
    except ContestantLost as lost:
        if lost.failure and lost.failure.kind == UnequalConfigurations.__name__:
            journal.refute(entry.name, f"not proven: {lost}")
        else:
            journal.drop(entry.name, f"not proven: {lost}", passing=lost.passing)
        return False
    journal.note_proof(entry.name, digest)
    return True
