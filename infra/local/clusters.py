"""Servers of the stack that ask for no password, started on request: tf.data service and Dask."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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

# Dask names an item once it has ended three workers; by default it allows four.
ALLOWED_FAILURES = {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "2"}


def input_address(home: StackConfig) -> str:
    return f"{HOST}:{home.settings.input_port}"


def dask_address(home: StackConfig) -> str:
    return f"tcp://{HOST}:{home.settings.dask_port}"


@contextmanager
def input_service(home: StackConfig, workers: int) -> Iterator[list[Running]]:
    """Run a tf.data service during the block, unless `workers` is 0; yield its processes."""
    if not workers:
        yield []
        return
    first = home.settings.input_port
    ports = range(first + 1, first + 1 + workers)
    check_free("input-port", first, *ports)
    service = [sys.executable, "-m", "throughline.pipelines.service"]
    known = [option for port in ports for option in ("--worker", f"{HOST}:{port}")]
    dispatcher = [*service, "dispatcher", *known, "--port"]
    worker = [*service, "worker", "--dispatcher", input_address(home), "--host", HOST, "--port"]
    servers = [_server("dispatcher", dispatcher, first, home)]
    for place, port in enumerate(ports, start=1):
        servers.append(_server(f"input-worker-{place}", worker, port, home))
    with run_servers(*servers, logs=home.logs) as running:
        yield running


@contextmanager
def dask_cluster(home: StackConfig, workers: int) -> Iterator[list[Running]]:
    """Run a Dask cluster during the block, unless `workers` is 0; yield its processes.

    Each worker has one thread, and is started again if it ends.

    Raises:
      ServiceFailed: Dask is not installed, a port is taken, or a process did not start.
    """
    if not workers:
        yield []
        return
    if find_spec("distributed") is None:
        raise ServiceFailed(
            "--dask-workers: Dask is not installed; `pip install 'distributed>=2026.8'`"
        )
    first = home.settings.dask_port
    ports = range(first + 1, first + 1 + workers)
    check_free("dask-port", first, *ports)
    python = [sys.executable, "-m"]
    here = ["--host", HOST, "--no-dashboard", "--dashboard-address", f"{HOST}:0"]  # any free port
    scheduler = [*python, "distributed.cli.dask_scheduler", *here, "--port"]
    worker = [*python, "distributed.cli.dask_worker", dask_address(home), "--nthreads", "1"]
    worker += ["--memory-limit", "0", *here, "--local-directory", str(home.folder / "dask")]
    worker += ["--worker-port"]
    servers = [_server("dask-scheduler", scheduler, first, home)]
    for place, port in enumerate(ports, start=1):
        servers.append(_server(f"dask-worker-{place}", worker, port, home))
    with run_servers(*servers, logs=home.logs) as running:
        yield running


def _server(name: str, command: Sequence[str], port: int, home: StackConfig) -> ServerProcess:
    """Return a server with the name of its log; its command ends in the option for its port."""
    return ServerProcess(
        name=name,
        command=[*command, str(port)],
        healthy=lambda: is_listening(port),
        environment={**home.objects, **ALLOWED_FAILURES},
    )
