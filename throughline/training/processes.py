"""The processes of this host that train together: started as one, ended as one.

The first one, the chief, writes and prints; what the others print is shown where one of them is the
first to fail. They end with this process, however it ends. Imports no TensorFlow.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import psutil

from throughline.plan.training_workers import (
    TF_CONFIG,
    TrainingWorker,
    make_tf_config,
    training_worker_from_tf_config,
)
from throughline.shared.errors import ImpossiblePlan, ProcessLost
from throughline.shared.failures import FAILURE_FILE
from throughline.training.deadline import TIMED_OUT

STARTED_HERE = "THROUGHLINE_PROCESS_OF"  # set for a process that ends when its standard input does
LOST_ANOTHER = 76  # exit code of a process that ends because another one is gone
LOOPBACK = "127.0.0.1"
CHECK_S = 0.1
# For the others to end by themselves once one has failed, and to end when they are asked to.
GRACE_S, TERMINATE_S = 15.0, 5.0
CHIEF_FIRST_S = 3.0  # that the others work on when they are asked to
LAST_LINES = 30


class Process:
    """One of the processes, and the last lines that it has printed."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], index: int) -> None:
        self.index, self.lines = index, deque[str](maxlen=LAST_LINES)
        silent = index > 0
        self.popen = subprocess.Popen(
            list(command),
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if silent else None,
            stderr=subprocess.STDOUT if silent else None,
        )
        if silent:
            threading.Thread(target=self._read, daemon=True).start()

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self.popen.poll()

    @property
    def is_stopped(self) -> bool:
        """Whether it is frozen, as by SIGSTOP."""
        with contextlib.suppress(psutil.Error):
            return psutil.Process(self.popen.pid).status() == psutil.STATUS_STOPPED
        return False

    def _read(self) -> None:
        for line in self.popen.stdout or ():
            self.lines.append(line.decode(errors="replace").rstrip())


def run_processes(command: Sequence[str], count: int, *, gpus: Sequence[str] = ()) -> None:
    """Run a command in `count` processes that find each other by TF_CONFIG, each with one of the
    `gpus`, and return when all have succeeded.

    Raises:
      ProcessLost: one was killed, froze or failed; names it.
      SystemExit: the chief has failed and said why, with its exit code.
    """
    with reserve_addresses(count) as addresses, _started(command, addresses, gpus) as processes:
        while (codes := [one.code for one in processes]) != [0] * count:
            if any(codes):
                _wait(processes, GRACE_S)
                _raise_failure(processes)
            time.sleep(CHECK_S)


@contextmanager
def reserve_addresses(count: int) -> Iterator[list[str]]:
    """Addresses of this host whose ports no other program is given during the block; TensorFlow can
    listen there, since they are bound and not listened to.
    """
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind((LOOPBACK, 0))
        yield [f"{LOOPBACK}:{one.getsockname()[1]}" for one in sockets]


def run_one_of_several(main: Callable[[], None]) -> None:
    """Run the main function of a process that may train with others: it ends when the one does that
    has started it, and where it fails at once. Of those that are ended together the chief is first:
    without the others it would wait in its step, and MLflow would not hear of its end.
    """
    if STARTED_HERE in os.environ:
        lifeline = os.dup(0)  # of the standard input, which others may close
        threading.Thread(target=_end_when_closed, args=(lifeline,), daemon=True).start()
    try:
        worker = training_worker_from_tf_config(os.environ)
    except ImpossiblePlan:  # which `main` says
        worker = TrainingWorker()
    several = worker.count > 1
    if worker.index:
        signal.signal(signal.SIGTERM, _end_after_chief)
    try:
        main()
    except BaseException as error:
        if several:
            exit_at_once(error)
        raise


def _end_after_chief(number: int, _: object) -> None:
    timer = threading.Timer(CHIEF_FIRST_S, os._exit, (128 + number,))
    timer.daemon = True
    timer.start()


def _end_when_closed(lifeline: int) -> None:
    while os.read(lifeline, 4096):
        pass
    os._exit(128 + signal.SIGTERM)


@contextmanager
def _started(
    command: Sequence[str], addresses: Sequence[str], gpus: Sequence[str]
) -> Iterator[list[Process]]:
    """Start a process for each address; when the block is left all are ended."""
    processes: list[Process] = []
    try:
        for index in range(len(addresses)):
            environment = {
                **os.environ,
                TF_CONFIG: make_tf_config(addresses, index),
                STARTED_HERE: str(os.getpid()),
                **({"CUDA_VISIBLE_DEVICES": gpus[index]} if gpus else {}),
            }
            if index:
                environment.pop(FAILURE_FILE, None)
            processes.append(Process(command, environment, index))
        yield processes
    except KeyboardInterrupt:  # which the terminal has sent to all of them
        _wait(processes, GRACE_S)
        raise
    finally:
        for ask, seconds in (("terminate", TERMINATE_S), ("kill", TERMINATE_S)):
            for one in processes:
                if one.code is None:
                    getattr(one.popen, ask)()
            _wait(processes, seconds)


def _wait(processes: Sequence[Process], seconds: float) -> None:
    """Wait until all have ended, or so long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(one.code is None for one in processes):
        time.sleep(CHECK_S)


def _raise_failure(processes: Sequence[Process]) -> None:
    """Say which process failed first, and how: the one whose end is not what follows from that of
    another one.
    """
    ends = [(*end, one) for one in processes if (end := _describe_end(one))]
    if not ends:
        return
    rank, how, first = min(ends, key=lambda end: (end[0], end[2].index))
    if first.index == 0 and rank > 0:  # it has said why itself
        raise SystemExit(first.code)
    what = f"process {first.index} of {len(processes)} {how}"
    for line in first.lines:
        sys.stderr.write(f"process {first.index}: {line}\n")
    raise ProcessLost(f"{what}; the same command goes on from the last checkpoint")


def _describe_end(process: Process) -> tuple[int, str] | None:
    """How a process has ended, and its rank among likely causes: it was killed or is frozen; it
    failed; it waited too long; it has lost another one. None: it has succeeded, or still runs.
    """
    code = process.code
    if code is None:
        return (0, "is frozen: a signal has stopped it") if process.is_stopped else None
    killed_by = -code if code < 0 else code - 128
    if code == TIMED_OUT or killed_by == signal.SIGALRM:
        return 2, "has waited too long for the others"
    if killed_by in {*signal.Signals}:
        return 0, f"was killed by {signal.Signals(killed_by).name}"
    if code == LOST_ANOTHER:
        return 3, "has lost another one"
    return (1, f"ended with code {code}") if code else None


def exit_at_once(error: BaseException) -> None:
    """End this process with the exit code that an error stands for, without waiting for the other
    processes, as TensorFlow does at the end of one.
    """
    if isinstance(error, SystemExit):
        lost = isinstance(error.__context__, ProcessLost)
        code = LOST_ANOTHER if lost else error.code if isinstance(error.code, int) else 1
        if isinstance(error.code, str):
            sys.stderr.write(f"{error.code}\n")
    else:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
