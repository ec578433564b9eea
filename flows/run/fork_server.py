"""A server that has imported the libraries of stages, and forks itself to run them.

Importing TensorFlow, Keras and MLflow takes 5 s on 2 cores, half of a short stage; a fork starts in
10 ms. `python -m flows.run.fork_server SOCKET MODULE…` imports the modules and serves
(`throughline/shared/fork_client.py` is the other side). Programs have processes of their own, and
share only imported modules; TensorFlow has no threads or devices yet that a fork could lose.

A program is refused, and imports by itself, if an imported file or the set of installed packages
has changed, or if it belongs to another Python environment. A program in another folder shares only
libraries with the server.
"""

import atexit
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from flows.run.dvc_calls import dvc_environment
from flows.run.processes import supervised
from flows.run.supervise import GRACE_S, PR_SET_PDEATHSIG, prctl, supervise
from throughline.shared.code_identity import PROGRAM
from throughline.shared.fork_client import HEAVY_STAGES, READY, REFUSED, STAGE_SERVER, STREAMS
from throughline.shared.gc_pause import collect_garbage_as_usual, pause_garbage_collection
from throughline.shared.program import digest_code
from throughline.shared.scratch import Scratch

# Train and race import the last one only when they open MLflow's store.
STAGE_MODULES = (
    *(f"tasks.{stage}" for stage in HEAVY_STAGES),
    "mlflow.store.tracking.sqlalchemy_store",
)
LONGEST_REQUEST = 1 << 22  # bytes; an environment has a few thousand


@contextmanager
def stage_server(root: Path, environment: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Run the server for the stages of a folder, until the block or this process ends; yield the
    environment variable by which stages find it.
    """
    scratch = Scratch(root)
    address = scratch.new_folder() / "server"
    command = [sys.executable, "-m", "flows.run.fork_server"]
    command += [str(address.relative_to(root.absolute())), *STAGE_MODULES]
    variables = dvc_environment(environment)
    # If an import fails here, the stage tries it again and reports it.
    with supervised(command, folder=root, environment=variables, output=subprocess.DEVNULL):
        yield {STAGE_SERVER: str(address)}


def main() -> None:
    """Import the given modules, then serve programs, unless a file changed during the imports."""
    started_ns = time.time_ns()
    address, *modules = sys.argv[1:]
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(address)
    listener.listen()  # clients that connect from now on wait for the imports
    pause_garbage_collection()
    for module in modules:
        importlib.import_module(module)
    collect_garbage_as_usual()
    imported = list_imported_files()
    if max(imported.values()) > started_ns:
        return  # a file changed meanwhile, perhaps after its import
    Path(address + READY).touch()
    # Work that would cost each training a second: digest the program, list packages for MLflow.
    digest_code("train")
    if requirements := sys.modules.get("mlflow.utils.requirements_utils"):
        requirements.warn_dependency_requirement_mismatches(["mlflow"])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # do not wait for child processes
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            connection.sendall(serve(connection, imported))
            os._exit(0)
        connection.close()


def list_imported_files() -> dict[str, int]:
    """Return when imported files and site-packages last changed [ns since 1970]; 0 if gone."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return {path: _changed_ns(path) for path in {*files, sysconfig.get_path("purelib")} if path}


def _changed_ns(path: str) -> int:
    try:
        return Path(path).stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def serve(connection: socket.socket, imported: Mapping[str, int]) -> bytes:
    """Run a requested program in a child process until it ends or the connection closes.

    Returns its exit code, or a refusal. Does not return in the child.
    """
    request, streams = _receive(connection)
    changed = any(_changed_ns(path) != at for path, at in imported.items())
    if changed or request["prefix"] != sys.prefix:
        return REFUSED
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def start() -> int:
        if process := os.fork():
            for stream in streams:
                os.close(stream)
            return process
        connection.close()
        end(call(lambda: _run(request, streams)))

    return str(supervise(lifeline=connection.fileno(), start=start, grace_s=GRACE_S)).encode()


def call(program: Callable[[], object]) -> int:
    """Call a program and return the exit code that Python would end with; report its error."""
    try:
        program()
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        sys.stderr.write(f"{ended.code}\n")
        return 1
    except BaseException as error:  # noqa: BLE001 - this is the outermost call
        sys.excepthook(type(error), error, error.__traceback__)
        return 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def end(code: int) -> NoReturn:
    """End this process as Python does, but do not free the libraries' objects: that takes 0.3 s."""
    threading._shutdown()  # type: ignore[attr-defined] - waits for threads
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads, or it is closed
            stream.flush()
    os._exit(code)


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    header, streams, _, _ = socket.recv_fds(connection, 4, STREAMS)
    size = int.from_bytes(header, "big")
    if len(streams) != STREAMS or not 0 < size <= LONGEST_REQUEST:
        raise SystemExit("this is not a request to run a program")
    with connection.makefile("rb") as request:
        content = request.read(size)
    if len(content) < size:
        raise SystemExit("the program ended before its request was complete")
    return json.loads(content), streams


def _run(request: Mapping[str, Any], streams: list[int]) -> None:
    """Turn this process into `python -m MODULE ARGUMENTS`."""
    os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for standard, stream in enumerate(streams):
        os.dup2(stream, standard)
        os.close(stream)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    if sys.path[0] != request["folder"]:  # import the program's own modules again, from there
        for name in [one for one in sys.modules if one.partition(".")[0] in PROGRAM]:
            del sys.modules[name]
        sys.path[0] = request["folder"]
    module = request["module"]
    sys.argv[:] = [module, *request["arguments"]]
    if not hasattr(sys.modules.get(module), "__path__"):
        sys.modules.pop(module, None)  # it runs as the main module, as with -m
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
