"""Progress of long work, a bar on a terminal and a line every few seconds in a log, and what a
stage says: its one-line result, what is wrong, and details.

A flow's terminal shows results, facts and problems, which begin with their marks; details are in
its log.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from subprocess import PIPE, Popen
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")
LINE_EVERY_S = 5.0
RESULT_MARK, FACT_MARK, PROBLEM_MARK = "✓ ", "· ", "! "
# How lines of TensorFlow's start-up chatter begin, which no setting silences.
TENSORFLOW_CHATTER = (
    r"[IWE][0-9]{4} [0-9]{2}:[0-9]{2}:|WARNING: All log messages before absl"
    r"|To enable the following instructions"
)


def progress(items: Iterable[T], *, total: int, label: str, unit: str = "examples") -> Iterator[T]:
    """Yield the items while showing how many of `total` have passed."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import track

        yield from track(items, description=label, total=total, console=Console(stderr=True))
        return
    started_at = last = time.monotonic()
    for count, item in enumerate(items, start=1):
        yield item
        now = time.monotonic()
        if now - last >= LINE_EVERY_S:
            echo(f"{label}: {count:,} of {total:,} {unit}, {count / (now - started_at):,.0f}/s")
            last = now


def in_threads(function: Callable[[T], R], items: Iterable[T], *, workers: int) -> Iterator[R]:
    """Yield function(item) for all items in their order, by `workers` threads; pending items
    are cancelled when one fails.
    """
    pool = ThreadPoolExecutor(workers)
    try:
        yield from pool.map(function, items)
    finally:
        pool.shutdown(cancel_futures=True)


def in_threads_ahead(
    function: Callable[[T], R], items: Iterable[T], *, workers: int
) -> Iterator[R]:
    """As `in_threads`, of which no more than `workers` results are waiting to be yielded."""
    pool, pending = ThreadPoolExecutor(workers), deque[Future[R]]()
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) > workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def echo(message: str) -> None:
    """Print one line of progress or detail at once, so that a flow sees it while the stage still
    runs.
    """
    print(message, flush=True)


def echo_result(message: str) -> None:
    """Print what a stage has made, in one line of words and figures; a flow adds stage and time."""
    echo(f"{RESULT_MARK}{message}")


def echo_fact(message: str) -> None:
    """Print what a stage has found or done by itself, for people to check; a flow shows it below
    the result, in three lines at most.
    """
    echo(f"{FACT_MARK}{message}")


def echo_problem(message: str) -> None:
    """Print what somebody should know of: what was left out, is undecided, or could not be done."""
    echo(f"{PROBLEM_MARK}{message}")


@contextmanager
def without_tensorflow_chatter() -> Iterator[None]:
    """Keep TensorFlow's start-up chatter from this process' standard error for the length of the
    block, of a command whose messages people read. What else libraries write there passes; Python's
    own stays with the terminal. Where something has replaced `sys.stderr`, nothing is changed.
    """
    if sys.stderr is not sys.__stderr__:
        yield
        return
    own = os.dup(2)
    # A process of its own: what a library writes before it aborts arrives as well. Without `site`
    # it starts in 10 ms.
    command = [sys.executable, "-ISE", str(Path(__file__).with_name("line_filter.py"))]
    with (
        os.fdopen(own, "w", buffering=1) as stderr,
        Popen(
            [*command, TENSORFLOW_CHATTER], stdin=PIPE, stdout=own, start_new_session=True
        ) as remaining,
        redirect_stderr(stderr),
    ):
        try:
            if remaining.stdin:
                os.dup2(remaining.stdin.fileno(), 2)
            yield
        finally:
            os.dup2(own, 2)


def note(message: str) -> None:
    """Print one line to standard error, of a command whose result is on standard output."""
    print(message, file=sys.stderr, flush=True)
