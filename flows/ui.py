"""`make ui`: a Prefect server, a worker with the deployments, and MLflow's UI, on this machine alone. Ctrl-C stops all three.

Everything listens on loopback, keeps its state in SQLite files unless told otherwise, and writes its log to .throughline/logs/.
"""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import requests
import typer

from flows.command import quiet
from flows.services import HOST, Service, answers, check_free, serving
from flows.workspace import HOME
from tasks.errors import ServiceFailed, told_plainly

POOL = "throughline"
LOGS = Path(HOME) / "logs"
MLFLOW_SQLITE = "sqlite:///mlflow.db"


@dataclass(frozen=True, kw_only=True)
class Access:
    """Where the servers listen and keep their state, and what their environments hold: databases, secrets.

    `server` goes to the Prefect server alone, `tracking` to MLflow alone, `client` to everybody who asks them, the stages included.
    """

    prefect_port: int
    mlflow_port: int
    store: str = MLFLOW_SQLITE
    artifacts: str = "mlartifacts"
    mlflow_options: tuple[str, ...] = ()
    server: Mapping[str, str] = field(default_factory=dict)
    tracking: Mapping[str, str] = field(default_factory=dict)
    client: Mapping[str, str] = field(default_factory=dict)

    @property
    def prefect(self) -> str:
        """Address of the Prefect server and its UI."""
        return f"http://{HOST}:{self.prefect_port}"

    @property
    def mlflow(self) -> str:
        """Address of MLflow's server and its UI."""
        return f"http://{HOST}:{self.mlflow_port}"

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to talk to both servers."""
        return {
            "PREFECT_API_URL": f"{self.prefect}/api",
            "PREFECT_UI_URL": self.prefect,
            "MLFLOW_TRACKING_URI": self.mlflow,
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            **self.client,
        }


@contextmanager
def servers(access: Access, *, runs_at_once: int) -> Iterator[Callable[[], None]]:
    """Both servers and a worker with the deployments; yields a function that looks after them, to be called now and then.

    It starts a worker that has died again; what it was running can be retried. Without its servers nothing goes on.

    Raises:
      ServiceFailed: a port is taken, or something did not start.
    """
    check_free({"prefect-port": access.prefect_port, "mlflow-port": access.mlflow_port})
    prefect, python = [sys.executable, "-m", "prefect"], [sys.executable, "-m"]
    artifacts = access.artifacts if "://" in access.artifacts else str(Path(access.artifacts).resolve())
    listening = ["--host", HOST, "--port"]
    server = Service(
        name="prefect-server",
        command=[*prefect, "server", "start", *listening, str(access.prefect_port)],
        healthy=lambda: answers(f"{access.prefect}/api/health"),
        environment={**access.environment, **access.server},
    )
    stores = ["--backend-store-uri", access.store, "--artifacts-destination", artifacts]
    tracking = Service(
        name="mlflow",
        command=[*python, "mlflow", "server", *listening, str(access.mlflow_port), *stores, "--workers", "1", *access.mlflow_options],
        healthy=lambda: answers(f"{access.mlflow}/health"),
        environment={**access.environment, **access.tracking},
    )
    worker = Service(
        name="worker",
        command=[*prefect, "worker", "start", "--pool", POOL, "--type", "process", "--limit", str(runs_at_once)],
        healthy=lambda: _has_worker(access),
        environment=access.environment,
    )
    with ExitStack() as open_services:
        running = open_services.enter_context(serving(server, tracking, logs=LOGS))
        deploy(access.environment)
        running += open_services.enter_context(serving(worker, logs=LOGS))

        def look_after() -> None:
            for place, one in enumerate(running):
                if one.service is worker and one.process.poll() is not None:
                    typer.echo(f"the worker ended with exit code {one.process.returncode}; starting it again")
                    running[place] = open_services.enter_context(serving(worker, logs=LOGS))[0]
                else:
                    one.check()

        yield look_after


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


def _has_worker(access: Access) -> bool:
    known = access.client.get("PREFECT_API_AUTH_STRING")
    headers = {"Authorization": f"Basic {base64.b64encode(known.encode()).decode()}"} if known else {}
    try:
        found = requests.post(f"{access.prefect}/api/work_pools/{POOL}/workers/filter", json={}, headers=headers, timeout=2)
    except requests.RequestException:
        return False
    return found.ok and any(worker["status"] == "ONLINE" for worker in found.json())


def until_stopped(look_after: Callable[[], None]) -> None:
    """Look after what runs, once a second, until Ctrl-C or SIGTERM."""
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    while not ended.wait(1.0):
        look_after()


PrefectPort = Annotated[int, typer.Option(help="of the Prefect server and its UI")]
MlflowPort = Annotated[int, typer.Option(help="of MLflow's server and its UI")]
RunsAtOnce = Annotated[int, typer.Option(min=1, help="flow runs that the worker takes at once; measured stages take turns all the same")]


def command(
    prefect_port: PrefectPort = 4200,
    mlflow_port: MlflowPort = 5000,
    store: Annotated[str, typer.Option(help="MLflow's backend store; default: the project's SQLite file")] = MLFLOW_SQLITE,
    runs_at_once: RunsAtOnce = 2,
) -> None:
    """Start the Prefect server, a worker with the deployments, and MLflow; print where they are; stop them on Ctrl-C."""
    quiet()
    access = Access(prefect_port=prefect_port, mlflow_port=mlflow_port, store=store)
    with told_plainly():
        typer.echo("starting the Prefect server, MLflow and a worker …")
        with servers(access, runs_at_once=runs_at_once) as look_after:
            tell_addresses(access, runs_at_once)
            typer.echo(f"To run flows from a terminal here: export PREFECT_API_URL={access.prefect}/api MLFLOW_TRACKING_URI={access.mlflow}")
            typer.echo("Ctrl-C stops all three.")
            until_stopped(look_after)
        typer.echo("stopped")


def tell_addresses(access: Access, runs_at_once: int) -> None:
    """Print where both UIs are and what runs."""
    typer.echo(f"  Prefect   {access.prefect}/deployments   start a run here: training, comparison, ingest-and-shard")
    typer.echo(f"  MLflow    {access.mlflow}               compare runs here")
    typer.echo(f"  worker    pool {POOL}, {runs_at_once} runs at once      logs in {LOGS}/")


if __name__ == "__main__":
    typer.run(command)
