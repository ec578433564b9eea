"""Plant the faults of tests/mutations/*.yaml and record which test catches which fault.

`python -m tests.mutations.matrix` plants one fault after another in a copy of the checkout, and
runs the tests that are expected to catch it, in a fork of a process that has already imported the
libraries.
"""

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
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from importlib.util import cache_from_source
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer import Option

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


def try_fault(folder: Path, broken: set[str], first_only: bool, fault: Fault) -> dict[str, Any]:
    """Plant a fault in this process's copy, run its tests but those that are `broken`, or up to
    the first that fails, and take it out again; returns what became of it.
    """
    copy, began = copy_checkout(folder), time.monotonic()
    sources = read_sources(copy)
    path = find_file(sources, fault)
    code, failed = 2, []
    if path is not None:
        options = ["--exitfirst", *(f"--deselect={test}" for test in broken)] if first_only else []
        write_source(path, plant(sources[path], fault))
        code, failed = run_tests(copy, [*fault.tests, *options], limit_s=LIMIT_S)
        write_source(path, sources[path])
    caught_by = [test for test in failed if test not in broken]
    if code < 0 and not failed:
        caught_by = ["hangs or crashes"]
    # With 2 to 5 pytest could not run the tests, which says nothing about them.
    survived = "survived" if failed or code in (0, 1) else "does not apply"
    state, seconds = "caught" if caught_by else survived, time.monotonic() - began
    return {"name": fault.name, "state": state, "caught_by": caught_by, "seconds": seconds}


def main(
    only: Annotated[str, Option(help="faults with this text in their name, snippet or tests")] = "",
    faults: Annotated[str, Option(help="those of one list, such as library.yaml")] = "",
    jobs: Annotated[int, Option(help="faults tried at once, each in a copy of its own")] = 2,
    generate: Annotated[int, Option(help="so many generated ones, in paths that are --only")] = 0,
    seed: Annotated[int, Option(help="which faults are generated")] = 0,
    json_file: Annotated[
        Path | None, Option("--json", help="write there which test catches what")
    ] = None,
    against: Annotated[
        Path | None, Option(help="fail if a fault survives that was caught in this earlier file")
    ] = None,
) -> None:
    """Plant faults one after another and say which of them the tests catch."""
    if generate:
        sources = read_sources(ROOT)
        planted = generate_faults(ROOT, sources, count=generate, seed=seed, within=only)
    else:
        listed = read_faults(faults)
        planted = [one for one in listed if only in f"{one.name} {one.before} {one.tests}"]
    for library in LIBRARIES:
        importlib.import_module(library)
    outcomes: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(
        prefix="throughline-faults-", ignore_cleanup_errors=True
    ) as name:
        folder = Path(name)
        broken = find_broken(copy_checkout(folder), planted)
        for test in sorted(broken):
            echo(f"fails without any fault, not counted: {test}")
        work = partial(try_fault, folder, broken, generate > 0)
        with ProcessPoolExecutor(jobs, mp_context=FORK) as pool:
            for one in pool.map(work, planted):
                outcomes.append(one)
                tests = f"{len(one['caught_by']):>4} tests"
                echo(f"{one['state']:<15}{one['seconds']:>6.1f} s{tests}  {one['name']}")
                if json_file:
                    json_file.write_text(f"{json.dumps(outcomes, indent=1)}\n")
    before = json.loads(against.read_text()) if against else []
    caught_before = {one["name"] for one in before if one["state"] == "caught"}
    raise SystemExit(_summarize(outcomes, caught_before, least=0 if generate else LEAST_CAUGHT))


def _summarize(outcomes: list[dict[str, Any]], caught_before: set[str], *, least: float) -> int:
    """Print what became of the faults; returns 1 if that is a failure, else 0."""
    states = Counter(one["state"] for one in outcomes)
    echo(f"\n{len(outcomes)} faults: {', '.join(f'{n} {state}' for state, n in states.items())}")
    others = [one for one in outcomes if one["state"] != "caught"]
    for one in others:
        echo(f"  {one['state']}: {one['name']}")
    lost = sorted(caught_before & {one["name"] for one in others})
    for name in lost:
        echo(f"  was caught before: {name}")
    enough = states["caught"] >= least * len(outcomes)
    return int(bool(lost or states["does not apply"]) or not enough)


if __name__ == "__main__":
    typer.run(main)
