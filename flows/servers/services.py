"""Server processes: started, awaited until healthy, and ended with the block that started them."""

import os
import socket
import subprocess
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

import requests

from flows.run.processes import supervised
from throughline.shared.errors import ServiceFailed
from throughline.shared.progress import note

HOST = "127.0.0.1"
STARTUP_TIMEOUT_S = 180.0  # the first start makes a database, and a machine may be busy
POLL_S = 0.1
LAST_LINES = 15
BROKEN = 500  # statuses from here on are the server's faults
MOST_RESTARTS, RESTARTS_WITHIN_S = 3, 60.0


@dataclass(frozen=True, kw_only=True)
class ServerProcess:
    """A server's command, its health check, and its additions to our environment."""

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
        """Describe the end of the process, with its last log lines; empty while it runs."""
        if self.process.poll() is None:
            return ""
        lines = []
        with suppress(OSError):  # the log was removed
            lines = self.log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        said = "\n".join(["ends with:", *lines]) if lines else "is empty or gone"
        code = self.process.returncode
        return f"{self.server.name} ended with exit code {code}; {self.log} {said}"

    def check(self) -> None:
        """Raise ServiceFailed, with the end of the log, if the process has ended."""
        if end := self.describe_end():
            raise ServiceFailed(end)

    def wait_until_healthy(self) -> None:
        deadline = monotonic() + STARTUP_TIMEOUT_S
        while not self.server.healthy():
            self.check()
            if monotonic() > deadline:
                late = f"was not healthy within {STARTUP_TIMEOUT_S:.0f} s; its log is {self.log}"
                raise ServiceFailed(f"{self.server.name} {late}")
            sleep(POLL_S)


@contextmanager
def keep_running(*servers: ServerProcess, logs: Path) -> Iterator[Callable[[], None]]:
    """Start servers like `run_servers`; yield a function to call regularly, which restarts those
    that have ended, and says why. ServiceFailed if one ends again and again.
    """
    with ExitStack() as starts:
        running = starts.enter_context(run_servers(*servers, logs=logs))
        restarted_at: deque[float] = deque(maxlen=MOST_RESTARTS)
        starting_s = 0.0  # time of restarts; not counted, or slow starts would hide frequent ends

        def look_after() -> None:
            nonlocal starting_s
            for place, one in enumerate(running):
                if end := one.describe_end():
                    began, full = monotonic(), len(restarted_at) == MOST_RESTARTS
                    if full and began - starting_s - restarted_at[0] < RESTARTS_WITHIN_S:
                        raise ServiceFailed(end)
                    restarted_at.append(began - starting_s)
                    note(f"{end}\nrestarting {one.server.name}")
                    again = run_servers(one.server, logs=logs, append=True)
                    try:
                        (running[place],) = starts.enter_context(again)
                    except (ServiceFailed, OSError) as error:  # counts as another end
                        note(str(error))
                    starting_s += monotonic() - began

        yield look_after


@contextmanager
def run_servers(
    *servers: ServerProcess, logs: Path, append: bool = False
) -> Iterator[list[Running]]:
    """Start servers, wait until all are healthy, and end them with the block or this process.

    Each writes its output to NAME.log in `logs`; `append` keeps what the file holds. ServiceFailed
    if one ends, or is not healthy in time.
    """
    logs.mkdir(parents=True, exist_ok=True)
    with ExitStack() as processes:
        running = []
        for server in servers:
            log = logs / f"{server.name}.log"
            if not append:
                log.write_bytes(b"")
            file = processes.enter_context(log.open("a"))  # another command's server may use it too
            environment = {**os.environ, **server.environment}
            started = supervised(server.command, environment=environment, output=file)
            process = processes.enter_context(started)
            running.append(Running(server=server, process=process, log=log))
        try:
            for one in running:
                one.wait_until_healthy()
            yield running
        finally:
            for one in running:  # end all at once
                if one.process.stdin:
                    one.process.stdin.close()


def responds(url: str) -> bool:
    try:
        return requests.get(url, timeout=2).ok
    except requests.RequestException:
        return False


def is_connection_error(error: Exception) -> bool:
    """Return whether an error says that Prefect's server is away or cannot answer now."""
    names = {kind.__name__ for kind in type(error).__mro__ if kind.__module__.startswith("httpx")}
    status = getattr(getattr(error, "response", None), "status_code", 0)
    return "TransportError" in names or ("HTTPStatusError" in names and status >= BROKEN)


@contextmanager
def reserved_port() -> Iterator[int]:
    """Yield a loopback port that only servers with SO_REUSEADDR, such as ours, can bind now."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((HOST, 0))
        yield holder.getsockname()[1]


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def check_free(option: str, *ports: int) -> None:
    """Raise ServiceFailed if a port is taken; the message names the option that sets it."""
    for port in filter(is_listening, ports):
        raise ServiceFailed(
            f"port {port} is taken, perhaps by servers of another project; choose another with"
            f" --{option}"
        )
