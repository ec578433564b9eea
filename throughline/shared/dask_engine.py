"""Run the work of a stage on a Dask cluster, with at most two pending items per worker thread."""

from __future__ import annotations

import logging
import pickle
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import dask
from distributed import Client, Future, KilledWorker, LocalCluster, Security, wait
from distributed.comm import CommClosedError

from throughline.shared.dask_task import Stage, describe_program, find_modules, run_task
from throughline.shared.errors import EngineFailed
from throughline.shared.scratch import Scratch

T = TypeVar("T")
R = TypeVar("R")
PER_THREAD = 2  # items that a thread processes or has waiting
ANSWER_S = 15.0  # time limit for a scheduler to answer
WORKERS_S = 60.0  # time limit for a cluster to have a worker
POLL_S = 1.0
ITEMS_SHOWN = 3
ATTEMPTS = 3  # for an item whose worker dies
LOCAL: dict[str, Any] = {
    "threads_per_worker": 1,
    "host": "127.0.0.1",
    "scheduler_kwargs": {"dashboard": False, "dashboard_address": "127.0.0.1:0"},  # any free port
    "worker_dashboard_address": None,
    "memory_limit": 0,
    "silence_logs": logging.CRITICAL,
}


@contextmanager
def open_cluster(*, address: str, workers: int) -> Iterator[DaskEngine]:
    """Connect to the scheduler at `address`, or start a local cluster of `workers` processes.

    A local cluster ends with the block. New TLS certificates keep other users out of it. Raises
    EngineFailed if the scheduler does not answer.
    """
    for name in [one for one in logging.root.manager.loggerDict if one.startswith("distributed")]:
        logging.getLogger(name).setLevel(logging.CRITICAL)  # only the stage's own error matters
    scratch = Scratch(Path.cwd())
    allowed = {"distributed.scheduler.allowed-failures": ATTEMPTS - 1}
    timeouts = {"distributed.comm.timeouts.connect": ANSWER_S}
    with dask.config.set(allowed | timeouts):
        if address:
            with _connect(address) as client:
                yield DaskEngine(client, address, scratch)
            return
        options = {**LOCAL, "n_workers": workers, "local_directory": str(scratch.new_folder())}
        security: Any = Security.temporary()
        with (
            LocalCluster(**options, security=security) as cluster,
            _connect(cluster.scheduler_address, security) as client,  # type: ignore[attr-defined]
        ):
            yield DaskEngine(client, "engine.workers", scratch)


@contextmanager
def _connect(address: str, security: Security | None = None) -> Iterator[Client]:
    try:
        client = Client(address, timeout=ANSWER_S, security=security)
    except (OSError, ValueError, TypeError) as error:  # TypeError: TLS without certificates
        start = "start one in the project's folder with `PYTHONPATH=. dask scheduler`, or "
        raise EngineFailed(
            f"engine.{'workers' if security else 'address'}: no Dask scheduler answers at {address}"
            f" within {ANSWER_S:.0f} s ({error}); {'' if security else start}leave `engine` out of"
            " params.yaml"
        ) from error
    try:
        yield client
    finally:
        with suppress(Exception):  # the scheduler may be gone
            client.close(timeout=POLL_S)


class DaskEngine:
    """Calls functions on a Dask cluster; messages call it `name`, its address or a settings key."""

    def __init__(self, client: Client, name: str, scratch: Scratch) -> None:
        self._client, self._name = client, name
        self._token, self._text = scratch.new_folder() / "token", secrets.token_hex(16)
        self._token.write_text(self._text)
        self._worked_at = time.monotonic()

    def __call__(
        self, function: Callable[[T], R], items: Iterable[T], *, workers: int
    ) -> Iterator[R]:
        """Yield function(item) for all items in order; the cluster decides the number of threads.

        Raises:
          EngineFailed: The cluster is gone, has had no workers for a minute, or lacks the program
            or the stage's files; or an item, which the message names, ended all its workers.
        """
        pickled, numbered = pickle.dumps(function), enumerate(items)
        modules = find_modules(pickled)
        stage = Stage(
            root=str(Path.cwd()),
            token=self._token,
            text=self._text,
            modules=modules,
            program=describe_program(modules),
        )
        pending: dict[Future, tuple[int, T]] = {}
        finished: dict[int, R] = {}
        following = 0
        self._worked_at = time.monotonic()
        try:
            while True:
                room = PER_THREAD * max(1, self._count_threads(pending)) - len(pending)
                for number, item in islice(numbered, max(0, room)):
                    task = run_task, stage, pickled, pickle.dumps(item)
                    pending[self._client.submit(*task, pure=False)] = number, item
                if not pending:
                    return
                with suppress(TimeoutError):
                    wait([*pending], timeout=POLL_S, return_when="FIRST_COMPLETED")
                for future in [one for one in pending if one.done()]:
                    number, item = pending.pop(future)
                    finished[number] = self._result(future, item)
                    future.release()
                while following in finished:
                    yield finished.pop(following)
                    following += 1
        except (CommClosedError, CancelledError) as error:
            raise self._lost() from error
        finally:
            with suppress(Exception):  # the scheduler may be gone
                self._client.cancel([*pending], force=True)

    def _count_threads(self, pending: Mapping[Future, tuple[int, Any]]) -> int:
        """Return the number of threads of all workers; EngineFailed after `WORKERS_S` with none."""
        try:
            threads_of: Any = self._client.nthreads()
        except Exception as error:  # the library raises various errors if the connection is closed
            raise self._lost() from error
        threads, now = sum(threads_of.values()), time.monotonic()
        if threads:
            self._worked_at = now
        elif now > self._worked_at + WORKERS_S:
            command = f"PYTHONPATH=. dask worker {self._name} --nthreads 1 --memory-limit 0"
            start = f"start some in the project's folder with `{command}`"
            remedy = start if "://" in self._name else "leave `engine` out of params.yaml"
            if pending:
                shown = ", ".join(str(item) for _, item in islice(pending.values(), ITEMS_SHOWN))
                remedy += f"; one of the pending items may end its worker: {shown}"
            raise EngineFailed(
                f"engine: the Dask cluster ({self._name}) has had no worker for {WORKERS_S:.0f} s;"
                f" {remedy}"
            )
        return threads

    def _lost(self) -> EngineFailed:
        return EngineFailed(
            f"engine: the Dask scheduler ({self._name}) is gone; finished work is kept, and the"
            " same command continues with the rest"
        )

    def _result(self, future: Future, item: object) -> Any:
        try:
            return future.result()
        except KilledWorker as error:
            raise EngineFailed(
                f"engine: {item} has ended {error.allowed_failures + 1} workers one after another;"
                " see their logs, or leave `engine` out of params.yaml, so that the stage runs in"
                " threads, and find the record that does so"
            ) from error
        except (ModuleNotFoundError, RuntimeError) as error:
            lacks = error if isinstance(error, ModuleNotFoundError) else error.__cause__
            if not isinstance(lacks, ModuleNotFoundError):
                raise
            who = "worker" if lacks is error else "scheduler"
            raise EngineFailed(
                f"engine: the cluster's {who} has no module {lacks.name}; start it in the project's"
                f" folder with its environment: `PYTHONPATH=. dask {who}`"
            ) from error
