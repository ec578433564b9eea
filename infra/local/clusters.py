"""Servers of the stack that ask for no password, started on request: tf.data service and Dask."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec

from flows.servers.services import (
    HOST,
    Running,
    ServerProcess,
    check_free,
    is_listening,
    run_servers,
)
from infra.local.stack_config import StackConfig
from throughline.shared.errors import ServiceFailed

# Dask reports an item once it has ended three workers; by default, Dask waits for a fourth.
ALLOWED_FAILURES = {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "2"}


def input_address(home: StackConfig) -> str:
    return f"{HOST}:{home.settings.input_port}"


def dask_address(home: StackConfig) -> str:
    return f"tcp://{HOST}:{home.settings.dask_port}"


@contextmanager
def input_service(home: StackConfig, workers: int) -> Iterator[list[Running]]:
    """Run a tf.data service during the block, unless `workers` is 0; yield its processes."""
    first = home.settings.input_port
    service = [sys.executable, "-m", "throughline.pipelines.service"]
    known = [f"--worker={HOST}:{first + number}" for number in range(1, workers + 1)]
    dispatcher = [*service, "dispatcher", *known, "--port"]
    worker = [*service, "worker", "--dispatcher", input_address(home), "--host", HOST, "--port"]
    servers = [("dispatcher", dispatcher), *_number("input-worker", worker, workers)]
    with _cluster(home, servers, "input-port", first) as running:
        yield running


@contextmanager
def dask_cluster(home: StackConfig, workers: int) -> Iterator[list[Running]]:
    """Run a Dask cluster during the block, unless `workers` is 0; yield its processes.

    Each worker has one thread, and is started again if it ends. ServiceFailed if Dask is not
    installed, a port is taken, or a process does not start.
    """
    if workers and find_spec("distributed") is None:
        raise ServiceFailed(
            "--dask-workers: Dask is not installed; `pip install 'distributed>=2026.8'`"
        )
    python = [sys.executable, "-m"]
    here = ["--host", HOST, "--no-dashboard", "--dashboard-address", f"{HOST}:0"]  # any free port
    scheduler = [*python, "distributed.cli.dask_scheduler", *here, "--port"]
    worker = [*python, "distributed.cli.dask_worker", dask_address(home), "--nthreads", "1"]
    worker += ["--memory-limit", "0", *here, "--local-directory", str(home.folder / "dask")]
    worker += ["--worker-port"]
    servers = [("dask-scheduler", scheduler), *_number("dask-worker", worker, workers)]
    with _cluster(home, servers, "dask-port", home.settings.dask_port) as running:
        yield running


def _number(name: str, command: list[str], workers: int) -> list[tuple[str, list[str]]]:
    return [(f"{name}-{number}", command) for number in range(1, workers + 1)]


@contextmanager
def _cluster(
    home: StackConfig, servers: Sequence[tuple[str, list[str]]], option: str, first: int
) -> Iterator[list[Running]]:
    """Run servers on ports from `first` on, which `option` sets; run none if only one is given.

    Each is given as the name of its log and a command that ends in the option for its port.
    """
    processes = [
        ServerProcess(
            name=name,
            command=[*command, str(port)],
            healthy=partial(is_listening, port),
            environment={**home.objects, **ALLOWED_FAILURES},
        )
        for port, (name, command) in enumerate(servers, start=first)
    ]
    if len(servers) == 1:
        processes = []
    check_free(option, *range(first, first + len(processes)))
    with run_servers(*processes, logs=home.logs) as running:
        yield running
