"""A process that has imported what stages import, and forks itself for each of them.

Half of a short stage is the import of TensorFlow, Keras and MLflow, 5 s on 2 cores; a fork that has
them is there in 10 ms. `python -m flows.run.stage_server SOCKET` serves the stages of the folder
that it is started in (`throughline/shared/stage_client.py` is their side). Each has a process of
its own, as without a server: the interpreter's import state is all that they share. TensorFlow has
no runtime yet when it is forked, so there are no threads or devices of it that a fork would lose.

A stage is refused, and then imports for itself, once a file of the program or the set of installed
packages is not what it was when the server imported them.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flows.run.dvc_calls import dvc_environment
from flows.run.processes import supervised
from flows.run.supervise import GRACE_S, PR_SET_PDEATHSIG, prctl, supervise
from throughline.shared.gc_pause import collect_garbage_as_usual
from throughline.shared.scratch import Scratch
from throughline.shared.stage_client import HEAVY_STAGES, REFUSED, STAGE_SERVER, STREAMS

# What no stage imports before it needs it, and train and profile do need.
IMPORTED_LATE = ("mlflow.store.tracking.sqlalchemy_store",)
LONGEST_REQUEST = 1 << 22  # bytes; an environment is a few thousand


@contextmanager
def stage_server(root: Path, environment: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Start the server of a folder for the length of the block; yields the environment by which its
    stages find it. It ends with this process, however that ends.
    """
    scratch = Scratch(root)
    address = str((scratch.new_folder() / "stages").relative_to(root.absolute()))
    command = [sys.executable, "-m", "flows.run.stage_server", address]
    # What it cannot import is said by the stage, which then tries itself.
    with supervised(
        command, folder=root, environment=dvc_environment(environment), output=subprocess.DEVNULL
    ):
        yield {STAGE_SERVER: address}


def main() -> None:
    """Serve the stages of the current folder until this process is ended."""
    started_ns = time.time_ns()
    for module in (*(f"tasks.{stage}" for stage in HEAVY_STAGES), *IMPORTED_LATE):
        importlib.import_module(module)
    collect_garbage_as_usual()
    imported = list_imported_files()
    if max(imported.values()) > started_ns:
        return  # imported before or after the change?
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(sys.argv[1])  # last: a stage that starts earlier imports for itself
    listener.listen()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process is left to be waited for
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            answer = serve(connection, imported)
            connection.sendall(answer)
            os._exit(0)
        connection.close()


def list_imported_files() -> dict[str, int]:
    """Times of change, in ns since 1970, of the imported modules' files and of the folder of
    installed packages; 0 where a file is gone.
    """
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return {path: _changed_ns(path) for path in {*files, sysconfig.get_path("purelib")} if path}


def _changed_ns(path: str) -> int:
    try:
        return Path(path).stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def serve(connection: socket.socket, imported: Mapping[str, int]) -> bytes:
    """Run the stage that a connection asks for in a process below this one, end it when the
    connection is shut, and return the answer: its exit code, or that it is refused.

    In the stage's own process this leaves by SystemExit, through which Python ends it as any other.
    """
    request, streams = _receive(connection)
    if list_imported_files() != imported:
        return REFUSED
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def start() -> int:
        if process := os.fork():
            for stream in streams:
                os.close(stream)
            return process
        connection.close()
        _run(request, streams)
        raise SystemExit(0)

    return str(supervise(lifeline=connection.fileno(), start=start, grace_s=GRACE_S)).encode()


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """What a stage hands over: its request and its standard streams."""
    header, streams, _, _ = socket.recv_fds(connection, 4, STREAMS)
    size = int.from_bytes(header, "big")
    if len(streams) != STREAMS or not 0 < size <= LONGEST_REQUEST:
        raise SystemExit("this is no stage's request")
    content = b""
    while len(content) < size:
        part = connection.recv(size - len(content))
        if not part:
            raise SystemExit("the stage has gone before it had asked")
        content += part
    return json.loads(content), streams


def _run(request: Mapping[str, Any], streams: list[int]) -> None:
    """Be the process `python -m tasks.STAGE ARGUMENTS`."""
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
    module = f"tasks.{request['stage']}"
    sys.argv[:] = [module, *request["arguments"]]
    sys.modules.pop(module)  # it is run as the main module, as -m does
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
