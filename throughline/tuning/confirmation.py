"""What is asked of a winner after the race: a small lead once more by `fit` itself, in fresh
processes, and that it delivers the snapshot's examples.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from throughline.measurement.other_processes import OtherProcesses
from throughline.shared.errors import UnequalConfigurations
from throughline.shared.progress import echo
from throughline.tuning.choice import LEAST_GAIN, SURE, Choice
from throughline.tuning.contestant import Contestant, ContestantLost, do_once
from throughline.tuning.jobs import Entry
from throughline.tuning.journal import Journal
from throughline.tuning.race import DISTURBED_PCT, Race

FIT_S, FIT_RUNS = 4.0, 2  # how long epochs, and how many pairs of runs, confirm a small lead
MOST_PAIRS = 3  # of which as many as are undisturbed count
PROOF_S = 24 * 3600.0  # reads every example twice


@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """What trainings by `fit` say about a lead, and why. disturbed: nothing, since others were at
    work. lost: nothing, since one of the two could not be trained, which is out then.
    """

    outcome: Literal["confirmed", "refuted", "disturbed", "lost"] = "confirmed"
    reason: str = ""


def fit_alone(entry: Entry, rate: float, journal: Journal) -> tuple[float, OtherProcesses]:
    """Examples per second by `fit`, in epochs of about `FIT_S` at this rate, and what others took
    meanwhile.
    """
    steps = max(1, round(FIT_S * rate / entry.params.batch_size))
    # The process is there until others have been measured: its own work is known while it lives.
    contestant = Contestant("fit", (entry, steps), log=journal.folder / "fit.log")
    with contestant, OtherProcesses() as others:
        fitted: float = contestant.wait_until_open()
    return fitted, others


def confirm(
    choice: Choice,
    race: Race,
    journal: Journal,
    entry_of: Callable[[str], Entry],
    *,
    fit: Callable[[Entry, float, Journal], tuple[float, OtherProcesses]] = fit_alone,
) -> Confirmation:
    """Train by `fit` where the lead is small: it is confirmed if the choice takes less time than
    the incumbent in each pair of runs, whose order alternates.
    """
    if 1 / choice.to_incumbent.median >= SURE:
        return Confirmation()
    one, other = names = choice.name, choice.incumbent
    pair = f"{one} against {other}"
    echo(f"confirming by fit in fresh processes: {pair}")
    disturbed = ""
    for _ in range(MOST_PAIRS):
        number = len(journal.pages.fits.get(pair, []))
        if number == FIT_RUNS:
            break
        rates: dict[str, float] = {}
        calm = True
        for name in names if number % 2 == 0 else reversed(names):
            try:
                rates[name], others = fit(entry_of(name), race.rate(name), journal)
            except ContestantLost as lost:
                why = f"fit in a fresh process failed: {lost}"
                journal.drop(name, why, passing=lost.passing)
                return Confirmation(outcome="lost", reason=f"`{name}`: {why}")
            if others.cpu_pct > DISTURBED_PCT:
                calm = False
                disturbed = f"{others.busiest} took {others.cpu_pct:.0f} % of the cores"
        if calm:
            journal.note_fits(pair, (rates[one], rates[other]))
    pairs = journal.pages.fits.get(pair, [])
    if len(pairs) < FIT_RUNS:
        why = f"{disturbed} while fit was to confirm that `{one}` leads"
        return Confirmation(outcome="disturbed", reason=why)
    ratios = [
        race.total_s(one, rates[0]) / race.total_s(other, rates[1]) for rates in pairs[:FIT_RUNS]
    ]
    if max(ratios) < 1 and statistics.median(ratios) <= 1 / LEAST_GAIN:
        return Confirmation()
    why = f"by fit in fresh processes it takes {statistics.median(ratios):.2f} times as long"
    return Confirmation(outcome="refuted", reason=why)


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
