"""Time limits of a process that trains with others: where these are gone or wait for something
else, TensorFlow would wait for them forever, within calls that nothing can interrupt.

In a train step other threads run, and one of them watches. While TensorFlow meets the other
processes it holds the GIL: then a small process watches, `python -m throughline.training.deadline`.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from throughline.plan.training_workers import TrainingWorker

CHECK_S = 0.2
CONNECT_S = 2.0
TIMED_OUT = 75  # exit code of a process that a deadline has ended


class Deadline:
    """Ends this process when what it waits for takes too long, with a line that says what.

    A thread watches; it starts with the first wait of a process that has others.
    """

    def __init__(self, worker: TrainingWorker | None = None, addresses: Sequence[str] = ()) -> None:
        self._worker, self._addresses = worker, addresses
        self._waits: tuple[float, float, str] | None = None  # since, seconds, for what
        self._watched = False

    def begin(self, seconds: float, what: str) -> None:
        """Begin to wait, instead of what was waited for before."""
        self._waits = (time.monotonic(), seconds, what)
        if not self._watched and self._worker:
            self._watched = True
            threading.Thread(target=self._watch, daemon=True).start()

    def end(self) -> None:
        """Wait no more."""
        self._waits = None

    @contextmanager
    def within(self, seconds: float, what: str) -> Iterator[None]:
        """Wait for the length of the block, then again for what was waited for before."""
        before = self._waits
        self.begin(seconds, what)
        try:
            yield
        finally:
            self._waits = before and (time.monotonic(), *before[1:])

    @contextmanager
    def start_within(self, seconds: float) -> Iterator[None]:
        """Meet the other processes in the block, in so many seconds, or end by SIGALRM."""
        command = [sys.executable, "-m", __name__, str(os.getpid()), str(seconds)]
        command += [str(self._worker), *self._others]
        with subprocess.Popen(command, stdin=subprocess.PIPE, cwd=Path(__file__).parents[2]) as one:
            try:
                yield
            finally:
                one.kill()

    @property
    def _others(self) -> list[str]:
        """The addresses of the others, each with which process it is of."""
        return [
            f"process {number} ({address})"
            for number, address in enumerate(self._addresses)
            if self._worker and number != self._worker.index
        ]

    def _watch(self) -> None:
        while True:
            time.sleep(CHECK_S)
            waits = self._waits
            if waits and time.monotonic() - waits[0] > waits[1]:
                say_why(str(self._worker), waits[1], waits[2], self._others)
                os._exit(TIMED_OUT)


def say_why(whose: str, seconds: float, what: str, others: Sequence[str]) -> None:
    """Print that a process has waited too long, and which of the others, each with its address in
    parentheses, nothing is heard of.
    """
    absent = [one for one in others if not answers(one.partition("(")[2].rstrip(")"))]
    found = (
        f"there is no answer from {', '.join(absent)}"
        if absent
        else "the others are there: they wait for something else, or for their input"
    )
    sys.stderr.write(
        f"ProcessLost: {whose} has waited {seconds:g} s for {what}; {found}. The limits are"
        " train.start_timeout_s and train.step_timeout_s; the same command goes on from the last"
        " checkpoint\n"
    )
    sys.stderr.flush()


def answers(address: str) -> bool:
    """Whether a program listens at host:port."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()
    except (OSError, ValueError):
        return False
    return True


def main() -> None:
    """End another process by SIGALRM if this one is not ended in time."""
    process, seconds, whose, *others = sys.argv[1:]
    ready, _, _ = select.select([sys.stdin], [], [], float(seconds))
    if not ready:  # else the process is gone
        say_why(whose, float(seconds), "the others to start", others)
        os.kill(int(process), signal.SIGALRM)


if __name__ == "__main__":
    main()
