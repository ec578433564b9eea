"""The question that a search answers, and the survey of the data that it begins with.

Imports no TensorFlow.
"""

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

FEWEST_STEPS = 20  # per epoch
SURVEY = "throughline.tuning.survey:survey"


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The result of a survey.

    Attributes:
      needs: What each candidate needs, by name.
      besides_steps_bytes: Memory that a training needs beyond its contestant's steps.
      sampled_share: The share of the kept examples that a contestant holds.
    """

    space: Space
    needs: Mapping[str, Need]
    besides_steps_bytes: int
    sampled_share: float
    examples: int
    steps_per_epoch: int


@dataclass(frozen=True, kw_only=True)
class Question:
    """The question of a search. `shared`: processes share batches, or cut them to a multiple."""

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
            f"the prepared data cannot be surveyed, or a few steps trained: {lost}"
        ) from lost
    if (steps := surveyed.steps_per_epoch) < FEWEST_STEPS:
        raise Untunable(
            f"an epoch has {steps} step{'s' * (steps > 1)}, and at least {FEWEST_STEPS} are"
            " needed to see how fast they are; use more data, or a smaller batch_size"
        )
    return surveyed
