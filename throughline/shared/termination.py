"""SIGTERM as an end in order: what a block does when it is left by an error is done. Ctrl-C as an
end without a traceback.
"""

from __future__ import annotations

import signal
import sys
import time
from types import TracebackType

SAME_END_S = 5.0  # supervisors give a process a few seconds more, and then kill it


def exit_on_sigterm() -> None:
    """Have SIGTERM raise SystemExit, with the exit code of a process that it has ended.

    Further ones of the next seconds are of the same end: whoever ends a group of processes asks
    what is left of it again, which would cut short what the first has begun.
    """
    ends_at: list[float] = []

    def end(number: int, _: object) -> None:
        now = time.monotonic()
        if ends_at and now - ends_at[-1] < SAME_END_S:
            return
        ends_at.append(now)
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)


def say_little_of_interrupts() -> None:
    """Have Ctrl-C end a command that Python is starting by `-m` with one line from now on, in the
    seconds of its imports, too; where a package is imported otherwise nothing changes.
    """
    if sys.argv[:1] == ["-m"]:
        sys.excepthook = _say


def _say(kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.stderr.write("stopped\n")
    else:
        sys.__excepthook__(kind, error, at)
