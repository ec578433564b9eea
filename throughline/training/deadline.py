"""Time limits for a process that trains with others.

If another process is gone or stuck, TensorFlow waits for it forever, in calls that cannot be
interrupted. A thread enforces the limit. While TensorFlow connects it holds the GIL, so a small
process does: `python -m throughline.training.deadline`.
"""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from throughline.plan.training_workers import TrainingWorker

CHECK_S = 0.2
CONNECT_S = 2.0
TIMED_OUT = 75  # exit code of a process that exceeded its time limit


class Deadline:
    """Ends this process, with a message, if it waits longer than a limit for the others."""

    def __init__(self, worker: TrainingWorker | None = None, addresses: Sequence[str] = ()) -> None:
        self._worker, self._addresses = worker, addresses
        self._waits: tuple[float, float, str] | None = None  # start, limit [s], description
        self._watched = False

    def begin(self, seconds: float, what: str) -> None:
        self._waits = (time.monotonic(), seconds, what)
        if not self._watched and self._worker:
            self._watched = True
            threading.Thread(target=self._watch, daemon=True).start()

    def end(self) -> None:
        self._waits = None

    @contextmanager
    def within(self, seconds: float, what: str) -> Iterator[None]:
        """End this process if the block exceeds `seconds`; then restart the enclosing limit."""
        before = self._waits
        self.begin(seconds, what)
        try:
            yield
        finally:
            self._waits = before and (time.monotonic(), *before[1:])

    @contextmanager
    def start_within(self, seconds: float) -> Iterator[None]:
        """Let SIGALRM end this process if connecting to others, in the block, exceeds `seconds`."""
        command = [sys.executable, "-m", __name__, str(os.getpid()), str(seconds)]
        command += [str(self._worker), *self._others]
        with subprocess.Popen(command, stdin=subprocess.PIPE, cwd=Path(__file__).parents[2]) as one:
            try:
                yield
            finally:
                one.kill()

    @property
    def _others(self) -> list[str]:
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
    """Print that process `whose` waited too long, and which of the `others` do not answer."""
    absent = [one for one in others if not answers(one.partition("(")[2].rstrip(")"))]
    found = "the others answer: they wait for something else, or for their input"
    if absent:
        found = f"there is no answer from {', '.join(absent)}"
    sys.stderr.write(
        f"ProcessLost: {whose} has waited {seconds:g} s for {what}; {found}. The limits are"
        " train.start_timeout_s and train.step_timeout_s; the same command continues from the last"
        " checkpoint\n"
    )
    sys.stderr.flush()


def answers(address: str) -> bool:
    """Return whether a program listens at an address, host:port."""
    host, _, port = address.rpartition(":")
    with suppress(OSError, ValueError):
        socket.create_connection((host, int(port)), CONNECT_S).close()
        return True
    return False


def main() -> None:
    """End another process by SIGALRM, unless this process or the other ends within the limit."""
    process, seconds, whose, *others = sys.argv[1:]
    ready, _, _ = select.select([sys.stdin], [], [], float(seconds))
    if not ready:  # if stdin is closed, the other process is gone
        say_why(whose, float(seconds), "the others to start", others)
        os.kill(int(process), signal.SIGALRM)


if __name__ == "__main__":
    main()
