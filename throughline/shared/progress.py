"""Progress of long work, and the messages of stages: results, facts, problems and details.

Progress is a bar on a terminal, and a line every few seconds in a log. A flow's terminal shows
results, facts and problems, which begin with their marks; details are in its log.
"""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")
LINE_EVERY_S = 5.0
RESULT_MARK, FACT_MARK, PROBLEM_MARK = "✓ ", "· ", "! "


def progress(items: Iterable[T], *, total: int, label: str, unit: str = "examples") -> Iterator[T]:
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


def in_threads(
    function: Callable[[T], R], items: Iterable[T], *, workers: int, ahead: int | None = None
) -> Iterator[R]:
    """Yield function(item) in order from `workers` threads; a failure cancels pending items.

    At most `ahead` results wait to be consumed; by default, all items are queued before the first.
    """
    pool, pending = ThreadPoolExecutor(workers), deque[Future[R]]()
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if ahead is not None and len(pending) > ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def echo(message: str) -> None:
    """Print a line and flush it, so that a flow shows it while the stage runs."""
    print(message, flush=True)


def echo_result(message: str) -> None:
    """Print a stage's result, in one line; a flow adds stage and time."""
    echo(f"{RESULT_MARK}{message}")


def echo_fact(message: str) -> None:
    """Print a fact about a stage's work; a flow shows at most three such lines below the result."""
    echo(f"{FACT_MARK}{message}")


def echo_problem(message: str) -> None:
    """Print a problem: something was left out, is undecided, or could not be done."""
    echo(f"{PROBLEM_MARK}{message}")


def note(message: str) -> None:
    """Print a line to standard error, for commands whose result is on standard output."""
    print(message, file=sys.stderr, flush=True)
