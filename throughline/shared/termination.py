"""Ends a process: orderly after SIGTERM, with one line after Ctrl-C, or with its parent."""

import ctypes
import os
import signal
import sys
import time
from types import TracebackType

PR_SET_PDEATHSIG = 1
SAME_END_S = 5.0  # supervisors wait a few seconds before they kill


def exit_on_sigterm() -> None:
    """Let SIGTERM raise SystemExit with its exit code; ignore repeats within seconds."""
    ends_at: list[float] = []

    def end(number: int, _: object) -> None:
        now = time.monotonic()
        if ends_at and now - ends_at[-1] < SAME_END_S:
            return
        ends_at.append(now)
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)


def report_interrupts_briefly() -> None:
    """Let Ctrl-C end a command started by `python -m` with one line, also during its imports."""
    if sys.argv[:1] == ["-m"]:
        sys.excepthook = _say


def _say(kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.stderr.write("stopped\n")
    else:
        sys.__excepthook__(kind, error, at)


def end_with_parent() -> None:
    """Let the kernel kill this process, even if stuck, when the thread that started it ends."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent had already ended
        os._exit(1)
