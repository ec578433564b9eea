"""Servers of the stack that ask for no password, started on request: tf.data service and Dask."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
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
    for port in (first, *ports):
        check_free({"input-port": port})
    roles = {
        "dispatcher": [
            "dispatcher",
            "--port",
            str(first),
            *(option for port in ports for option in ("--worker", f"{HOST}:{port}")),
        ]
    }
    joining = ["worker", "--dispatcher", input_address(home), "--host", HOST, "--port"]
    roles |= {
        f"input-worker-{place}": [*joining, str(port)] for place, port in enumerate(ports, start=1)
    }
    module = "throughline.pipelines.service"
    with _run(
        {name: [module, *role] for name, role in roles.items()}, [first, *ports], home, {}
    ) as running:
        yield running


@contextmanager
def dask_cluster(home: StackConfig, workers: int) -> Iterator[list[Running]]:
    """Run a Dask cluster during the block, unless `workers` is 0; yield its processes.

    Each worker has one thread, and is started again if it ends.

    Raises:
      ServiceFailed: Dask is not installed, or the port is taken.
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
    for port in (first, *ports):
        check_free({"dask-port": port})
    here = ["--host", HOST, "--no-dashboard", "--dashboard-address", f"{HOST}:0"]  # any free port
    scheduler = ["distributed.cli.dask_scheduler", "--port", str(first), *here]
    worker = ["distributed.cli.dask_worker", dask_address(home), "--nthreads", "1"]
    worker += ["--memory-limit", "0", *here, "--local-directory", str(home.folder / "dask")]
    worker += ["--worker-port"]
    commands = {"dask-scheduler": scheduler} | {
        f"dask-worker-{place}": [*worker, str(port)] for place, port in enumerate(ports, start=1)
    }
    with _run(commands, [first, *ports], home, ALLOWED_FAILURES) as running:
        yield running


@contextmanager
def _run(
    commands: Mapping[str, Sequence[str]],
    ports: Sequence[int],
    home: StackConfig,
    variables: Mapping[str, str],
) -> Iterator[list[Running]]:
    """Run Python modules as servers, keyed by the names of their logs, each with a port."""
    servers = (
        ServerProcess(
            name=name,
            command=[sys.executable, "-m", *command],
            healthy=partial(is_listening, port),
            environment={**home.objects, **variables},
        )
        for (name, command), port in zip(commands.items(), ports, strict=True)
    )
    with run_servers(*servers, logs=home.logs) as running:
        yield running
