"""A tf.data service: a dispatcher and workers, by hand or for as long as a `with` block lasts.

    python -m throughline.pipelines.service dispatcher --workers 2       prints its address
    python -m throughline.pipelines.service worker --dispatcher ADDRESS

TensorFlow lets both listen on every interface of the host, without authentication: keep them in a
private network. The service pays off if workers run on other hosts, which join by the dispatcher's
address. A process whose standard input is a pipe ends when the pipe closes, so none outlives a
parent that is killed.
"""

import argparse
import ctypes
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from throughline.shared.errors import ServiceFailed
from throughline.shared.failures import end_process
from throughline.shared.gc_pause import import_tensorflow_alone
from throughline.shared.progress import echo_problem
from throughline.shared.scratch import Scratch
from throughline.shared.termination import end_with_parent

START_S = 120
OUTAGE_S = 120.0  # time for others to restart a dispatcher that was not started here
PING_S = 2.0
CONNECT_S = 10
STOP_S = 10
CHECK_S = 0.5
HEARTBEAT_MS = 1000
_ROOT = Path(__file__).parents[2]


@contextmanager
def run_local_service(workers: int) -> Iterator[str]:
    """Start a local dispatcher and workers, yield the dispatcher's address, and stop them all.

    A process that dies is restarted at the same address, where consumers wait for it; the
    dispatcher continues from its journal.

    Raises:
      ServiceFailed: A process did not start.
    """
    journal = Scratch()
    commands = [["dispatcher", "--workers", str(workers), "--work-dir", str(journal.folder)]]
    running, stopping = [_start(*commands[0])], threading.Event()
    try:
        address = _read_address(running[0])
        commands += [["worker", "--dispatcher", address]] * workers
        running += [_start(*command) for command in commands[1:]]
        ports = [one.rpartition(":")[2] for one in [address, *map(_read_address, running[1:])]]
        again = [[*command, "--port", port] for command, port in zip(commands, ports, strict=True)]
        keeper = threading.Thread(target=_keep_alive, args=(running, again, stopping), daemon=True)
        keeper.start()
        yield address
        stopping.set()
        keeper.join()
    finally:
        stopping.set()
        _stop(running)


def _keep_alive(
    running: list[subprocess.Popen[str]], commands: list[list[str]], stopping: threading.Event
) -> None:
    """Restart processes that have died, each by its command, which names its port."""
    while not stopping.wait(CHECK_S):
        for number, command in enumerate(commands):
            if running[number].poll() is not None:
                echo_problem(
                    f"tf.data service: {command[0]} at port {command[-1]} died with code"
                    f" {running[number].returncode}; restarting it"
                )
                _stop([running[number]])
                running[number] = _start(*command)


@contextmanager
def watch_service(address: str, *, outage_s: float = OUTAGE_S) -> Iterator[None]:
    """Watch the dispatcher at `grpc://host:port` while the block uses it.

    End this process if the dispatcher does not answer for `outage_s`, because TensorFlow would wait
    for it forever, in a call that nothing interrupts.

    Raises:
      ServiceFailed: The dispatcher does not answer when the block is entered.
    """
    check_listens(address)
    left = threading.Event()
    threading.Thread(target=_watch, args=(address, outage_s, left), daemon=True).start()
    try:
        yield
    finally:
        left.set()


def _watch(address: str, outage_s: float, left: threading.Event) -> None:
    away_since: float | None = None  # as seen by this process, which may have been stopped
    while not left.wait(PING_S):
        try:
            check_listens(address)
            away_since = None
        except ServiceFailed as failed:
            away_since = time.monotonic() if away_since is None else away_since
            if time.monotonic() - away_since > outage_s and not left.is_set():
                end_process(
                    ServiceFailed(
                        f"{failed}. No answer for {outage_s:g} s. When the dispatcher is back, run"
                        " the same command again: training continues from its last checkpoint"
                    )
                )


def check_listens(address: str) -> None:
    """Raise ServiceFailed unless a dispatcher accepts connections at `grpc://host:port`.

    TensorFlow itself would wait for it forever.
    """
    host, _, port = address.removeprefix("grpc://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()
    except (OSError, ValueError) as error:
        raise ServiceFailed(
            f"no tf.data service at {address} ({error}); start its dispatcher, or correct"
            " `service.address`"
        ) from error


def _start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "throughline.pipelines.service", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=_ROOT)


def _stop(processes: list[subprocess.Popen[str]]) -> None:
    """Close the processes' standard inputs, which ends them, and kill those that do not end."""
    for process in processes:
        process.stdin.close() if process.stdin else None
    for process in processes:
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close() if process.stdout else None


def _read_address(process: subprocess.Popen[str]) -> str:
    watchdog = threading.Timer(START_S, process.kill)
    watchdog.start()
    line = process.stdout.readline().strip() if process.stdout else ""
    watchdog.cancel()
    if not line:
        raise ServiceFailed(
            f"a process of the tf.data service ended with code {process.wait()}, or was not up"
            f" within {START_S} s; see its output above"
        )
    return line


def _exit_on_sigterm() -> None:
    """End the process on SIGTERM with the signal's number as exit code.

    Without a handler, a container's first process ignores SIGTERM. A Python handler would not run
    while TensorFlow waits for a dispatcher, because TensorFlow holds the GIL meanwhile.
    """
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    libc.signal(signal.SIGTERM, ctypes.cast(libc._exit, ctypes.c_void_p))


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m throughline.pipelines.service",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    roles = parser.add_subparsers(dest="role", required=True)
    dispatcher = roles.add_parser("dispatcher", help="distribute work to the workers")
    known = dispatcher.add_mutually_exclusive_group(required=True)
    joining = "number of workers that will join, all from this host"
    known.add_argument("--workers", type=int, help=joining)
    known.add_argument(
        "--worker",
        action="append",
        metavar="HOST:PORT",
        help="address of a worker, on any host; repeat it for each worker, instead of --workers",
    )
    journal = "keep a journal there, from which a restarted dispatcher continues"
    dispatcher.add_argument("--work-dir", metavar="FOLDER", help=journal)
    worker = roles.add_parser("worker", help="prepare batches")
    address = "host:port of the dispatcher, with or without grpc://"
    worker.add_argument("--dispatcher", required=True, metavar="ADDRESS", help=address)
    name = "name under which others reach this worker"
    worker.add_argument("--host", default="localhost", help=name)
    for role in (dispatcher, worker):
        role.add_argument("--port", type=int, default=0, help="port to listen at; 0: any free one")
    return parser.parse_args()


def _serve(options: argparse.Namespace) -> tuple[Any, str]:
    import tensorflow as tf

    service = tf.data.experimental.service
    if options.role == "worker":
        config = service.WorkerConfig(
            dispatcher_address=options.dispatcher.removeprefix("grpc://"),
            worker_address=f"{options.host}:%port%",
            port=options.port,
            heartbeat_interval_ms=HEARTBEAT_MS,
        )
        worker = service.WorkerServer(config)
        return worker, worker._address
    config = service.DispatcherConfig(
        port=options.port,
        worker_addresses=options.worker or ["localhost:%port%"] * options.workers,
        work_dir=options.work_dir,
        fault_tolerant_mode=options.work_dir is not None,
    )
    dispatcher = service.DispatchServer(config)
    return dispatcher, dispatcher.target


def main() -> None:
    """Run a dispatcher or a worker until it is stopped."""
    options = _parse_options()
    below_parent = stat.S_ISFIFO(os.fstat(0).st_mode)
    if below_parent:
        end_with_parent()  # a worker waits for a lost dispatcher, and does not see its parent's end
    _exit_on_sigterm()

    import_tensorflow_alone()
    server, address = _serve(options)
    sys.stdout.write(f"{address}\n")
    sys.stdout.flush()
    if below_parent:
        sys.stdin.read()
    else:
        server.join()
    os._exit(0)  # the server's own shutdown may wait for lost clients


if __name__ == "__main__":
    main()
