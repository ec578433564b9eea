"""Plant the faults of tests/mutations/faults.yaml and see which of them the tests catch.

`python -m tests.mutations.matrix` copies the tracked files to a temporary folder, plants one fault
after another there, and runs the tests that are expected to catch it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import cache_from_source
from operator import add
from pathlib import Path
from queue import SimpleQueue

from tests.mutations.faults import FAULTS, Fault
from throughline.shared.progress import echo, in_threads

ROOT = Path(__file__).resolve().parents[2]
LEAST_CAUGHT = 0.9  # share of the faults
LIMIT_S = 300.0  # of the tests of one fault; beyond it the program hangs, which counts as caught
QUICK = "not integration and not slow"


def read_sources(root: Path) -> dict[Path, str]:
    """The text of every file in which faults are planted."""
    return {
        path: path.read_text()
        for folder in ("throughline", "tasks", "flows", "whowaits")
        for path in sorted((root / folder).rglob("*.py"))
    }


def pattern(snippet: str) -> re.Pattern:
    """What a snippet looks like wherever its lines are broken, with a comma after the last item."""
    first, *others = re.findall(r"\w+|[^\w\s]", snippet)
    gaps = (r",?\s*" if token in ")]}" else r"\s*" for token in others)
    return re.compile(re.escape(first) + "".join(map(add, gaps, map(re.escape, others))))


def find_file(sources: Mapping[Path, str], fault: Fault) -> Path | None:
    """The file in which a fault can be planted; None unless its snippet occurs once in all."""
    snippet = pattern(fault.before)
    files = [path for path, text in sources.items() for _ in snippet.finditer(text)]
    return files[0] if len(files) == 1 else None


def plant(text: str, fault: Fault) -> str:
    """The source with the fault in it."""
    return pattern(fault.before).sub(lambda _: fault.after, text)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a fault: caught, survived, or does not apply; and how long its tests took."""

    name: str
    state: str
    seconds: float = 0.0


def copy_tree(to: Path) -> Path:
    """Copy the tracked files of this checkout, as they are now."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
    return to


def run_tests(
    root: Path, tests: Sequence[str], *, limit_s: float | None = None
) -> tuple[int | None, str]:
    """Run tests in a copy; returns pytest's exit code, None where they took too long, and what they
    printed.
    """
    single = tests and all("::" in test for test in tests)
    marks = [] if single else ["-m", "not slow" if tests else QUICK]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "--hypothesis-seed=0",
        *marks,
        *tests,
    ]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    # What is installed of whowaits is the checkout's own, not the copy's.
    copied = str(root / "whowaits" / "src")
    environment = {**os.environ, "PATH": path, "PYTHONPATH": copied}
    # A process group of its own, so that what hangs is ended with all it has started.
    process = subprocess.Popen(
        command,
        cwd=root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return None, process.communicate()[0]
    return process.returncode, printed


def write_source(path: Path, text: str) -> None:
    """Write a module without leaving its compiled form, which Python would take for that of a text
    of the same size and second.
    """
    path.write_text(text)
    Path(cache_from_source(str(path))).unlink(missing_ok=True)


def try_fault(root: Path, fault: Fault) -> Outcome:
    """Plant a fault in a copy, run its tests, and take it out again."""
    sources = read_sources(root)
    path = find_file(sources, fault)
    if path is None:
        return Outcome(name=fault.name, state="does not apply")
    text = sources[path]
    write_source(path, plant(text, fault))
    began = time.monotonic()
    try:
        code, _ = run_tests(root, fault.tests, limit_s=LIMIT_S)
    finally:
        write_source(path, text)
    # 1: a test failed. Anything else but 0 (tests that cannot be collected, a usage error) says
    # nothing about the tests.
    state = {0: "survived", 1: "caught", None: "caught"}.get(code, "does not apply")
    return Outcome(name=fault.name, state=state, seconds=time.monotonic() - began)


def try_all(faults: Sequence[Fault], copies: Sequence[Path]) -> list[Outcome]:
    """Try all faults, as many at once as there are copies, and print each as it is known."""
    free: SimpleQueue[Path] = SimpleQueue()
    for copy in copies:
        free.put(copy)

    def attempt(fault: Fault) -> Outcome:
        root = free.get()
        try:
            outcome = try_fault(root, fault)
        finally:
            free.put(root)
        echo(f"{outcome.state:<15}{outcome.seconds:>6.1f} s  {outcome.name}")
        return outcome

    return list(in_threads(attempt, faults, workers=len(copies)))


def check_without_faults(root: Path, faults: Sequence[Fault]) -> None:
    """Exit where a test that is to catch a fault fails without one: those of files together, then
    the single ones.
    """
    sets = {fault.tests for fault in faults}
    files, single = (
        sorted({test for tests in sets for test in tests if ("::" in test) is one})
        for one in (False, True)
    )
    for tests in ([()] if () in sets else []) + [some for some in (files, single) if some]:
        code, printed = run_tests(root, tests)
        if code != 0:
            sys.exit(f"Without any fault there is a failure:\n{printed}")


def main() -> None:
    """Plant the faults one after another and say which of them the tests catch."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutations.matrix", description=main.__doc__
    )
    parser.add_argument(
        "--only",
        default="",
        metavar="TEXT",
        help="faults with this text in their name, snippet or tests",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcomes there, too")
    parser.add_argument(
        "--jobs", type=int, default=1, help="faults tried at once, each in a copy of its own"
    )
    options = parser.parse_args()
    faults = [
        fault for fault in FAULTS if options.only in f"{fault.name} {fault.before} {fault.tests}"
    ]
    with tempfile.TemporaryDirectory(prefix="throughline-faults-") as folder:
        copies = [copy_tree(Path(folder) / str(number)) for number in range(options.jobs)]
        check_without_faults(copies[0], faults)
        outcomes = try_all(faults, copies)
    counts = Counter(outcome.state for outcome in outcomes)
    echo(
        f"\n{len(outcomes)} faults: "
        + ", ".join(
            f"{counts[state]} {state}" for state in ("caught", "survived", "does not apply")
        )
    )
    for outcome in outcomes:
        if outcome.state != "caught":
            echo(f"  {outcome.state}: {outcome.name}")
    if options.json:
        options.json.write_text(
            json.dumps([asdict(outcome) for outcome in outcomes], indent=2) + "\n"
        )
    sys.exit(bool(counts["does not apply"] or counts["caught"] < LEAST_CAUGHT * len(outcomes)))


if __name__ == "__main__":
    main()
