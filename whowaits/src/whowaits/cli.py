"""`whowaits train.py`, `whowaits -m pkg.train`: starts a script with the user's interpreter."""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

from .changes.patch import print_patch
from .compare import NotAReport, compare
from .fail_if import Condition, InvalidCondition
from .torchrun import is_torchrun
from .version import __version__

EXIT_USAGE = 2
TRAINING_LIBRARIES = ("keras", "tf_keras", "tensorflow", "torch")
# Programs and modules that start a script in other processes.
LAUNCHERS = ("accelerate", "deepspeed", "horovodrun", "mpiexec", "mpirun", "srun")
LAUNCHING_MODULES = ("accelerate", "deepspeed", "horovod", "torch.distributed.launch")
# Options that are passed to the watched process, as its `session.Options`.
ASKED = ("script", "as_module", "seconds", "training", "keep", "tries", "as_json", "fail_if")
EXITS = """exit codes: 0 measured; the script's own if it failed; 2 nothing measured, or wrong
usage; 3 a --fail-if is met; 4 one is undecided or unmeasured; 5 no patch; 130 interrupted"""


def main(arguments: list[str] | None = None) -> int:
    """Say whether a training script waits for its input. `whowaits compare A.json B.json` shows two
    reports next to each other.
    """
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == ["compare"] and not Path("compare").is_file():
        return _compare(given[1:])
    parser = argparse.ArgumentParser(prog="whowaits", description=main.__doc__, epilog=EXITS)
    add, flag = parser.add_argument, partial(parser.add_argument, action="store_true")
    add("--version", action="version", version=f"whowaits {__version__}")
    add("--python", metavar="FILE", help="the Python that runs the script")
    add("--seconds", type=float, default=40.0, help="how long to measure once compiled [s] (40)")
    add("--training", type=int, default=1, metavar="N", help="measure the script's Nth training")
    flag("--keep", help="only watch the script, to its end")
    add("--no-try", dest="tries", action="store_false", help="do not try changes of the input")
    flag("--json", dest="as_json", help="print the report as JSON only")
    condition = "'stall > 20'"
    add("--fail-if", action="append", default=[], metavar=condition, help="exit with 3 if true")
    proven = "once a changed copy of the script has proven it"
    flag("--patch", help=f"print the best change as a diff, {proven}")
    flag("-m", dest="as_module", help="run a module, as `python -m` does")
    add("script", help="a Python file that trains; with -m a module")
    add("arguments", nargs=argparse.REMAINDER, help="the script's own arguments")
    options = parser.parse_args(given)
    fault = _find_fault(options)
    if fault:
        return _refuse(fault)
    interpreter = find_interpreter(options.python)
    if interpreter is None:
        return _refuse(f"--python {options.python} is not an executable file, nor one on PATH")
    asked = {name: getattr(options, name) for name in ASKED}
    start = str(Path(__file__).with_name("start.py"))
    arguments = _own_arguments(given, options)
    if options.patch:
        return print_patch([interpreter, start, *arguments], asked)
    command = [interpreter, start, json.dumps(asked), *arguments]
    if os.name == "posix":
        sys.stdout.flush()
        os.execv(interpreter, command)
    return subprocess.call(command)


def find_interpreter(given: str | None = None) -> str | None:
    """Return the user's Python, or None if `given` (by `--python`) cannot be run.

    Without it, the first of: the active environment of venv or conda (not conda's base, which is
    always active), ./.venv, this command's own if that can train, PATH, this command's own.
    """
    if given is not None:
        return shutil.which(given)
    folder = "Scripts" if os.name == "nt" else "bin"
    for environment in filter(None, (os.environ.get("VIRTUAL_ENV"), _find_conda(), ".venv")):
        places = Path(environment, folder), Path(environment)  # the second is for conda on Windows
        found = shutil.which("python", path=os.pathsep.join(map(str, places)))
        if found:
            return str(Path(found).absolute())
    if any(importlib.util.find_spec(name) for name in TRAINING_LIBRARIES):
        return sys.executable
    own = Path(sys.prefix, folder)  # `uvx` puts this on PATH, although it cannot train
    others = [each for each in os.get_exec_path() if Path(each) != own]
    path = os.pathsep.join(others)
    return shutil.which("python", path=path) or shutil.which("python3", path=path) or sys.executable


def _find_conda() -> str | None:
    """Return the active conda environment unless it is the base."""
    is_base = os.environ.get("CONDA_DEFAULT_ENV") == "base"
    return None if is_base else os.environ.get("CONDA_PREFIX")


def _own_arguments(given: list[str], options: argparse.Namespace) -> list[str]:
    """Return the script's arguments, including a leading `--`, which argparse drops."""
    before = given[: len(given) - len(options.arguments)]
    left_out = before[-2:] == [options.script, "--"]
    return ["--", *options.arguments] if left_out else options.arguments


def _find_fault(options: argparse.Namespace) -> str:
    try:
        for text in options.fail_if:
            Condition.parse(text)
    except InvalidCondition as error:
        return str(error)
    fault = _find_fault_of_script(options.script, as_module=options.as_module)
    if fault:
        return fault
    if not 0 < options.seconds < math.inf:
        return f"--seconds must be a finite number above 0, but is {options.seconds:g}"
    if options.training < 1:
        return f"--training must be 1 (the first training) or more, but is {options.training}"
    if options.patch and (options.keep or options.as_json or options.fail_if or not options.tries):
        return "--patch cannot be combined with --keep, --json, --fail-if or --no-try"
    return ""


def _find_fault_of_script(script: str, *, as_module: bool) -> str:
    if is_torchrun(script, as_module=as_module):
        return ""
    launches = (
        f"{script}.".startswith(tuple(f"{each}." for each in LAUNCHING_MODULES))
        if as_module
        else Path(script).name in LAUNCHERS
    )
    if launches:
        return (
            f"{script} starts a training in other processes, which whowaits does not see: name the"
            " script itself, which then trains in one process"
        )
    is_file = Path(script).is_file()
    if as_module and script.endswith(".py") and is_file:
        return f"-m needs the name of a module, but {script} is a file: leave out -m"
    return "" if as_module or is_file else f"there is no file {script}"


def _compare(files: list[str]) -> int:
    if len(files) != len(("before", "after")):
        return _refuse("compare needs two files: whowaits compare A.json B.json")
    try:
        print("\n".join(compare(*map(Path, files))))  # noqa: T201
    except NotAReport as error:
        return _refuse(str(error))
    return 0


def _refuse(reason: str) -> int:
    print(f"whowaits: {reason}", file=sys.stderr)  # noqa: T201
    return EXIT_USAGE
