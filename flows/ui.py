"""`make ui`: a Prefect server, a worker with the deployments, and MLflow's UI, on this machine alone. Ctrl-C stops all three.

Everything listens on loopback, keeps its state in SQLite files unless told otherwise, and writes its log to .throughline/logs/.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import requests
import typer

from flows.command import quiet
from flows.workspace import HOME
from tasks.errors import ServiceFailed, told_plainly

HOST, POOL = "127.0.0.1", "throughline"
PATIENCE_S = 120.0
LAST_LINES = 15


@dataclass(frozen=True, kw_only=True)
class Service:
    """A process that serves, and how to tell that it does."""

    name: str
    command: Sequence[str]
    healthy: Callable[[], bool]


@dataclass(frozen=True, kw_only=True)
class Running:
    """A service's process, under its supervisor, and its log."""

    service: Service
    process: subprocess.Popen
    log: Path

    def check(self) -> None:
        """Raise ServiceFailed if it has ended, with the last lines of its log."""
        if self.process.poll() is not None:
            tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-LAST_LINES:])
            raise ServiceFailed(f"{self.service.name} ended with exit code {self.process.returncode}; {self.log} ends with:\n{tail}")


@contextmanager
def serving(service: Service, environment: Mapping[str, str]) -> Iterator[Running]:
    """Start a service and wait until it is healthy; it ends with the block, and with this process, whatever happens to that.

    Raises:
      ServiceFailed: it ended, or was not healthy in time.
    """
    log = Path(HOME) / "logs" / f"{service.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "flows.supervise", *service.command],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    running = Running(service=service, process=process, log=log)
    try:
        _wait_until(service, running)
        yield running
    finally:
        if process.stdin:
            process.stdin.close()
        process.wait()


def _wait_until(service: Service, running: Running) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not service.healthy():
        running.check()
        if time.monotonic() > deadline:
            raise ServiceFailed(f"{service.name} was not healthy within {PATIENCE_S:.0f} s; its log is {running.log}")
        time.sleep(0.3)


@contextmanager
def stack(*, prefect_port: int, mlflow_port: int, store: str, runs_at_once: int) -> Iterator[tuple[dict[str, str], Callable[[], None]]]:
    """All three services; yields their addresses by name, and a function that looks after them, to be called now and then.

    It starts a worker that has died again; what it was running can be retried. Without its servers nothing goes on.

    Raises:
      ServiceFailed: a port is taken, or something did not start.
    """
    for name, port in (("prefect", prefect_port), ("mlflow", mlflow_port)):
        _check_free(name, port)
    server, tracking = f"http://{HOST}:{prefect_port}", f"http://{HOST}:{mlflow_port}"
    environment = {
        "PREFECT_API_URL": f"{server}/api",
        "PREFECT_UI_URL": server,
        "MLFLOW_TRACKING_URI": tracking,
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
    }
    prefect, python = [sys.executable, "-m", "prefect"], [sys.executable, "-m"]
    artifacts = ["--artifacts-destination", str(Path("mlartifacts").resolve())]
    services = (
        Service(
            name="prefect-server",
            command=[*prefect, "server", "start", "--host", HOST, "--port", str(prefect_port)],
            healthy=lambda: _answers(f"{server}/api/health"),
        ),
        Service(
            name="mlflow",
            command=[
                *python,
                "mlflow",
                "server",
                "--host",
                HOST,
                "--port",
                str(mlflow_port),
                "--backend-store-uri",
                store,
                *artifacts,
                "--workers",
                "1",
            ],
            healthy=lambda: _answers(f"{tracking}/health"),
        ),
        Service(
            name="worker",
            command=[*prefect, "worker", "start", "--pool", POOL, "--type", "process", "--limit", str(runs_at_once)],
            healthy=lambda: _has_worker(f"{server}/api"),
        ),
    )
    with ExitStack() as open_services:
        running = [open_services.enter_context(serving(service, environment)) for service in services[:2]]
        deploy(environment)
        running.append(open_services.enter_context(serving(services[2], environment)))

        def look_after() -> None:
            for place, one in enumerate(running):
                if one.service is services[2] and one.process.poll() is not None:
                    typer.echo(f"the worker ended with exit code {one.process.returncode}; starting it again")
                    running[place] = open_services.enter_context(serving(one.service, environment))
                else:
                    one.check()

        yield {"Prefect": server, "MLflow": tracking}, look_after


def deploy(environment: Mapping[str, str]) -> None:
    """Make the work pool and the deployments of prefect.yaml; their forms offer what params.yaml holds now.

    Raises:
      ServiceFailed: with what Prefect said.
    """
    prefect = [sys.executable, "-m", "prefect", "--no-prompt"]
    for command in (["work-pool", "create", POOL, "--type", "process", "--overwrite"], ["deploy", "--all"]):
        done = subprocess.run([*prefect, *command], env={**os.environ, **environment}, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ServiceFailed(f"`prefect {' '.join(command)}` failed:\n{(done.stdout + done.stderr).strip()[-2000:]}")


def _answers(url: str) -> bool:
    try:
        return requests.get(url, timeout=2).ok
    except requests.RequestException:
        return False


def _has_worker(api: str) -> bool:
    try:
        found = requests.post(f"{api}/work_pools/{POOL}/workers/filter", json={}, timeout=2)
    except requests.RequestException:
        return False
    return found.ok and any(worker["status"] == "ONLINE" for worker in found.json())


def _check_free(name: str, port: int) -> None:
    with socket.socket() as probe:
        if probe.connect_ex((HOST, port)) == 0:
            raise ServiceFailed(f"port {port} is taken, perhaps by another `make ui`; choose another with --{name}-port")


def command(
    prefect_port: Annotated[int, typer.Option(help="of the Prefect server and its UI")] = 4200,
    mlflow_port: Annotated[int, typer.Option(help="of MLflow's server and its UI")] = 5000,
    store: Annotated[str, typer.Option(help="MLflow's backend store; default: the project's SQLite file")] = "sqlite:///mlflow.db",
    runs_at_once: Annotated[int, typer.Option(min=1, help="flow runs that the worker takes at once; measured stages take turns all the same")] = 2,
) -> None:
    """Start the Prefect server, a worker with the deployments, and MLflow; print where they are; stop them on Ctrl-C."""
    quiet()
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with told_plainly():
        typer.echo("starting the Prefect server, MLflow and a worker …")
        with stack(prefect_port=prefect_port, mlflow_port=mlflow_port, store=store, runs_at_once=runs_at_once) as (addresses, look_after):
            typer.echo(f"  Prefect   {addresses['Prefect']}/deployments   start a run here: training, comparison, ingest-and-shard")
            typer.echo(f"  MLflow    {addresses['MLflow']}               compare runs here")
            typer.echo(f"  worker    pool {POOL}, {runs_at_once} runs at once      logs in {HOME}/logs/")
            typer.echo(
                f"To run flows from a terminal here: export PREFECT_API_URL={addresses['Prefect']}/api MLFLOW_TRACKING_URI={addresses['MLflow']}"
            )
            typer.echo("Ctrl-C stops all three.")
            while not ended.wait(1.0):
                look_after()
        typer.echo("stopped")


if __name__ == "__main__":
    typer.run(command)
