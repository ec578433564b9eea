"""Runs a job, which takes orders from the race, in the process of a contestant.

Also holds the values that both sides exchange. Only the job that `work` imports needs TensorFlow.
"""

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
from throughline.results.race import Cost
from throughline.settings import PipelineConfig
from throughline.shared.allocator import raise_malloc_thresholds
from throughline.shared.failures import describe_failure
from throughline.shared.termination import end_with_parent


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A configuration for a process of a contestant, which sets `environment` in `os.environ`."""

    params: Params
    root: Path
    name: str
    config: PipelineConfig
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Opened:
    """The first answer of a contestant: whether it has a cache, or loads data into memory."""

    has_cache: bool = False
    loads: bool = False
    first_batch_s: float | None = None

    @property
    def order(self) -> str:
        """The order for the work that a training does once; "" if there is none."""
        return "fill" if self.has_cache else "load" if self.loads else ""

    def cost(self, seconds: float, *, prepare_s: float = 0.0) -> Cost:
        """Return the cost of a training whose `order` took `seconds`, besides `prepare_s`."""
        if self.has_cache:
            return Cost(prepare_s=prepare_s, fill_s=seconds)
        return Cost(prepare_s=prepare_s + seconds)


def work(pipe: Connection, job: str, arguments: tuple[Any, ...], log: str) -> None:
    """Call the `job` "module:name", and answer orders until the pipe is closed.

    The first answer is the job's result, or the `opened` of that. An order is the name of a method
    of the result, with arguments. A failure is the last answer.
    """
    _live_for_the_race()
    raise_malloc_thresholds()
    try:
        with Path(log).open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        done = resolve_name(job)(*arguments)
        pipe.send(getattr(done, "opened", done))
        while True:
            order, values = pipe.recv()
            pipe.send(getattr(done, order)(*values))
    except EOFError:  # the race has ended
        return
    except Exception as error:  # noqa: BLE001 - whatever it is, the race continues without it
        failure = describe_failure(error)
        with suppress(OSError):  # the disk may be full, which may be the failure
            sys.stderr.write(f"{failure.traceback or failure}\n")
            sys.stderr.flush()
        pipe.send(failure)


def _live_for_the_race() -> None:
    end_with_parent()
    # A forked process inherits these to start others. If they stayed open, the fork server and the
    # resource tracker would outlive the race.
    server: Any = forkserver._forkserver  # pyright: ignore[reportAttributeAccessIssue]
    tracker: Any = resource_tracker._resource_tracker  # pyright: ignore[reportAttributeAccessIssue]
    for descriptor in (server._forkserver_alive_fd, tracker._fd):
        if descriptor is not None:
            os.close(descriptor)
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
