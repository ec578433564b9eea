"""Processes that serve: started, waited for until they are healthy, and ended with the block that
started them, whatever happens.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import requests

from flows.run.processes import supervised
from throughline.shared.errors import ServiceFailed
from throughline.shared.progress import note

HOST = "127.0.0.1"
STARTUP_TIMEOUT_S = 180.0  # a first one makes its database; a busy machine takes its time
POLL_S = 0.1
LAST_LINES = 15
BROKEN = 500  # statuses from here on are not of what was asked
MOST_RESTARTS, RESTARTS_WITHIN_S = 3, 60.0


@dataclass(frozen=True, kw_only=True)
class ServerProcess:
    """A process that serves, how to check that it does, and its additions to our environment."""

    name: str
    command: Sequence[str]
    healthy: Callable[[], bool]
    environment: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Running:
    """A server's process, under its supervisor, and its log."""

    server: ServerProcess
    process: subprocess.Popen
    log: Path

    def describe_end(self) -> str:
        """How it has ended, with the last lines of its log; empty while it runs."""
        if self.process.poll() is None:
            return ""
        tail = ""
        with suppress(OSError):  # somebody has removed it
            tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-LAST_LINES:])
        said = f"{self.log} ends with:\n{tail}" if tail else f"{self.log} has no more of it"
        return f"{self.server.name} ended with exit code {self.process.returncode}; {said}"

    def check(self) -> None:
        """Raise ServiceFailed if it has ended, with the last lines of its log."""
        if end := self.describe_end():
            raise ServiceFailed(end)


@contextmanager
def keep_running(
    *servers: ServerProcess, logs: Path, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[], None]]:
    """Start servers, as `run_servers`; yields a function, to be called now and then, that starts
    again those that have ended, and says why they had.

    Raises:
      ServiceFailed: one ended, or was not healthy in time; the function raises it where servers end
        again and again.
    """
    with ExitStack() as starts:
        running = starts.enter_context(run_servers(*servers, logs=logs, clock=clock))
        restarted_at: deque[float] = deque(maxlen=MOST_RESTARTS)
        starting_s = 0.0  # not counted: one that takes long to start does not end more rarely

        def look_after() -> None:
            nonlocal starting_s
            for place, one in enumerate(running):
                if end := one.describe_end():
                    began, full = clock(), len(restarted_at) == MOST_RESTARTS
                    if full and began - starting_s - restarted_at[0] < RESTARTS_WITHIN_S:
                        raise ServiceFailed(end)
                    restarted_at.append(began - starting_s)
                    note(f"{end}\nrestarting {one.server.name}")
                    again = run_servers(one.server, logs=logs, append=True, clock=clock)
                    try:
                        (running[place],) = starts.enter_context(again)
                    except (ServiceFailed, OSError) as error:  # as if it had ended again
                        note(str(error))
                    starting_s += clock() - began

        yield look_after


@contextmanager
def run_servers(
    *servers: ServerProcess,
    logs: Path,
    append: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[list[Running]]:
    """Start servers, all at once, and wait until each is healthy; they end with the block, and
    with this process, whatever happens to that.

    The output of each goes to NAME.log in the folder `logs`, with `append` after what is there.

    Raises:
      ServiceFailed: one ended, or was not healthy in time.
    """
    logs.mkdir(parents=True, exist_ok=True)
    with ExitStack() as processes:
        running = [
            Running(server=server, process=process, log=log)
            for server in servers
            for log in [logs / f"{server.name}.log"]
            for process in [processes.enter_context(_started(server, log, append=append))]
        ]
        try:
            for one in running:
                _wait_until(one, clock)
            yield running
        finally:
            for one in running:  # all at once
                if one.process.stdin:
                    one.process.stdin.close()


@contextmanager
def _started(server: ServerProcess, log: Path, *, append: bool) -> Iterator[subprocess.Popen]:
    environment = {**os.environ, **server.environment}
    if not append:
        log.write_bytes(b"")
    with (
        log.open("a") as file,  # another command's may write to it, too
        supervised(server.command, environment=environment, output=file) as process,
    ):
        yield process


def _wait_until(running: Running, clock: Callable[[], float]) -> None:
    deadline = clock() + STARTUP_TIMEOUT_S
    while not running.server.healthy():
        running.check()
        if clock() > deadline:
            raise ServiceFailed(
                f"{running.server.name} was not healthy within {STARTUP_TIMEOUT_S:.0f} s; its log"
                f" is {running.log}"
            )
        time.sleep(POLL_S)


def responds(url: str) -> bool:
    """Whether a GET of the address succeeds."""
    try:
        return requests.get(url, timeout=2).ok
    except requests.RequestException:
        return False


def is_of_connection(error: Exception) -> bool:
    """Whether an error is of the connection to Prefect's server, whose client raises httpx's, or of
    a server that cannot answer now; its refusals are none.
    """
    names = {kind.__name__ for kind in type(error).__mro__ if kind.__module__.startswith("httpx")}
    status = getattr(getattr(error, "response", None), "status_code", 0)
    return "TransportError" in names or ("HTTPStatusError" in names and status >= BROKEN)


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port of this machine's loopback that the kernel gives to nobody else while the block lasts.

    It is bound, but nothing listens on it: connections are refused until a server that sets
    SO_REUSEADDR, as all of ours do, binds it, too.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((HOST, 0))
        yield holder.getsockname()[1]


def is_listening(port: int) -> bool:
    """Whether something accepts connections at a port of this machine's loopback."""
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def check_free(ports: Mapping[str, int]) -> None:
    """Raise ServiceFailed if something listens at one of the ports; they are named by the options
    that set them.
    """
    for option, port in ports.items():
        if is_listening(port):
            raise ServiceFailed(
                f"port {port} is taken, perhaps by servers of another project; choose another with"
                f" --{option}"
            )
