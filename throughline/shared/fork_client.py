"""Lets a forked process that has already imported the libraries do a program's work.

A flow starts a server (`flows/run/fork_server.py`) and names its socket in the environment. A
program that finds it hands over its command line, folder, environment and standard streams, waits,
and exits with the exit code of the work. Without a server, or if a file has changed since the
server imported it, the program does its own work. Standard library alone: this runs first.
"""

import array
import json
import os
import signal
import socket
import sys
from collections.abc import Sequence

STAGE_SERVER = "THROUGHLINE_STAGE_SERVER"  # path of the server's socket
REFUSED = b"refused"
HEAVY_STAGES = ("build", "ingest", "profiling", "race", "report", "shard", "snapshot", "train")
# Modules whose own imports take less time than waiting for all imports of their server.
NOT_WAITING = ("tasks.ingest", "tasks.shard")
READY = ".ready"  # suffix of a file next to the socket: the server has imported everything
STREAMS = 3  # standard input, output, error


def find_started_module(package: str, modules: Sequence[str]) -> str | None:
    """Return which of these modules of a package `python -m` is starting; None for others."""
    # While Python looks for the module, `sys.argv[0]` is `-m`.
    if sys.argv[:1] != ["-m"]:
        return None
    started, _, name = sys.orig_argv[-len(sys.argv)].removeprefix("-m").partition(".")
    return name if started == package and name in modules else None


def hand_over(module: str, arguments: Sequence[str], *, server: str) -> None:
    """Let a server run `python -m MODULE ARGUMENTS`, and exit with its exit code.

    `server` is the environment variable that holds its socket's path. Return if there is no server
    or it refuses. If it is still importing, wait, but return for the modules in `NOT_WAITING`.
    """
    address = os.environ.get(server)
    if not address or (module in NOT_WAITING and not os.path.exists(address + READY)):  # noqa: PTH110
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        folder, name = os.path.split(address)
        try:
            # The path of a socket has at most 107 bytes, that of a folder has no such limit.
            opened = os.open(folder or ".", os.O_PATH)
            connection.connect(f"/proc/self/fd/{opened}/{name}")
        except OSError:  # the server has not started, or has ended
            return
        # Signals to this process are meant for the work: the server ends the work when this side of
        # the connection is shut down, and answers when all its processes are gone.
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
        except (ConnectionResetError, BrokenPipeError):  # the server ended before it read this
            answer = REFUSED
        except OSError as error:
            sys.exit(f"the process that runs {module} failed: {error}")
    if answer != REFUSED:
        sys.stdout.flush()
        sys.exit(int(answer) if answer else f"the process of {module} was killed")
    for number, handler in before.items():
        signal.signal(number, handler)
