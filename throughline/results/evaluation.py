"""What train says about single held-out examples: which classes are taken for which, and the
examples with the highest loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from throughline.results.base import ResultFile

WORST_PICTURE = "worst.png"


@dataclass(frozen=True, kw_only=True)
class Confusion:
    """How often examples of each class (rows) were taken for each class (columns).

    Of many classes only the most confused are shown, in the order of the outputs; `left_out` are
    the others.
    """

    classes: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    left_out: int


@dataclass(frozen=True, kw_only=True)
class WorstExample:
    """An example with a high loss. `truth` and `predicted` are classes, or numbers as text;
    `probability` is that of the predicted class, None of numbers; `value` is the example in words,
    empty for an image, which is a part of the picture.
    """

    id: str
    truth: str
    predicted: str
    probability: float | None
    loss: float
    value: str


@dataclass(frozen=True, kw_only=True)
class Evaluation(ResultFile):
    """The examples of a held-out split, one by one. `confusion` is None where classes are not
    predicted. `picture`: whether `WORST_PICTURE` next to this file shows the worst examples, one
    below the other. `mae_by_target` is the mean absolute error of each column that is predicted,
    where a series has several.
    """

    FILE: ClassVar[str] = "evaluation.json"
    FOLDER: ClassVar[str] = "evaluation"
    STAGE: ClassVar[str] = "train@{name}"

    split: str
    examples: int
    confusion: Confusion | None
    worst: tuple[WorstExample, ...]
    picture: bool
    mae_by_target: Mapping[str, float] = field(default_factory=dict)

    @property
    def metrics(self) -> dict[str, float]:
        """The error of each target under its MLflow name."""
        return {f"{self.split}/mae/{name}": error for name, error in self.mae_by_target.items()}

    @classmethod
    def picture_path(cls, folder: Path) -> Path:
        """The picture below a configuration's folder."""
        return folder / cls.FOLDER / WORST_PICTURE
