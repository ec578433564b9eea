"""`whowaits compare BEFORE.json AFTER.json`: shows two reports side by side."""

import json
from pathlib import Path
from typing import Any

ROWS = (
    ("verdict", "verdict", ""),
    ("stall", "stall_pct", "%"),
    ("a step", "step_ms", "ms"),
    ("the model alone", "model_ms", "ms"),
    ("in `next`", "waited_pct", "%"),
    ("first batch of an epoch", "gap_ms", "ms"),
    ("cores of other programs", "others_pct", "%"),
)
DRIFT = 1.1  # factor by which two runs of a script on the same machine may differ


class NotAReport(ValueError):
    """A file that is not a report of this command."""


def compare(before: Path, after: Path) -> list[str]:
    """Return the figures of two reports side by side, and a conclusion from their difference.

    Raises:
      NotAReport: a file cannot be read, or holds something else.
    """
    first, second = _read(before), _read(after)
    lines = [f"{'':<26}{before.name:>22}{after.name:>22}"]
    lines += [
        f"{title:<26}{_cell(first, key, unit)}{_cell(second, key, unit)}"
        for title, key, unit in ROWS
    ]
    return [*lines, _conclude(first, second)]


def _read(path: Path) -> dict[str, Any]:
    try:
        report = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise NotAReport(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(report, dict) or not {"verdict", "stall_pct", "step_ms"} <= report.keys():
        raise NotAReport(f"{path} is not a report; write one by `whowaits --json train.py > FILE`")
    return report


def _cell(report: dict[str, Any], key: str, unit: str) -> str:
    value = report.get(key)
    if value is None:
        return f"{'not known':>22}"
    return f"{value if isinstance(value, str) else f'{value:,.2f} {unit}':>22}"


def _conclude(first: dict[str, Any], second: dict[str, Any]) -> str:
    if first.get("examples") != second.get("examples"):
        return "their batches differ in size, so their steps cannot be compared"
    before, after = first.get("model_ms"), second.get("model_ms")
    if not before or not after:
        return "the model was not timed alone in one or both, so the machine may differ unnoticed"
    drift = after / before
    if not 1 / DRIFT <= drift <= DRIFT:
        return (
            f"the model alone takes {drift:.2f} times as long in the second, so not only the input"
            " has changed, but the model or the machine"
        )
    factor = first["step_ms"] / second["step_ms"]
    if 1 / DRIFT <= factor <= DRIFT:
        return f"their steps differ no more than in two runs of the same script ({factor:.2f} ×)"
    return f"the second trains {factor:.2f} times as fast; its model alone is as fast as before"
