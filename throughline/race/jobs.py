"""The other side of a contestant: a process that does one job for the race, order by order; and
the values that both sides exchange.

`work` is what the process runs: it imports its job, and with it TensorFlow, which nothing here
does.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from throughline.config.params import Params
from throughline.settings import PipelineConfig
from throughline.shared.allocator import raise_malloc_thresholds
from throughline.shared.failures import describe_failure
from throughline.shared.parent_death import end_with_parent


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What a contestant is to train: a configuration by its name, in a project. One of several
    processes that train together has `environment` variables of its own.
    """

    params: Params
    root: Path
    name: str
    config: PipelineConfig
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Opened:
    """What a contestant says when it is open: whether it has a cache, which is to be filled before
    it races, whether it loads what it reads into memory, which is to be timed, and when its first
    batch came.
    """

    has_cache: bool = False
    loads: bool = False
    first_batch_s: float | None = None


def work(pipe: Connection, job: str, arguments: tuple[Any, ...], log: str) -> None:
    """Do the `job` "module:name": send what it says when it is `opened`, of a function its result;
    then answer each order, the name of a method and its arguments. A failure is the last answer.
    """
    _live_for_the_race()
    raise_malloc_thresholds()
    try:
        _print_to(log)
        done = resolve_name(job)(*arguments)
        pipe.send(getattr(done, "opened", done))
        while True:
            order, values = pipe.recv()
            pipe.send(getattr(done, order)(*values))
    except EOFError:  # the race has ended
        return
    except Exception as error:  # noqa: BLE001 - whatever it is, the race goes on without this one
        failure = describe_failure(error)
        with suppress(OSError):  # of a full disk, which may be the failure
            sys.stderr.write(f"{failure.traceback or failure}\n")
            sys.stderr.flush()
        pipe.send(failure)


def _live_for_the_race() -> None:
    """Die with the process that forked this one, even while this one is stopped, and let a server
    of forks die with the race. A session of its own keeps the terminal's Ctrl-C away, since the
    race ends its contestants itself, and is what is frozen between turns, with the workers of a
    service.
    """
    end_with_parent()
    # By these a process that a server has forked could start others; open here, they would keep the
    # server and the tracker alive when the race is gone.
    server: Any = forkserver._forkserver  # pyright: ignore[reportAttributeAccessIssue]
    tracker: Any = resource_tracker._resource_tracker  # pyright: ignore[reportAttributeAccessIssue]
    for descriptor in (server._forkserver_alive_fd, tracker._fd):
        if descriptor is not None:
            os.close(descriptor)
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _print_to(log: str) -> None:
    """Write both standard streams to a file."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)
