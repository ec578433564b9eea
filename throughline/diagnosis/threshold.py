"""The condition of `--fail-if`: a threshold on a measured metric, such as `stall_pct > 10`."""

import operator
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from throughline.shared.errors import InvalidParams, ThresholdExceeded, did_you_mean
from whowaits.timing.verdict import COMPUTE_BOUND, INPUT_BOUND, SLIGHTLY_BOUND, UNDECIDED

VERDICTS = (INPUT_BOUND, SLIGHTLY_BOUND, COMPUTE_BOUND, UNDECIDED)
_COMPARISONS = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_FORM = re.compile(r"\s*([\w.]+)\s*(<=|>=|==|!=|<|>)\s*(.+?)\s*")


@dataclass(frozen=True, kw_only=True)
class Threshold:
    metric: str
    operator: str
    limit: str

    def __str__(self) -> str:
        return f"{self.metric} {self.operator} {self.limit}"

    def check(self, metrics: Mapping[str, Any]) -> None:
        """Raise ThresholdExceeded if the condition is met, or the metric was not measured.

        InvalidParams is raised if only one of metric and limit is a number, or a verdict.
        """
        value = metrics[self.metric]
        if value is None or value != value:  # NaN compares as false with everything
            raise ThresholdExceeded(
                f"{self.metric} was not measured; `--fail-if '{self}'` fails, because the condition"
                " may hold; name a metric that was measured"
            )
        try:
            limit = self.limit if isinstance(value, str) else float(self.limit)
        except ValueError:
            raise _invalid(f"{self.metric} is a number, but {self.limit!r} is not") from None
        if self.metric == "verdict" and limit not in VERDICTS:
            raise _invalid(f"{limit} is not a verdict; {did_you_mean(self.limit, VERDICTS)}")
        if limit != limit:
            raise _invalid(f"{self.limit} is not a number")
        if _COMPARISONS[self.operator](value, limit):
            raise ThresholdExceeded(
                f"{self} (actual {f'{value:.4g}' if isinstance(value, float) else value})"
            )


def parse_threshold(text: str, known: Collection[str]) -> Threshold:
    """Parse `METRIC OPERATOR VALUE` for one of the `known` metrics, or raise InvalidParams."""
    match = _FORM.fullmatch(text)
    if not match:
        raise _invalid(f"{text!r} is not METRIC OPERATOR VALUE, such as 'stall_pct > 10'")
    metric, compared_by, limit = match.groups()
    if metric not in known:
        said = did_you_mean(metric, list(known))
        raise _invalid(f"{metric} is not a metric of the race; {said}")
    return Threshold(metric=metric, operator=compared_by, limit=limit.strip("'\""))


def _invalid(problem: str) -> InvalidParams:
    return InvalidParams([f"--fail-if: {problem}"])
