"""How a stage lets a process that has imported its libraries already do its work.

A flow starts such a process (`flows/run/stage_server.py`) and names its socket in the environment.
A stage that finds it there hands over its command line, environment and standard streams, waits,
and exits with the exit code of the work; without one, or where the program has changed since the
server imported it, the stage imports its libraries itself. Standard library alone: this runs before
anything is imported.
"""

from __future__ import annotations

import array
import json
import os
import signal
import socket
import sys
from collections.abc import Sequence

STAGE_SERVER = "THROUGHLINE_STAGE_SERVER"  # path of its socket, relative to the stage's folder
REFUSED = b"refused"
HEAVY_STAGES = ("build", "ingest", "profiling", "report", "shard", "snapshot", "train")
STREAMS = 3  # standard input, output, error


def find_started_module(package: str, modules: Sequence[str]) -> str | None:
    """Which of these modules of a package Python is starting by `python -m`; None: none."""
    # While Python looks for the module, `-m` stands in its place, before its arguments.
    if sys.argv[:1] != ["-m"]:
        return None
    started, _, name = sys.orig_argv[-len(sys.argv)].removeprefix("-m").partition(".")
    return name if started == package and name in modules else None


def hand_over(stage: str) -> None:
    """Have the stage server do the work and exit with its exit code; return where there is none."""
    address = os.environ.get(STAGE_SERVER)
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(address)
        except OSError:  # it has not started, or is gone
            return
        # A signal for us is one for the work: the server ends it when this side is shut, and
        # answers when nothing of it is left.
        before = {
            number: signal.signal(number, lambda *_: connection.shutdown(socket.SHUT_WR))
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            request = {"stage": stage, "arguments": sys.argv[1:], "environment": dict(os.environ)}
            content = json.dumps(request).encode()
            streams = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", range(STREAMS)))]
            connection.sendmsg([len(content).to_bytes(4, "big")], streams)
            connection.sendall(content)
            answer = connection.recv(16)
        except OSError as error:
            sys.exit(f"the server of stages failed: {error}")
    if answer != REFUSED:
        sys.stdout.flush()
        sys.exit(int(answer) if answer else "the process of this stage was killed")
    for number, handler in before.items():
        signal.signal(number, handler)
