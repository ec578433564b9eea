"""The question that a search answers, the survey of the data before it, and the proof after it.

Survey and proof run in processes of their own. Imports no TensorFlow.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from throughline.config.params import Params
from throughline.race.contestant import ContestantLost, do_once
from throughline.race.jobs import Entry
from throughline.shared.errors import UnequalConfigurations, Untunable
from throughline.shared.progress import echo
from throughline.tuning.budgets import Budgets, Limits, Need
from throughline.tuning.journal import Journal
from throughline.tuning.space import Space

FEWEST_STEPS = 20  # per epoch
SURVEY, PROOF = "throughline.tuning.survey:survey", "throughline.tuning.survey:prove_equal"
PROOF_S = 24 * 3600.0  # reads every example twice


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The result of a survey.

    Attributes:
      needs: What each candidate needs, by name.
      besides_steps_bytes: Memory that a training needs beyond its contestant's steps.
      sampled_share: Examples that a contestant's memory or cache holds, as a share of all splits.
    """

    space: Space
    needs: Mapping[str, Need]
    besides_steps_bytes: int
    sampled_share: float
    examples: int
    steps_per_epoch: int


@dataclass(frozen=True, kw_only=True)
class Question:
    """The question of a search; `shared` is as in `Conditions`."""

    params: Params
    root: Path
    budgets: Budgets
    limits: Limits
    shared: bool = False

    @property
    def epochs(self) -> int:
        given = self.budgets.epochs
        return given if isinstance(given, int) else self.params.train.epochs


def survey_data(question: Question, folder: Path) -> Survey:
    """Find the candidates and what each needs, in a process whose log is in `folder`.

    Raises:
      Untunable: If the data cannot be read or trained on, or its epochs are too short.
    """
    echo("surveying the data: what can be kept where, and what that needs")
    try:
        surveyed: Survey = do_once(
            SURVEY,
            question.params,
            question.root,
            question.budgets.allow,
            question.limits,
            question.shared,
            log=folder / "survey.log",
        )
    except ContestantLost as lost:
        raise Untunable(
            f"the prepared data could not be read, or trained on for a few steps: {lost}"
        ) from lost
    if (steps := surveyed.steps_per_epoch) < FEWEST_STEPS:
        raise Untunable(
            f"an epoch has {steps} step{'s' * (steps != 1)}, but at least {FEWEST_STEPS} are"
            " needed to measure their speed; use more data, or a smaller batch_size"
        )
    return surveyed


def prove(entry: Entry, journal: Journal) -> bool:
    """Prove that a candidate's examples are the snapshot's, and return whether that succeeds.

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
