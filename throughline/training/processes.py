"""Starts and ends the processes of this host that train together; imports no TensorFlow.

The first process, the chief, writes and prints. The output of another process is shown only if it
is the first to fail. All end with the process that started them, however that process ends.
"""

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

STARTED_HERE = "THROUGHLINE_PROCESS_OF"  # set in a process that ends with its standard input
LOST_ANOTHER = 76  # exit code of a process that ended because another one is gone
LOOPBACK = "127.0.0.1"
CHECK_S = 0.1
# Seconds for the others to end by themselves after a failure, and to end on SIGTERM.
GRACE_S, TERMINATE_S = 15.0, 5.0
CHIEF_FIRST_S = 3.0  # after SIGTERM the others continue for this time, so that the chief ends first
LAST_LINES = 30


class Process:
    def __init__(self, command: Sequence[str], environment: Mapping[str, str], index: int) -> None:
        self.index, self.lines = index, deque[str](maxlen=LAST_LINES)
        silent = index > 0
        self.popen = psutil.Popen(
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
        return self.popen.poll()

    @property
    def is_stopped(self) -> bool:
        with contextlib.suppress(psutil.Error):
            return self.popen.status() == psutil.STATUS_STOPPED
        return False

    def _read(self) -> None:
        for line in self.popen.stdout or ():
            self.lines.append(line.decode(errors="replace").rstrip())


def run_processes(command: Sequence[str], count: int, *, gpus: Sequence[str] = ()) -> None:
    """Run a command in `count` processes that train together, and wait until all have succeeded.

    The processes find each other by TF_CONFIG; each uses one of the `gpus`. Raises ProcessLost if
    one was killed, froze or failed, and SystemExit if the chief failed, which has said why.
    """
    with reserve_addresses(count) as addresses, _started(command, addresses, gpus) as processes:
        while (codes := [one.code for one in processes]) != [0] * count:
            if any(codes):
                psutil.wait_procs([one.popen for one in processes], timeout=GRACE_S)
                _raise_failure(processes)
            time.sleep(CHECK_S)


@contextmanager
def reserve_addresses(count: int) -> Iterator[list[str]]:
    """Reserve ports of this host for the block, on which TensorFlow alone can still listen."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind((LOOPBACK, 0))
        yield [f"{LOOPBACK}:{one.getsockname()[1]}" for one in sockets]


def run_one_of_several(main: Callable[[], None]) -> None:
    """Run the main function of a process that may train with others, and ends with its parent.

    On SIGTERM the chief ends first: left alone, it would wait in its step and not tell MLflow.
    """
    if STARTED_HERE in os.environ:
        lifeline = os.dup(0)  # a copy of standard input, which other code may close
        threading.Thread(target=_end_when_closed, args=(lifeline,), daemon=True).start()
    try:
        worker = training_worker_from_tf_config(os.environ)
    except ImpossiblePlan:  # `main` reports it
        worker = TrainingWorker()
    if worker.index:
        signal.signal(signal.SIGTERM, _end_after_chief)
    try:
        main()
    except BaseException as error:
        if worker.count > 1:
            _exit_at_once(error)
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
    except KeyboardInterrupt:  # the terminal has sent SIGINT to all of them
        psutil.wait_procs([one.popen for one in processes], timeout=GRACE_S)
        raise
    finally:
        for ask, seconds in (("terminate", TERMINATE_S), ("kill", TERMINATE_S)):
            for one in processes:
                if one.code is None:
                    getattr(one.popen, ask)()
            psutil.wait_procs([one.popen for one in processes], timeout=seconds)


def _raise_failure(processes: Sequence[Process]) -> None:
    """Report the process that failed first, rather than those that failed because of it."""
    ends = [(*end, one) for one in processes if (end := _describe_end(one))]
    if not ends:
        return
    rank, how, first = min(ends, key=lambda end: (end[0], end[2].index))
    if first.index == 0 and rank > 0:  # the chief has printed the reason
        raise SystemExit(first.code)
    for line in first.lines:
        sys.stderr.write(f"process {first.index}: {line}\n")
    raise ProcessLost(
        f"process {first.index} of {len(processes)} {how}; the same command continues from the"
        " last checkpoint"
    )


def _describe_end(process: Process) -> tuple[int, str] | None:
    """Rank and describe an end, causes before consequences; None after success or while running."""
    code = process.code
    if code is None:
        return (0, "is frozen: a signal has stopped it") if process.is_stopped else None
    killed_by = -code if code < 0 else code - 128
    if code == TIMED_OUT or killed_by == signal.SIGALRM:
        return 2, "has waited too long for the others"
    if killed_by in {*signal.Signals}:
        return 0, f"was killed by {signal.Signals(killed_by).name}"
    if code == LOST_ANOTHER:
        return 3, "has lost another process"
    return (1, f"ended with code {code}") if code else None


def _exit_at_once(error: BaseException) -> None:
    """End this process with an error's exit code, without TensorFlow's wait for the others."""
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
