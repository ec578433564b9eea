"""Plant the faults of tests/mutations/faults.yaml and record which test catches which fault.

`python -m tests.mutations.matrix` copies the checkout to a temporary folder, plants one fault
after another there, and runs all tests that are expected to catch it, in a fork of a process that
has already imported the libraries.
"""

import argparse
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from tests.mutations.faults import Fault, find_file, plant, read_faults, read_sources
from tests.mutations.generated import generate_faults
from tests.support.failures import read_failures
from throughline.shared.progress import echo

ROOT = Path(__file__).resolve().parents[2]
LEAST_CAUGHT = 0.9  # share of the faults
LIMIT_S = 300.0  # for the tests of one fault; a program that takes longer hangs: that is caught
LIBRARIES = ("keras", "mlflow.tensorflow", "pandas", "pyarrow.parquet", "tensorflow")
OURS = ("throughline", "tasks", "flows", "whowaits", "infra", "tests", "benchmarks")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a fault: its state, and the ids of the tests that caught it."""

    name: str
    state: str  # "caught", "survived" or "does not apply"
    caught_by: tuple[str, ...] = ()
    seconds: float = 0.0


def copy_tree(to: Path) -> Path:
    """Copy the files of this checkout that git does not ignore, as they are now."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
    return to


def write_source(path: Path, text: str) -> None:
    """Write a module and remove its compiled form, which Python would use for another text of the
    same size and second.
    """
    path.write_text(text)
    Path(cache_from_source(str(path))).unlink(missing_ok=True)


class Run:
    """One run of tests in a copy of the checkout, in a forked process and its process group."""

    def __init__(self, root: Path, tests: Sequence[str], *, limit_s: float) -> None:
        self._failures = root / "failures.txt"
        self._failures.write_text("")
        self._began, self._limit_s = time.monotonic(), limit_s
        self.log = root / "output.txt"
        self._pid = os.fork()
        if self._pid == 0:
            _run_tests(root, tests, self._failures, self.log)

    @property
    def seconds(self) -> float:
        """Time since the start."""
        return time.monotonic() - self._began

    def poll(self) -> int | None:
        """The exit code, -1 after the time limit or a crash; None while the tests run."""
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if pid == 0 and self.seconds < self._limit_s:
            return None
        with suppress(ProcessLookupError):  # what hangs, and what tests have left running
            os.killpg(self._pid, signal.SIGKILL)
        if pid == 0:
            os.waitpid(self._pid, 0)
            return -1
        return os.WEXITSTATUS(status) if os.WIFEXITED(status) else -1

    def failures(self) -> list[str]:
        """Ids of the tests that have failed so far."""
        return read_failures(self._failures)


def _run_tests(root: Path, tests: Sequence[str], failures: Path, log: Path) -> None:
    """Be pytest in a copy of the checkout; never returns."""
    code = 3
    try:
        os.setsid()
        with log.open("wb") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        os.chdir(root)
        for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
            del sys.modules[name]
        # What is installed of whowaits is the checkout's own, not the copy's.
        added = [str(root), str(root / "whowaits" / "src")]
        sys.path[:] = added + [path for path in sys.path if path not in ("", str(ROOT))]
        os.environ["PYTHONPATH"] = added[1]
        os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        single = all("::" in test for test in tests)
        marks = [] if single else ["-m", "not slow and not core"]
        options = ["-p", "no:cacheprovider", "--hypothesis-seed=0", "--failed-to", str(failures)]
        # The libraries have imported some of pytest's plugins.
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
        code = pytest.main([*options, *marks, *tests])
    except BaseException:  # noqa: BLE001 - a fork must not go on as its parent
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(code))


def run_all(
    faults: Sequence[Fault], copies: Sequence[Path], more: Sequence[str] = ()
) -> Iterator[Outcome]:
    """Plant each fault, run its tests with `more` options, take it out again; as many at once as
    there are copies.
    """
    waiting, free = list(reversed(faults)), list(copies)
    running: dict[Path, tuple[Fault, Path, str, Run]] = {}
    while waiting or running:
        while waiting and free:
            fault = waiting.pop()
            root = free.pop()
            sources = read_sources(root)
            path = find_file(sources, fault)
            if path is None:
                free.append(root)
                yield Outcome(name=fault.name, state="does not apply")
                continue
            write_source(path, plant(sources[path], fault))
            running[root] = (
                fault,
                path,
                sources[path],
                Run(root, [*fault.tests, *more], limit_s=LIMIT_S),
            )
        for root, (fault, path, text, run) in list(running.items()):
            code = run.poll()
            if code is None:
                continue
            write_source(path, text)
            del running[root]
            free.append(root)
            failed = tuple(run.failures()) or (("hangs or crashes",) if code < 0 else ())
            # 2 to 5: pytest could not run the tests, which says nothing about them.
            applies = failed or code in (0, 1)
            state = "caught" if failed else "survived" if applies else "does not apply"
            yield Outcome(name=fault.name, state=state, caught_by=failed, seconds=run.seconds)
        time.sleep(0.02)


def fail_without_faults(root: Path, faults: Sequence[Fault]) -> set[str]:
    """Ids of the tests that fail without any fault: files together, then single tests."""
    tests = {test for fault in faults for test in fault.tests}
    failed: set[str] = set()
    for some in (
        sorted(test for test in tests if "::" not in test),
        sorted(test for test in tests if "::" in test),
    ):
        if some:
            run = Run(root, some, limit_s=3600)
            while (code := run.poll()) is None:
                time.sleep(0.1)
            if code not in (0, 1):
                sys.exit(f"The tests cannot be run:\n{run.log.read_text()[-4000:]}")
            failed |= set(run.failures())
    return failed


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
    parser.add_argument(
        "--faults", default="", metavar="NAME", help="those of one list, such as library.yaml"
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write the outcomes there: which test catches what",
    )
    parser.add_argument(
        "--against",
        type=Path,
        metavar="FILE",
        help="fail if a fault survives that was caught in this earlier file",
    )
    parser.add_argument(
        "--jobs", type=int, default=2, help="faults tried at once, each in a copy of its own"
    )
    parser.add_argument(
        "--generate",
        type=int,
        default=0,
        metavar="N",
        help="instead of the lists, N generated faults, in files whose path begins with --only",
    )
    parser.add_argument("--seed", type=int, default=0, help="which faults are generated")
    options = parser.parse_args()
    if options.generate:
        count, seed, within = options.generate, options.seed, options.only
        sources = read_sources(ROOT)
        faults = generate_faults(ROOT, sources, count=count, seed=seed, within=within)
    else:
        faults = [
            fault
            for fault in read_faults(options.faults)
            if options.only in f"{fault.name} {fault.before} {fault.tests}"
        ]
    before = json.loads(options.against.read_text()) if options.against else []
    outcomes = []
    for library in LIBRARIES:
        importlib.import_module(library)
    with tempfile.TemporaryDirectory(
        prefix="throughline-faults-", ignore_cleanup_errors=True
    ) as folder:
        copies = [copy_tree(Path(folder) / str(number)) for number in range(options.jobs)]
        broken = fail_without_faults(copies[0], faults)
        for test in sorted(broken):
            echo(f"fails without any fault, not counted: {test}")
        one_is_enough = ["--exitfirst", *(f"--deselect={test}" for test in sorted(broken))]
        for outcome in run_all(faults, copies, one_is_enough if options.generate else ()):
            caught_by = tuple(test for test in outcome.caught_by if test not in broken)
            state = "survived" if outcome.caught_by and not caught_by else outcome.state
            outcomes.append(
                Outcome(
                    name=outcome.name, state=state, caught_by=caught_by, seconds=outcome.seconds
                )
            )
            echo(f"{state:<15}{outcome.seconds:>6.1f} s{len(caught_by):>4} tests  {outcome.name}")
            if options.json:
                options.json.write_text(json.dumps(list(map(asdict, outcomes)), indent=1) + "\n")
    sys.exit(_summarize(outcomes, before, least=0 if options.generate else LEAST_CAUGHT))


def _summarize(outcomes: Sequence[Outcome], before: Sequence[Mapping], *, least: float) -> bool:
    """Print what became of the faults; returns whether that is a failure."""
    by_state = {
        state: [outcome.name for outcome in outcomes if outcome.state == state]
        for state in ("caught", "survived", "does not apply")
    }
    counts = ", ".join(f"{len(names)} {state}" for state, names in by_state.items())
    echo(f"\n{len(outcomes)} faults: {counts}")
    for state in ("survived", "does not apply"):
        for name in by_state[state]:
            echo(f"  {state}: {name}")
    caught = {each["name"] for each in before if each["state"] == "caught"}
    lost = sorted(caught & {*by_state["survived"], *by_state["does not apply"]})
    for name in lost:
        echo(f"  was caught before: {name}")
    enough = len(by_state["caught"]) >= least * len(outcomes)
    return bool(lost or by_state["does not apply"]) or not enough


if __name__ == "__main__":
    main()
