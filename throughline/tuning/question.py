"""What a search is asked, and the survey of the data that it begins with. Imports no TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from throughline.config.params import Params
from throughline.race.contestant import ContestantLost, do_once
from throughline.shared.errors import Untunable
from throughline.shared.progress import echo
from throughline.tuning.budgets import Budgets, Limits
from throughline.tuning.needs import Need
from throughline.tuning.space import Space

FEWEST_STEPS = 20  # of an epoch
SURVEY = "throughline.tuning.survey:survey"


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The candidates, what each needs by its name, what a training holds besides what a contestant
    does [bytes], of what it keeps the share that a contestant does, and how long an epoch is.
    """

    space: Space
    needs: Mapping[str, Need]
    besides_steps_bytes: int
    sampled_share: float
    examples: int
    steps_per_epoch: int


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is searched: parameters of one process, the project, the budgets, and as numbers.
    `shared`: the training's batches are shared by processes, or cut to a multiple.
    """

    params: Params
    root: Path
    budgets: Budgets
    limits: Limits
    shared: bool = False

    @property
    def epochs(self) -> int:
        """Of the training that is to be fast."""
        given = self.budgets.epochs
        return given if isinstance(given, int) else self.params.train.epochs


def survey_data(question: Question, folder: Path) -> Survey:
    """What there is to race, and what each candidate needs, found by a process whose log is in
    `folder`.

    Raises:
      Untunable: the data cannot be read or trained on, or its epochs are too short.
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
            f"the prepared data cannot be surveyed, or a few steps trained: {lost}"
        ) from lost
    if (steps := surveyed.steps_per_epoch) < FEWEST_STEPS:
        raise Untunable(
            f"an epoch has {steps} step{'s' * (steps > 1)}, and at least {FEWEST_STEPS} are"
            " needed to see how fast they are; use more data, or a smaller batch_size"
        )
    return surveyed
