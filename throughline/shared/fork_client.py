"""How a program lets a process that has imported its libraries already do its work.

A flow starts such a process (`flows/run/fork_server.py`) and names its socket in the environment. A
program that finds it there hands over its command line, folder, environment and standard streams,
waits, and exits with the exit code of the work; without one, or where a file has changed since the
server imported it, it imports its libraries itself.
Standard library alone: this runs before anything is imported.
"""

from __future__ import annotations

import array
import json
import os
import signal
import socket
import sys
from collections.abc import Sequence

STAGE_SERVER = "THROUGHLINE_STAGE_SERVER"  # path of its socket
REFUSED = b"refused"
HEAVY_STAGES = ("build", "ingest", "profiling", "race", "report", "shard", "snapshot", "train")
# These have nothing to import that takes as long as what their server imports for the others.
NOT_WAITING = ("tasks.ingest", "tasks.shard")
READY = ".ready"  # of the file next to a socket that says that its server has imported everything
STREAMS = 3  # standard input, output, error


def find_started_module(package: str, modules: Sequence[str]) -> str | None:
    """Which of these modules of a package Python is starting by `python -m`; None: none."""
    # While Python looks for the module, `-m` stands in its place, before its arguments.
    if sys.argv[:1] != ["-m"]:
        return None
    started, _, name = sys.orig_argv[-len(sys.argv)].removeprefix("-m").partition(".")
    return name if started == package and name in modules else None


def hand_over(module: str, arguments: Sequence[str], *, server: str) -> None:
    """Have the server that the variable `server` names be `python -m MODULE ARGUMENTS` and exit
    with its exit code; return where there is none. One that is still importing has started
    before this process could, and is waited for.
    """
    address = os.environ.get(server)
    if not address or (module in NOT_WAITING and not os.path.exists(address + READY)):  # noqa: PTH110
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        folder, name = os.path.split(address)
        try:
            # The path of a socket has 107 bytes at most; that of a folder as many as it likes.
            opened = os.open(folder or ".", os.O_PATH)
            connection.connect(f"/proc/self/fd/{opened}/{name}")
        except OSError:  # it has not started, or is gone
            return
        # A signal for us is one for the work: the server ends it when this side is shut, and
        # answers when nothing of it is left.
        before = {
            number: signal.signal(number, lambda *_: connection.shutdown(socket.SHUT_WR))
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            request = {
                "module": module,
                "arguments": list(arguments),
                "prefix": sys.prefix,
                "folder": os.getcwd(),  # noqa: PTH109 - pathlib would be half of this process' imports
                "environment": dict(os.environ),
            }
            content = json.dumps(request).encode()
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", range(STREAMS)))]
            connection.sendmsg([len(content).to_bytes(4, "big")], rights)
            connection.sendall(content)
            answer = connection.recv(16)
        except (ConnectionResetError, BrokenPipeError):  # it has ended before it has read that
            answer = REFUSED
        except OSError as error:
            sys.exit(f"the process that is to be {module} failed: {error}")
    if answer != REFUSED:
        sys.stdout.flush()
        sys.exit(int(answer) if answer else f"the process of {module} was killed")
    for number, handler in before.items():
        signal.signal(number, handler)
