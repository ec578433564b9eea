"""The search for the configuration through which a training takes least time, within budgets.

Heat by heat: one's own configurations, the rules of thumb and the model alone; then one form of
each family, that of the best price; then more forms of the best families; then a final. After each
heat those leave that the fastest certainly beats. What is measured is journaled, so an interrupted
search goes on. Imports no TensorFlow.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from throughline.config.params import Params
from throughline.diagnosis.cost_model import ModelStepCost
from throughline.measurement.gpus import visible_gpus
from throughline.shared.errors import Untunable
from throughline.shared.progress import echo, echo_problem
from throughline.tuning.budgets import Budgets, Limits, parse_time
from throughline.tuning.choice import (
    SURE,
    Choice,
    choose,
    find_baseline,
    is_compute_bound,
    keep_incumbent,
)
from throughline.tuning.contestant import ContestantLost, do_once
from throughline.tuning.jobs import Entry, Survey
from throughline.tuning.journal import Journal
from throughline.tuning.needs import Need, find_excess
from throughline.tuning.pool import Pool
from throughline.tuning.race import MIN_ROUNDS, Race
from throughline.tuning.space import CEILING, OWN, RULES, Candidate, pick_forms, read_stored

ROUNDS, FINAL_ROUNDS = 5, 15
MOST_FAMILIES, FORMS_EACH, MOST_FINALISTS = 3, 4, 6
RACING_SHARE = 0.8  # of the time; the rest is for confirming and proving
FEWEST_STEPS = 20  # of an epoch
FIT_S, FIT_RUNS = 4.0, 2  # how long epochs, and how many runs, confirm a small lead
PROOF_S = 24 * 3600.0  # reads every example twice


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is searched: parameters of one process, the project, the budgets, and as numbers."""

    params: Params
    root: Path
    budgets: Budgets
    limits: Limits

    @property
    def epochs(self) -> int:
        """Of the training that is to be fast."""
        given = self.budgets.epochs
        return given if isinstance(given, int) else self.params.train.epochs


class Search:
    """One search: `run` it, then read what it `survey`ed, its `race` and its choice."""

    def __init__(self, question: Question, journal: Journal) -> None:
        self.question, self.journal = question, journal
        self.survey = self._survey()
        self._racing_until = time.monotonic() + RACING_SHARE * parse_time(question.budgets.time)
        self.excess = find_excess(self.survey.needs, question.limits)
        self._candidates = {
            each.name: each for each in self.survey.space.candidates if each.name not in self.excess
        }

    def run(self) -> Choice:
        """Race, choose, confirm and prove; returns the choice.

        Raises:
          Untunable: no contestant could be opened.
        """
        with Pool(self.job, self.needs, self.journal, self.question.limits.ram_bytes) as pool:
            self._race_heats(pool)
        if not self.rivals:
            reasons = "; ".join(
                f"{name}: {why}" for name, why in self.journal.pages.dropped.items()
            )
            raise Untunable(f"no contestant could be raced: {reasons}")
        while True:
            choice = self._confirm(self._choose())
            if choice.outcome != "found" or self._prove(choice.name):
                return choice

    @property
    def race(self) -> Race:
        """All that has been measured."""
        pages = self.journal.pages
        return Race(
            rounds=pages.rounds,
            costs={name: entrance.cost for name, entrance in pages.entrances.items()},
            examples=self.survey.examples,
            epochs=self.question.epochs,
        )

    @property
    def rivals(self) -> list[str]:
        """Those that have raced and can be chosen."""
        return [
            name
            for name in self.race.names
            if name in self._candidates and name not in self.journal.pages.dropped
        ]

    @cached_property
    def needs(self) -> dict[str, Need]:
        """What each contestant needs; the model alone what the least of them does."""
        least = min(each.ram_bytes for each in self.survey.needs.values())
        alone = Need(ram_bytes=least, disk_bytes=0.0, prepare_s=0.0)
        return {**self.survey.needs, CEILING: alone}

    def _survey(self) -> Survey:
        question = self.question
        echo("surveying the data: what can be kept where, and what that needs")
        try:
            surveyed: Survey = do_once(
                "survey",
                question.params,
                question.root,
                question.budgets.allow,
                question.limits,
                log=self.journal.folder / "survey.log",
            )
        except ContestantLost as lost:
            raise Untunable(f"the prepared data cannot be surveyed: {lost}") from lost
        if surveyed.steps_per_epoch < FEWEST_STEPS:
            raise Untunable(
                f"an epoch has {surveyed.steps_per_epoch} steps, and at least {FEWEST_STEPS} are"
                " needed to see how fast they are; use more data, or a smaller batch_size"
            )
        return surveyed

    def _race_heats(self, pool: Pool) -> None:
        given = [name for name, each in self._candidates.items() if each.family in (OWN, RULES)]
        self._heat(pool, "own", [CEILING, *given])
        own = self._own
        if own and is_compute_bound(self.race, self.race.fastest(own)):
            echo(f"input is a negligible part of a step with {self.race.fastest(own)}")
            return
        self._predict(pool)
        families = {
            family: forms for family, forms in self._families.items() if family not in (OWN, RULES)
        }
        first = [self._pick(forms, 1)[0] for forms in families.values()]
        for group in pool.groups(first, together_with=pool.names):
            self._heat(pool, "families", [*pool.names, *group])
            self._keep(pool, most=MOST_FAMILIES)
        best = [self._candidates[name].family for name in self._leaders(MOST_FAMILIES)]
        forms = [
            form
            for family in dict.fromkeys(best)
            for form in self._pick(families.get(family, []), FORMS_EACH)
        ]
        new = [name for name in forms if name not in self.race.names]
        for group in pool.groups(new, together_with=pool.names):
            self._heat(pool, "forms", [*pool.names, *group])
            self._keep(pool, most=MOST_FINALISTS)
        self._heat(pool, "final", pool.names, rounds=FINAL_ROUNDS)

    def candidate(self, name: str) -> Candidate:
        """The candidate of this name."""
        return self._candidates[name]

    @property
    def _families(self) -> dict[str, list[Candidate]]:
        grouped: dict[str, list[Candidate]] = {}
        for each in self._candidates.values():
            grouped.setdefault(each.family, []).append(each)
        return grouped

    @property
    def _own(self) -> list[str]:
        return [name for name in self.rivals if self._candidates[name].family == OWN]

    def _pick(self, forms: Sequence[Candidate], count: int) -> list[str]:
        predicted = self.journal.pages.predicted or {}
        return [form.name for form in pick_forms(forms, predicted, count)]

    def _leaders(self, most: int) -> list[str]:
        return self.race.survivors(self.rivals, most=most) if self.rivals else []

    def _keep(self, pool: Pool, *, most: int) -> None:
        """End those that are out, but not what the others are compared with to the end."""
        kept = {CEILING, *self._leaders(most)}
        if own := self._own:
            kept |= {find_baseline(own), self.race.fastest(own)}
        for name in pool.names:
            if name not in kept:
                pool.end(name)

    def _heat(self, pool: Pool, heat: str, names: Sequence[str], *, rounds: int = ROUNDS) -> None:
        """Race these names for so many rounds, less those that the journal has; fewer when the
        time is up.
        """
        dropped = self.journal.pages.dropped
        names = [name for name in dict.fromkeys(names) if name not in dropped]
        done = self.journal.rounds_of(heat, names)
        if done >= rounds or (time.monotonic() > self._racing_until and heat != "own"):
            return
        echo(f"heat {heat}: {', '.join(names)}")
        pool.open(names)
        for number in range(done, rounds):
            if number >= MIN_ROUNDS and time.monotonic() > self._racing_until:
                return
            self.journal.add(pool.race(names, heat, number=number))

    def _predict(self, pool: Pool) -> None:
        """Measure what the parts of pipelines cost, unless the journal has what follows from it."""
        if self.journal.pages.predicted is not None or time.monotonic() > self._racing_until:
            return
        step_ms = self.question.params.batch_size / self.race.rate(CEILING) * 1e3
        model_step = ModelStepCost(
            step_ms=step_ms,
            core_ms=pool.core_ms(CEILING) or step_ms,
            on_accelerator=bool(visible_gpus()[0]),
        )
        echo("measuring what the parts of the pipelines cost")
        predicted: dict[str, float] = {}
        try:
            predicted = do_once(
                "price",
                self.question.params,
                self.question.root,
                list(self._candidates.values()),
                model_step,
                log=self.journal.folder / "price.log",
            )
        except ContestantLost as lost:
            echo_problem(f"no prices, forms are tried in their own order: {lost}")
        self.journal.note_prices(predicted)

    def _choose(self) -> Choice:
        return choose(
            self.race,
            self.rivals,
            self._own or self.rivals[:1],
            needs=self.measured_needs,
            configs={name: each.config for name, each in self._candidates.items()},
        )

    @property
    def measured_needs(self) -> dict[str, Need]:
        """What each contestant needs, by what it has been seen to take."""
        entrances = self.journal.pages.entrances
        return {
            name: Need(
                ram_bytes=entrances[name].ram_bytes if name in entrances else need.ram_bytes,
                disk_bytes=need.disk_bytes,
                prepare_s=need.prepare_s,
            )
            for name, need in self.needs.items()
        }

    def _confirm(self, choice: Choice) -> Choice:
        """Train by `fit` in fresh processes where the lead is small; the incumbent stays unless the
        choice wins each time.
        """
        if choice.outcome != "found" or 1 / choice.to_incumbent.median >= SURE:
            return choice
        names = [choice.name, choice.incumbent]
        echo(f"confirming by fit in fresh processes: {names[0]} against {names[1]}")
        race = self.race
        try:
            for number in range(FIT_RUNS):
                for name in names if number % 2 == 0 else reversed(names):
                    self._fit(name, number)
        except ContestantLost as lost:
            return keep_incumbent(choice, race, f"fit in a fresh process failed: {lost}")
        totals = [
            [race.total_s(name, rate) for rate in self.journal.pages.fits[name][:FIT_RUNS]]
            for name in names
        ]
        ratio = statistics.median(one / other for one, other in zip(*totals, strict=True))
        if all(one < other for one, other in zip(*totals, strict=True)):
            return choice
        return keep_incumbent(choice, race, f"by fit it takes {ratio:.2f} times as long")

    def _fit(self, name: str, number: int) -> None:
        if len(self.journal.pages.fits.get(name, [])) > number:
            return
        steps = max(1, round(FIT_S * self.race.rate(name) / self.question.params.batch_size))
        log = self.journal.folder / "fit.log"
        self.journal.note_fit(name, do_once("fit", self._entry(name), steps, log=log))

    def _prove(self, name: str) -> bool:
        """Whether the examples are the snapshot's; one whose are not is dropped."""
        if name in self.journal.pages.proven:
            return True
        echo(f"proving that {name} delivers the snapshot's examples")
        question = self.question
        try:
            digest = do_once(
                "prove",
                question.params,
                question.root,
                name,
                self._candidates[name].config,
                log=self.journal.folder / "prove.log",
                timeout_s=PROOF_S,
            )
        except ContestantLost as lost:
            self.journal.drop(name, f"not proven: {lost}")
            return False
        self.journal.note_proof(name, digest)
        return True

    def _entry(self, name: str) -> Entry:
        question = self.question
        config = (
            read_stored(question.params.pipelines)
            if name == CEILING
            else self._candidates[name].config
        )
        return Entry(params=question.params, root=question.root, name=name, config=config)

    def job(self, name: str) -> tuple[str, Entry]:
        """What the process of a contestant does, and its argument."""
        return ("ceiling" if name == CEILING else "train"), self._entry(name)
