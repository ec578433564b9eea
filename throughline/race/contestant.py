"""A process per contestant, forked from one that has imported TensorFlow, and frozen between turns.

In a single process, contestants would fill their buffers and use cores during the others' turns;
that way AUTOTUNE looked three times as fast as it trains (docs/decisions, 6.1). A turn lasts as
long as the process is awake: the time for a batch that is ready at its end counts in this turn,
and the batch in the next. A contestant ends with the process that started it, however that process
ends, even while the contestant is frozen: the kernel kills it when its parent is gone. The parent
is this process, or a fork server that ends with it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from throughline.config.params import Params
from throughline.measurement.other_processes import list_children
from throughline.race.jobs import work
from throughline.results.race import Turn
from throughline.shared.data_url import is_address
from throughline.shared.failures import Failure
from throughline.shared.layout import from_here
from throughline.shared.limits import own_memory

SERVED = "throughline.race.training"  # the server imports it before it forks
TRAINING, MODEL_ALONE = f"{SERVED}:Training", f"{SERVED}:ModelAlone"
OPENING_S, ANSWER_S, END_S = 600.0, 120.0, 10.0
TURN_S, REMOTE_TURN_S = 0.15, 0.3  # the usual turns; slow steps make them longer
TRANSIENT = ("DiskFull", "DiskRefused", "OutOfMemory", "ServiceFailed", "ProcessLost")


class ContestantLost(Exception):
    """A contestant was killed, failed, or did not answer in time.

    `failure` is its own report, if it sent one; `late`: it was still working at the time limit.
    """

    def __init__(self, reason: str, failure: Failure | None = None, *, late: bool = False) -> None:
        super().__init__(reason)
        self.failure, self.late = failure, late

    @property
    def transient(self) -> bool:
        """Whether another try may succeed.

        Another try may succeed after a kill or a timeout, after errors of disks, memory and other
        processes, and after a bug of this program, which says nothing about the configuration.
        """
        failure = self.failure
        return failure is None or bool(failure.traceback) or failure.kind in TRANSIENT


class Contestant:
    """One or several processes that do a `job`, "module:name" (see `jobs.py`); a context manager.

    There is a process for each item of `arguments`; all are woken and frozen together. Their output
    goes to the file `log`.
    """

    def __init__(self, job: str, arguments: Sequence[tuple[Any, ...]], *, log: Path) -> None:
        self._processes = [_Process(job, each, log) for each in arguments]
        self._has_settled = set[str]()

    def __enter__(self) -> Contestant:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.kill()
        for each in self._processes:
            each.close()

    def wait_until_open(self, timeout_s: float = OPENING_S) -> Any:
        """Wait until the job is ready in each process, and return the first one's answer.

        Raises:
          ContestantLost: If a process failed, was killed, or was not ready in time.
        """
        first, *_ = [each.receive(timeout_s) for each in self._processes]
        return first

    def ask(self, order: str, *arguments: Any, timeout_s: float = ANSWER_S) -> list[Any]:
        """Call a method of the job in each process, and return the results.

        The processes are woken for the call and frozen afterwards.

        Raises:
          ContestantLost: If a process failed, was killed, or did not answer in time.
        """
        for each in self._processes:
            each.signal(signal.SIGCONT)
        for each in self._processes:
            each.send(order, arguments)
        answers = [each.receive(timeout_s) for each in self._processes]
        self.stop()
        return answers

    def take_turn(self, order: str = "train", *, turn_s: float = TURN_S) -> Turn:
        """Let the contestant train for about `turn_s`, or follow another `order`.

        The first turn with an order is run twice, and only the second one counts, because the first
        starts without the buffers that a turn leaves.

        Raises:
          ContestantLost: If it failed, was killed, or did not answer in time.
        """
        if order not in self._has_settled:
            self.ask(order, turn_s)
            self._has_settled.add(order)
        woken_at = time.perf_counter()
        examples: list[float] = self.ask(order, turn_s)
        return Turn(examples=sum(examples), seconds=time.perf_counter() - woken_at)

    def kill(self) -> None:
        """End the processes at once, even if they are frozen."""
        for each in self._processes:
            each.kill()

    def stop(self) -> None:
        """Freeze the processes, and the workers of a service that they have started."""
        for each in self._processes:
            each.signal(signal.SIGSTOP)

    def memory_bytes(self) -> int:
        """Return the memory of the processes and their service workers, without mapped files."""
        first = [each.process_id for each in self._processes]
        processes = {*first, *(child for each in first for child in list_children(each))}
        return sum(own_memory(Path(f"/proc/{each}")) for each in processes)

    @property
    def process(self) -> int:
        return self._processes[0].process_id


class _Process:
    def __init__(self, job: str, arguments: tuple[Any, ...], log: Path) -> None:
        self._log, context = log, _find_context()
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=work, args=(theirs, job, arguments, str(log)), daemon=True
        )
        self._process.start()
        theirs.close()

    @property
    def process_id(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self._process.join(END_S)
        self._pipe.close()

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def send(self, order: str, arguments: tuple[Any, ...]) -> None:
        try:
            self._pipe.send((order, arguments))
        except OSError:
            raise ContestantLost(self._describe_end()) from None

    def receive(self, timeout_s: float) -> Any:
        try:
            if not self._pipe.poll(timeout_s):
                raise ContestantLost(f"did not answer within {timeout_s:.0f} s", late=True)
            answer = self._pipe.recv()
        except (EOFError, OSError):
            raise ContestantLost(self._describe_end()) from None
        if isinstance(answer, Failure):
            reason = answer.first_line
            if answer.traceback:
                reason = (
                    "failed (a bug of this program unless the train stage fails in the same way):"
                    f" {reason} ({from_here(self._log)} has the traceback)"
                )
            raise ContestantLost(reason, answer)
        return answer

    def _describe_end(self) -> str:
        self._process.join(END_S)
        code = self._process.exitcode
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            return f"was killed by {name}" + (", perhaps for lack of memory" if code == -9 else "")  # noqa: PLR2004
        return "stopped answering" if code is None else f"ended with exit code {code}"


def _find_context() -> Any:
    """Return the context for starting processes: `fork`, or `forkserver`.

    Normally this process imports TensorFlow and forks. If TensorFlow has already started threads
    here, a server forks instead, because a forked process would lack those threads.
    """
    runtime = sys.modules.get("tensorflow.python.eager.context")
    at_work = runtime and runtime._context and runtime._context._context_handle
    if not at_work:
        import_module(SERVED)
        return multiprocessing.get_context("fork")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([SERVED])
    own, tempfile.tempdir = tempfile.tempdir, None  # a socket's path has at most 107 characters
    try:
        forkserver.ensure_running()
    finally:
        tempfile.tempdir = own
    return context


def usual_turn_s(params: Params) -> float:
    """Return the length of a turn [s]: longer with remote data, whose requests are never frozen."""
    remote = params.storage.url or is_address(params.data.path)
    return REMOTE_TURN_S if remote else TURN_S


def do_once(job: str, *arguments: Any, log: Path, timeout_s: float = OPENING_S) -> Any:
    """Call a job, such as a function, in a process of its own, and return its first answer.

    Raises:
      ContestantLost: If it failed, was killed, or took too long.
    """
    with Contestant(job, [arguments], log=log) as contestant:
        return contestant.wait_until_open(timeout_s)
