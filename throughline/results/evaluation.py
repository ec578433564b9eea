"""The result of train about held-out examples: confused classes, and the error of each target."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from throughline.results.base import ResultFile


@dataclass(frozen=True, kw_only=True)
class Confusion:
    """The confusion matrix: counts by true class (rows) and predicted class (columns).

    Holds only the most confused classes, in the order of the outputs; `left_out` counts the others.
    """

    classes: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    left_out: int


@dataclass(frozen=True, kw_only=True)
class Evaluation(ResultFile, file="evaluation.json", folder="evaluation", stage="train@{name}"):
    """The evaluation of a held-out split: the `confusion` of classes, or the errors of targets."""

    split: str
    examples: int
    confusion: Confusion | None
    mae_by_target: Mapping[str, float] = field(default_factory=dict)

    @property
    def metrics(self) -> dict[str, float]:
        """The error of each target under its name in MLflow."""
        return {f"{self.split}/mae/{name}": error for name, error in self.mae_by_target.items()}
