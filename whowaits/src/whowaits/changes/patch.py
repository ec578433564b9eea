"""`whowaits --patch train.py`: prints the best change as a patch, once a changed copy that ran in
alternation with the script has proven it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from whowaits.report import Report

from .advice import Edit, Tried, rank
from .edits import CannotBeWritten, diff, edit_source
from .proof import NoPatch, prove

EXIT_NO_PATCH, EXIT_INTERRUPTED = 5, 130


def print_patch(command: Sequence[str], asked: dict[str, Any]) -> int:
    """Print a patch to standard output, all else to standard error; return the exit code.

    `command` starts a script, given its options as JSON after the first two words.
    """
    try:
        return _print_patch(command, asked)
    except NoPatch as reason:
        _say(f"no patch: {reason}")
        return EXIT_NO_PATCH
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _print_patch(command: Sequence[str], asked: dict[str, Any]) -> int:
    asked = {**asked, "as_json": True}
    measured = subprocess.run(
        [*command[:2], json.dumps(asked), *command[2:]], stdout=subprocess.PIPE, check=False
    )
    report = read_report(measured.stdout)
    if report is not None:
        print("\n".join(report.lines), file=sys.stderr, flush=True)  # noqa: T201
    if report is None or measured.returncode:
        return measured.returncode or EXIT_NO_PATCH
    source = Path(report.script).read_bytes()  # for a module, the report names its file
    change, copy = _choose(report, source)
    _say(f"now the script and a changed copy train in turn: {change.where}: {change.text}")
    step_s = (report.step_ms or 0.0) / 1e3
    proof = prove(command, asked, copy=copy, change=change, step_s=step_s)
    _say(
        f"{proof.gain:.2f} × as fast ({proof.low:.2f} to {proof.high:.2f}, {proof.pairs} pairs);"
        f" {proof.data}"
    )
    sys.stdout.buffer.write(diff(source, copy, report.script).encode())
    return 0


def _choose(report: Report, source: bytes) -> tuple[Tried, bytes]:
    """Return the best change that can be written, and the source with it."""
    refused = []
    for change in rank(report.changes):
        try:
            return change, _write(change, source, report.script)
        except CannotBeWritten as reason:
            refused.append(f"{change.text}: {reason}")
    if refused:
        raise NoPatch("; ".join(refused))
    tried = "no change that was tried can be advised"
    raise NoPatch(tried if report.changes else "no change of the input was tried")


def _write(change: Tried, source: bytes, script: str) -> bytes:
    if change.alters_another:
        raise CannotBeWritten(f"{change.shared}, which would change, too")
    if not change.edits:
        raise CannotBeWritten("it is more than an edit of one call, or the call was not seen")
    return edit_source(source, script, change.edits)


def read_report(printed: bytes) -> Report | None:
    """Return the printed report, or None if the script ended without one."""
    try:
        found = json.loads(printed)
    except ValueError:
        return None
    for each in found["changes"]:
        each["edits"] = tuple(Edit(**edit) for edit in each["edits"])
    found["changes"] = tuple(Tried(**each) for each in found["changes"])
    return Report(**found)


def _say(text: str) -> None:
    print(f"whowaits: {text}", file=sys.stderr, flush=True)  # noqa: T201
