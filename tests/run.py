"""Run lanes of tests: `python -m tests.run test test-core [-- PYTEST OPTIONS]`.

A lane is a set of marks (docs/testing.md) whose tests run in several processes. What fails is run
once more at the end, alone, in one process: a test that fails again fails the run; one that passes
depends on what runs next to it, and is listed as flaky.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from throughline.shared.progress import echo

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / ".throughline" / "tests"  # durations of each lane, and the flaky tests
LAST_FAILED = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"
MOST_AGAIN = 20  # failures; more are a fault, and not run again
RAN, FAILED = 0, 1  # pytest's exit codes where all tests of a lane have run


@dataclass(frozen=True, kw_only=True)
class Lane:
    """Which tests run together, in how many processes."""

    marks: str
    processes: int = 3  # on 2 cores; one of them mostly waits for a server


LANES = {
    # A third process would cost more in imports than it saves.
    "quick": Lane(marks="not integration and not core and not slow", processes=2),
    "test": Lane(marks="not core and not slow"),
    "test-core": Lane(marks="core"),
    "nightly": Lane(marks="slow"),
    "test-all": Lane(marks=""),
}


def run_lane(name: str, options: Sequence[str]) -> int:
    """Run the tests of a lane and keep their durations; returns pytest's exit code."""
    lane = LANES[name]
    command = [
        *(sys.executable, "-m", "pytest", "-m", lane.marks, "--durations=10"),
        *("--numprocesses", str(lane.processes), "--dist", "loadgroup", "--no-loadscope-reorder"),
        f"--junitxml={RESULTS / name}.xml",
        *options,
    ]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def run_alone(tests: Sequence[str]) -> int:
    """Run these tests in one process; returns pytest's exit code."""
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", *tests]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def read_failed() -> list[str]:
    """Ids of the tests that failed when they last ran."""
    return sorted(json.loads(LAST_FAILED.read_text())) if LAST_FAILED.exists() else []


def main(arguments: Sequence[str]) -> int:
    """Run the lanes, then what failed, alone; returns the exit code."""
    split = arguments.index("--") if "--" in arguments else len(arguments)
    names, options = arguments[:split], arguments[split + 1 :]
    if unknown := set(names) - set(LANES):
        echo(f"there is no lane {', '.join(sorted(unknown))}: there are {', '.join(LANES)}")
        return 2
    RESULTS.mkdir(parents=True, exist_ok=True)
    LAST_FAILED.unlink(missing_ok=True)
    codes = {name: run_lane(name, options) for name in names}
    if incomplete := [name for name, code in codes.items() if code not in (RAN, FAILED)]:
        echo(f"failed: pytest has not run all tests of {', '.join(incomplete)}")
        return 1
    failed = read_failed()
    if FAILED in codes.values() and not 0 < len(failed) <= MOST_AGAIN:
        echo(f"failed: {len(failed)} tests, too many to run them again alone")
        return 1
    if failed:
        echo(f"\nonce more, alone: {len(failed)} tests")
        run_alone(failed)
    again = read_failed()
    flaky = [f"flaky: {test}" for test in failed if test not in again]
    (RESULTS / "flaky.txt").write_text("".join(f"{line}\n" for line in flaky))
    for line in [*flaky, *(f"failed: {test}" for test in again)]:
        echo(line)
    return int(bool(again))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
