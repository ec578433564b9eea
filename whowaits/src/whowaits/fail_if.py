"""`--fail-if 'stall > 20'`: a condition on what was measured, for CI."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass

from .report import Report
from .timing.verdict import MARGIN_PCT, UNDECIDED

COMPARISONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
METRICS = {  # names on the command line, and fields of the report
    "stall": "stall_pct",
    "waited": "waited_pct",
    "step_ms": "step_ms",
    "model_ms": "model_ms",
    "gap_ms": "gap_ms",
}
MET, NOT_MET, NOT_DECIDED = 3, 0, 4  # exit codes
_FORM = re.compile(r"\s*(\w+)\s*(<=|>=|<|>)\s*([\d.]+)\s*%?\s*")


class InvalidCondition(ValueError):
    """A condition that cannot be understood."""


@dataclass(frozen=True)
class Condition:
    metric: str
    compared_by: str
    limit: float

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Parse a condition; raise InvalidCondition unless it is METRIC OPERATOR NUMBER."""
        match = _FORM.fullmatch(text)
        if not match or match[1] not in METRICS:
            raise InvalidCondition(
                f"--fail-if: {text!r} is not METRIC OPERATOR NUMBER, such as 'stall > 20';"
                f" metrics are {', '.join(METRICS)}"
            )
        try:
            return cls(match[1], match[2], float(match[3]))
        except ValueError:
            raise InvalidCondition(f"--fail-if: {match[3]} is not a number") from None

    def exit_code(self, report: Report) -> int:
        """Return 3 if the condition is met, 0 if not, 4 if undecided or not measured."""
        value = getattr(report, METRICS[self.metric])
        if value is None:
            return NOT_DECIDED
        if self.metric == "stall":
            if report.verdict == UNDECIDED:
                return NOT_DECIDED
            low, high = report.stall_low_pct, report.stall_high_pct
            if low is None or (high is None and low < self.limit):
                return NOT_DECIDED
            if high is None:  # only a lower bound is known
                return MET if self.compared_by.startswith(">") else NOT_MET
            if low < self.limit - MARGIN_PCT and high > self.limit + MARGIN_PCT:
                return NOT_DECIDED
        return MET if COMPARISONS[self.compared_by](value, self.limit) else NOT_MET
