"""Run lanes of tests: `python -m tests.run test test-core [-- PYTEST OPTIONS]`.

A lane is a set of marks (docs/testing.md) whose tests run in several processes. What fails is run
once more at the end, alone, in one process: a test that fails again fails the run; one that passes
depends on what runs next to it, and is listed as flaky.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.failures import DIED, read_failures
from throughline.shared.progress import echo

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / ".throughline" / "tests"  # durations of each lane, and the flaky tests
MOST_AGAIN = 20  # failures; more are a fault, and not run again
RAN, FAILED = 0, 1  # pytest's exit codes where all tests of a lane have run
LANES = {
    "quick": "not integration and not core and not slow",
    "test": "not core and not slow",
    "test-core": "core",
    "nightly": "slow",
    "test-all": "slow or not slow",
}
BUSY = {"quick", "test"}  # of the others, one process in three mostly waits for a server


def run_pytest(*options: str) -> tuple[int, list[str]]:
    """Return pytest's exit code, and the ids of the tests that failed."""
    failures = RESULTS / "failed.txt"
    failures.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", f"--failed-to={failures}", *options]
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    return code, read_failures(failures) if failures.exists() else []


def run_lanes(names: Sequence[str], *options: str) -> list[str]:
    """Run the tests of lanes together, since each process of the tests takes 20 s to import them,
    and keep their durations; returns the ids of the tests that failed.
    """
    marks = " or ".join(f"({LANES[name]})" for name in names)
    code, failed = run_pytest(
        *("-m", marks, "--durations=10", f"--junitxml={RESULTS / '+'.join(names)}.xml"),
        *("--numprocesses", "2" if BUSY.issuperset(names) else "3"),
        *("--dist", "loadgroup", "--no-loadscope-reorder", "--max-worker-restart", "0"),
        *options,
    )
    if code not in (RAN, FAILED) or (code == FAILED and not failed):
        failed.insert(0, f"{DIED}{' and '.join(names)}: pytest ended with {code}")
    return failed


def main(arguments: Sequence[str]) -> int:
    """Run the lanes, then what failed, alone; returns the exit code."""
    split = arguments.index("--") if "--" in arguments else len(arguments)
    names, options = arguments[:split], arguments[split + 1 :]
    unknown = set(names) - LANES.keys()
    if unknown or not names:
        echo(f"there is no lane {', '.join(sorted(unknown))}: there are {', '.join(LANES)}")
        return 2
    RESULTS.mkdir(parents=True, exist_ok=True)
    quick = ["--quick"] if "quick" in names else []
    failed = again = run_lanes(names, *quick, *options)
    if failed and len(failed) <= MOST_AGAIN and not any(test.startswith(DIED) for test in failed):
        echo(f"\nonce more, alone: {len(failed)} tests")
        code, again = run_pytest("-p", "no:xdist", *quick, *failed)
        again = again if code in (RAN, FAILED) else failed
    flaky = [f"flaky: {test}" for test in failed if test not in again]
    (RESULTS / "flaky.txt").write_text("".join(f"{line}\n" for line in flaky))
    for line in [*flaky, *(f"failed: {test}" for test in again)]:
        echo(line)
    return int(bool(again))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
