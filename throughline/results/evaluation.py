"""The result of train about single held-out examples: confused classes, and the worst examples."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from throughline.results.base import ResultFile

WORST_PICTURE = "worst.png"


@dataclass(frozen=True, kw_only=True)
class Confusion:
    """How often examples of each class (rows) were taken for each class (columns).

    Only the most confused classes, in the order of the outputs; `left_out` counts the others.
    """

    classes: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    left_out: int


@dataclass(frozen=True, kw_only=True)
class WorstExample:
    """An example with a high loss.

    Attributes:
      truth: A class, or numbers as text, as is `predicted`.
      probability: Of the predicted class; None for numbers.
      value: The example in words; "" for an image, which is in the picture.
    """

    id: str
    truth: str
    predicted: str
    probability: float | None
    loss: float
    value: str


@dataclass(frozen=True, kw_only=True)
class Evaluation(ResultFile):
    """The evaluation of a held-out split.

    Attributes:
      confusion: None if no classes are predicted.
      picture: Whether `WORST_PICTURE` next to this file shows the worst examples, one below the
          other.
      mae_by_target: The mean absolute error of each target, if there are several.
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
        """The error of each target under its name in MLflow."""
        return {f"{self.split}/mae/{name}": error for name, error in self.mae_by_target.items()}

    @classmethod
    def picture_path(cls, folder: Path) -> Path:
        return folder / cls.FOLDER / WORST_PICTURE
