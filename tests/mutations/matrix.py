"""Plant the faults of tests/mutations/*.yaml and record which test catches which fault.

`python -m tests.mutations.matrix` plants one fault after another in a copy of the checkout, and
runs the tests that are expected to catch it, in a fork of a process that has already imported the
libraries.
"""

import argparse
import importlib
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
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
FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a fault: its state, and the ids of the tests that caught it."""

    name: str
    state: str  # "caught", "survived" or "does not apply"
    caught_by: tuple[str, ...] = ()
    seconds: float = 0.0


def copy_checkout(folder: Path) -> Path:
    """This process's copy of the files that git does not ignore, as they are now; made once."""
    copy = folder / str(os.getpid())
    if not copy.exists():
        command = ["git", "ls-files", "-z", "-co", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        for name in listed.stdout.split("\0"):
            if (ROOT / name).is_file():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, copy / name)
    return copy


def write_source(path: Path, text: str) -> None:
    """Write a module and remove its compiled form, which Python would use for another text of the
    same size and second.
    """
    path.write_text(text)
    Path(cache_from_source(str(path))).unlink(missing_ok=True)


def run_tests(copy: Path, tests: Sequence[str], *, limit_s: float) -> tuple[int, list[str]]:
    """Run tests in a copy, in a fork and its process group; returns pytest's exit code, -1 after
    the time limit, and the ids of the tests that have failed.
    """
    failures = copy / "failures.txt"
    failures.write_text("")
    process = FORK.Process(target=_be_pytest, args=(copy, tests, failures))
    process.start()
    process.join(limit_s)
    code = -1 if process.exitcode is None else process.exitcode
    with suppress(ProcessLookupError):  # what hangs, and what tests have left running
        os.killpg(process.pid or 0, signal.SIGKILL)
    process.join()
    return code, read_failures(failures)


def _be_pytest(copy: Path, tests: Sequence[str], failures: Path) -> None:
    code = 3
    try:
        os.setsid()
        with (copy / "output.txt").open("wb") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        os.chdir(copy)
        for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
            del sys.modules[name]
        # What is installed of whowaits is the checkout's own, not the copy's.
        added = [str(copy), str(copy / "whowaits" / "src")]
        sys.path[:] = added + [path for path in sys.path if path not in ("", str(ROOT))]
        os.environ["PYTHONPATH"] = added[1]
        os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        marks = [] if all("::" in test for test in tests) else ["-m", "not slow and not core"]
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


def find_broken(copy: Path, faults: Sequence[Fault]) -> set[str]:
    """Ids of the tests that fail without any fault: of whole files, and of single tests."""
    tests = sorted({test for fault in faults for test in fault.tests})
    files, single = ([test for test in tests if ("::" in test) is one] for one in (False, True))
    broken: set[str] = set()
    for some in filter(None, (files, single)):
        code, failed = run_tests(copy, some, limit_s=3600)
        if code not in (0, 1):
            sys.exit(f"The tests cannot be run:\n{(copy / 'output.txt').read_text()[-4000:]}")
        broken |= set(failed)
    return broken


def try_fault(folder: Path, broken: set[str], first_only: bool, fault: Fault) -> Outcome:
    """Plant a fault in this process's copy, run its tests but those that are `broken`, or up to
    the first that fails, and take it out again.
    """
    copy, began = copy_checkout(folder), time.monotonic()
    sources = read_sources(copy)
    path = find_file(sources, fault)
    if path is None:
        return Outcome(name=fault.name, state="does not apply")
    options = ["--exitfirst", *(f"--deselect={test}" for test in broken)] if first_only else []
    write_source(path, plant(sources[path], fault))
    code, failed = run_tests(copy, [*fault.tests, *options], limit_s=LIMIT_S)
    write_source(path, sources[path])
    caught_by = [test for test in failed if test not in broken]
    if code < 0 and not failed:
        caught_by = ["hangs or crashes"]
    # 2 to 5: pytest could not run the tests, which says nothing about them.
    survived = "survived" if failed or code in (0, 1) else "does not apply"
    return Outcome(
        name=fault.name,
        state="caught" if caught_by else survived,
        caught_by=tuple(caught_by),
        seconds=time.monotonic() - began,
    )


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutations.matrix", description=main.__doc__
    )
    texts = {
        "only": ("TEXT", "faults with this text in their name, snippet or tests"),
        "faults": ("NAME", "those of one list, such as library.yaml"),
        "json": ("FILE", "write the outcomes there: which test catches what"),
        "against": ("FILE", "fail if a fault survives that was caught in this earlier file"),
    }
    numbers = {
        "jobs": (2, "faults tried at once, each in a copy of its own"),
        "generate": (0, "instead, so many generated ones, in files whose path begins with --only"),
        "seed": (0, "which faults are generated"),
    }
    for name, (shown, said) in texts.items():
        parser.add_argument(f"--{name}", default="", metavar=shown, help=said)
    for name, (usual, said) in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=usual, metavar="N", help=said)
    return parser.parse_args()


def main() -> None:
    """Plant the faults one after another and say which of them the tests catch."""
    options = _parse_options()
    if options.generate:
        which = {"count": options.generate, "seed": options.seed, "within": options.only}
        faults = generate_faults(ROOT, read_sources(ROOT), **which)
    else:
        faults = [
            fault
            for fault in read_faults(options.faults)
            if options.only in f"{fault.name} {fault.before} {fault.tests}"
        ]
    before = json.loads(Path(options.against).read_text()) if options.against else []
    for library in LIBRARIES:
        importlib.import_module(library)
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(
        prefix="throughline-faults-", ignore_cleanup_errors=True
    ) as name:
        folder = Path(name)
        broken = find_broken(copy_checkout(folder), faults)
        for test in sorted(broken):
            echo(f"fails without any fault, not counted: {test}")
        work = partial(try_fault, folder, broken, bool(options.generate))
        with ProcessPoolExecutor(options.jobs, mp_context=FORK) as pool:
            for one in pool.map(work, faults):
                outcomes.append(one)
                tests = f"{len(one.caught_by):>4} tests"
                echo(f"{one.state:<15}{one.seconds:>6.1f} s{tests}  {one.name}")
                if options.json:
                    text = json.dumps([*map(asdict, outcomes)], indent=1)
                    Path(options.json).write_text(f"{text}\n")
    caught_before = {each["name"] for each in before if each["state"] == "caught"}
    sys.exit(_summarize(outcomes, caught_before, least=0 if options.generate else LEAST_CAUGHT))


def _summarize(outcomes: Sequence[Outcome], caught_before: set[str], *, least: float) -> bool:
    """Print what became of the faults; returns whether that is a failure."""
    by_state = {
        state: [outcome.name for outcome in outcomes if outcome.state == state]
        for state in ("caught", "survived", "does not apply")
    }
    counts = ", ".join(f"{len(names)} {state}" for state, names in by_state.items())
    echo(f"\n{len(outcomes)} faults: {counts}")
    caught = by_state.pop("caught")
    for state, names in by_state.items():
        for name in names:
            echo(f"  {state}: {name}")
    lost = sorted(caught_before & {name for names in by_state.values() for name in names})
    for name in lost:
        echo(f"  was caught before: {name}")
    return bool(lost or by_state["does not apply"]) or len(caught) < least * len(outcomes)


if __name__ == "__main__":
    main()
