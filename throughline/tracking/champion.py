"""Decides which model is a dataset's champion: the fastest configuration's, if it is good enough.

A model is judged by the final metric on held-out examples; differences below three standard errors
count as chance.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

from throughline.results.base import parse
from throughline.results.comparison import Row
from throughline.results.train import (
    SIGNIFICANT_STDERRS,
    beats_constant,
    count_trials,
    standard_error,
)

SCORE_TAG_PREFIX = "score."  # prefix of a champion version's tags


@dataclass(frozen=True, kw_only=True)
class Score:
    """A model's held-out metric, and a `constant` prediction's with its standard `error`."""

    metric: str
    value: float
    split: str
    examples: int
    constant: float
    error: float

    @property
    def higher_is_better(self) -> bool:
        return self.metric == "accuracy"

    @property
    def stderr(self) -> float:
        """The standard error of the value; for an error metric, that of the constant prediction."""
        trials = count_trials(self.constant, self.error) or self.examples
        return standard_error(self.value, trials) if self.higher_is_better else self.error

    def __str__(self) -> str:
        return f"{self.split} {self.metric} {self.value:.4f} on {self.examples:,} examples"


def read_score(row: Row) -> Score:
    held_out = row.held_out
    return Score(
        metric=row.metric,
        value=row.val_metric if row.test_metric is None else row.test_metric,
        split=held_out.split,
        examples=held_out.examples,
        constant=held_out.constant_metric,
        error=held_out.constant_stderr,
    )


def make_tags(score: Score) -> dict[str, str]:
    return {f"{SCORE_TAG_PREFIX}{name}": str(value) for name, value in asdict(score).items()}


def score_from(tags: Mapping[str, str]) -> Score | None:
    """Return the score in a model version's tags; None without one."""
    own = [key for key in tags if key.startswith(SCORE_TAG_PREFIX)]
    with suppress(TypeError):
        return parse(Score, {key.removeprefix(SCORE_TAG_PREFIX): tags[key] for key in own})
    return None


def find_rejection_reason(
    score: Score, others: Sequence[Score], earlier: Sequence[Score]
) -> str | None:
    """Return why a model may not become champion; None if it may.

    `others` are the scores of its comparison, `earlier` those of all champions so far, because
    champions could otherwise become worse in many small steps. Only those of the same metric, split
    and number of examples count: a test set from before the data grew may have been easier.
    """
    if not math.isfinite(score.value):
        return f"its {score.metric} is {score.value}"
    if not beats_constant(score.metric, score.value, constant=score.constant, stderr=score.error):
        return (
            f"{score} is not better than a constant prediction ({score.constant:.4f}) beyond chance"
        )
    finite = [other.value for other in others if math.isfinite(other.value)]
    median = statistics.median(finite or [score.value])
    if _improvement(score, median) < -SIGNIFICANT_STDERRS * math.sqrt(2) * score.stderr:
        return f"{score} is worse than the others' median ({median:.4f}), beyond chance"
    test_set = (score.metric, score.split, score.examples)
    comparable = [one for one in earlier if (one.metric, one.split, one.examples) == test_set]
    best = max([*comparable, score], key=lambda one: _improvement(one, 0.0))
    chance = math.hypot(score.stderr, best.stderr)
    if _improvement(score, best.value) < -SIGNIFICANT_STDERRS * chance:
        return f"{score} is worse than that of the best champion so far, beyond chance: {best}"
    return None


def _improvement(score: Score, value: float) -> float:
    return score.value - value if score.higher_is_better else value - score.value
