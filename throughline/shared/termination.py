"""SIGTERM as an end in order: what a block does when it is left by an error is done."""

from __future__ import annotations

import signal
import time

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
