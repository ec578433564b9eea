"""Runs a script within this process, and watches its trainings to its end."""

from __future__ import annotations

import builtins
import linecache
import os
import random
import runpy
import signal
import sys
import traceback
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from .callers import HERE, OURS, add_own_package
from .fail_if import Condition
from .hooks import tensorflow as tensorflow_hooks
from .hooks import torch as torch_hooks
from .hooks.fits import COUNTING, FitWatch
from .hooks.loops import LoopWatch
from .hooks.saves import SaveWatch
from .imports import ImportWatch
from .session import EXIT_UNMEASURED, Options, Session
from .timing.waits import Waits
from .torchrun import CannotStart, become_its_process, is_torchrun

INTERRUPTED, TERMINATED = 130, 143


def run(given: dict[str, Any], arguments: list[str]) -> None:
    """Run a script with its arguments, print the report, and end the process."""
    given["fail_if"] = tuple(Condition.parse(text) for text in given["fail_if"])
    options = Options(**given)
    session = Session(options, _make_writer(as_json=options.as_json))
    observe(session)
    if options.channel is not None:  # ended by the other process, which asks for no more
        signal.signal(signal.SIGTERM, lambda *_: session.leave(TERMINATED))
    session.watch()
    code = run_script(session, arguments)
    if session.in_child:
        sys.exit(code)
    if session.ended is not None or session.options.channel is not None:
        session.leave(code)
    session.close()
    sys.exit(code)  # the script has ended normally, so its exit handlers run


_observers: list[Any] = []  # installed once in this process


def observed() -> Session | None:
    """Return the session for which this process' trainings are watched, or None."""
    return _observers[0].session if _observers else None


def observe(session: Session) -> FitWatch:
    """Watch this process' trainings for this session only; return the watch of `fit`."""
    if not _observers:
        imports = ImportWatch(lambda error: fits.session.fail(error))
        fits, loops = FitWatch(session, Waits()), LoopWatch(session)
        saves = SaveWatch(session, lambda: loops.taking or fits.waits.thread.takes)
        imports.install()
        if session.options.channel is not None:
            _set_seeds(imports)
        tensorflow_hooks.install(imports, fits, loops)
        torch_hooks.install(imports, fits, loops)
        for name in ("keras", "tf_keras"):
            imports.on_import(name, fits.patch)
        for name in COUNTING:
            imports.on_import(name, fits.patch_counting)
        saves.install(imports)
        _observers.extend((fits, loops, saves))
    session.saves.on_first = _observers[2].watch_files
    for observer in _observers:
        observer.session = session
    return _observers[0]


def _set_seeds(imports: ImportWatch) -> None:
    """Seed Python and its libraries equally in both copies of a script that sets no seeds."""
    random.seed(0)
    imports.on_import("numpy", lambda numpy: numpy.random.seed(0))
    imports.on_import("tensorflow", lambda tf: tf.random.set_seed(0))
    imports.on_import("torch", lambda torch: torch.manual_seed(0))


def _make_writer(*, as_json: bool) -> Callable[[str], object]:
    """Return a writer to standard output; with JSON, other output goes to standard error."""
    if not as_json:
        return lambda text: os.write(1, text.encode())
    output = os.dup(1)
    os.dup2(2, 1)
    return lambda text: os.write(output, text.encode())


def run_script(session: Session, arguments: list[str]) -> int:
    """Run the script as `__main__` and print the report; return the exit code."""
    code = 0
    try:
        _execute(session, arguments)
    except CannotStart as error:
        hint = f"run with {sys.executable}; --python sets another Python"
        print(f"whowaits: {error} ({hint})", file=sys.stderr)  # noqa: T201
        return EXIT_UNMEASURED
    except BaseException as error:  # noqa: BLE001 - whatever ends it
        if session.ended is None:
            code = _exit_code(error)
            if session.repeats and isinstance(error, Exception) and not session.in_child:
                _flush()
                found = session.print_report(
                    "the script failed, maybe because whowaits took or repeated some of its"
                    f" batches, which --keep does not do: {error!r}"
                )
                return found if found or session.was_measured else 1
    _flush()
    if session.in_child:  # the parent process reports
        return code
    if session.ended is not None:
        return session.print_report()
    if code == INTERRUPTED:
        session.print_report("it was interrupted")
        return code
    found = session.print_report(f"the script ended with exit code {code}" if code else "")
    return code or found


def _execute(session: Session, arguments: list[str]) -> None:
    options, spec, code = session.options, None, None
    if is_torchrun(options.script, as_module=options.as_module):
        script, as_module, arguments = become_its_process(arguments)
        options = session.options = replace(options, script=script, as_module=as_module)
    script = str(Path(options.script).absolute())  # as Python does
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = str(Path.cwd() if options.as_module else Path(script).resolve().parent)
    sys.argv = ["-m" if options.as_module else options.script, *arguments]
    if options.as_module:
        find: Any = runpy._get_module_details  # pyright: ignore[reportAttributeAccessIssue]
        _, spec, code = find(options.script, CannotStart)  # imports packages, as `python -m` does
        script = sys.argv[0] = str(spec.origin)
        session.options = replace(options, script=script.removeprefix(HERE + os.sep))
    add_own_package(script)
    if code is None or options.source:
        source = Path(options.source or script).read_bytes()
        if options.source:  # tracebacks and AutoGraph read lines
            lines = source.decode().splitlines(keepends=True)
            linecache.cache[script] = (len(source), None, lines, script)
        code = compile(source, script, "exec", dont_inherit=True)
    module = types.ModuleType("__main__")
    module.__dict__.update(
        __file__=script,
        __builtins__=builtins,
        __loader__=spec and spec.loader,
        __package__=spec and spec.parent,
        __spec__=spec,
        __cached__=spec and spec.cached,
    )
    module.__dict__.setdefault("__annotations__", {})
    sys.modules["__main__"] = module
    exec(code, module.__dict__)


def _exit_code(error: BaseException) -> int:
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)  # noqa: T201
        return 1
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, ModuleNotFoundError):
        print(  # noqa: T201
            f"whowaits: run with {sys.executable}; --python sets another Python. Run a module of a"
            " package by its name: whowaits -m package.module",
            file=sys.stderr,
        )
    trace = error.__traceback__
    while trace is not None and str(Path(trace.tb_frame.f_code.co_filename).parent) == OURS:
        trace = trace.tb_next
    if sys.excepthook is sys.__excepthook__:
        traceback.print_exception(type(error), error, trace)
    else:
        sys.excepthook(type(error), error, trace)
    return 1


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            continue
