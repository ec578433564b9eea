"""Run lanes of tests: `python -m tests.run test test-core [-- PYTEST OPTIONS]`.

A lane is a set of marks (docs/testing.md) whose tests run in several processes. What fails is run
once more at the end, alone, in one process: a test that fails again fails the run; one that passes
depends on what runs next to it, and is listed as flaky.
"""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.failures import DIED, read_failures
from throughline.shared.progress import echo

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / ".throughline" / "tests"  # durations of each lane, and the flaky tests
MOST_AGAIN = 20  # failures; more are a fault, and not run again
RAN, FAILED = 0, 1  # pytest's exit codes where all tests of a lane have run


@dataclass(frozen=True, kw_only=True)
class Lane:
    """Which tests run together, in how many processes."""

    marks: str
    processes: int = 3  # on 2 cores; one of them mostly waits for a server
    options: tuple[str, ...] = ()


LANES = {
    "quick": Lane(
        marks="not integration and not core and not slow", processes=2, options=("--quick",)
    ),
    "test": Lane(marks="not core and not slow", processes=2),
    "test-core": Lane(marks="core"),
    "nightly": Lane(marks="slow"),
    "test-all": Lane(marks="slow or not slow"),
}


def run_lanes(names: Sequence[str], options: Sequence[str]) -> tuple[int, list[str]]:
    """Run the tests of lanes together, since each process of the tests takes 20 s to import them,
    and keep their durations; returns pytest's exit code, and the ids of the tests that failed.
    """
    marks = " or ".join(f"({LANES[name].marks})" for name in names)
    processes = max(LANES[name].processes for name in names)
    return _run_pytest(
        *("-m", marks, "--durations=10", f"--junitxml={RESULTS / '+'.join(names)}.xml"),
        *("--numprocesses", str(processes), "--dist", "loadgroup", "--no-loadscope-reorder"),
        *("--max-worker-restart", "0"),
        *options,
    )


def _run_pytest(*options: str) -> tuple[int, list[str]]:
    failures = RESULTS / "failed.txt"
    failures.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", f"--failed-to={failures}", *options]
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    return code, read_failures(failures) if failures.exists() else []


def main(arguments: Sequence[str]) -> int:
    """Run the lanes, then what failed, alone; returns the exit code."""
    split = arguments.index("--") if "--" in arguments else len(arguments)
    names, options = arguments[:split], arguments[split + 1 :]
    unknown = set(names) - set(LANES)
    if unknown or not names:
        echo(f"there is no lane {', '.join(sorted(unknown))}: there are {', '.join(LANES)}")
        return 2
    RESULTS.mkdir(parents=True, exist_ok=True)
    own_options = [option for name in names for option in LANES[name].options]
    code, failed = run_lanes(names, [*own_options, *options])
    if code not in (RAN, FAILED) or (code == FAILED and not failed):
        failed = [f"{DIED}{' and '.join(names)}: pytest ended with {code}", *failed]
    if len(failed) > MOST_AGAIN or any(test.startswith(DIED) for test in failed):
        for test in failed:
            echo(f"failed: {test}")
        return 1
    again: list[str] = []
    if failed:
        echo(f"\nonce more, alone: {len(failed)} tests")
        code, again = _run_pytest("-p", "no:xdist", *own_options, *failed)
        again = again if code in (RAN, FAILED) else failed
    flaky = [f"flaky: {test}" for test in failed if test not in again]
    (RESULTS / "flaky.txt").write_text("".join(f"{line}\n" for line in flaky))
    for line in [*flaky, *(f"failed: {test}" for test in again)]:
        echo(line)
    return int(bool(again))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
