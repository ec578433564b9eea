"""`make ui`: a Prefect server, a worker with the deployments, and MLflow's UI, on this machine
only. Ctrl-C stops all three.

All listen on loopback, ask for a password except with --open, refuse pages of other origins, keep
their state in SQLite files unless configured otherwise, and write logs to .throughline/logs/.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import requests
import typer

from flows.orchestration.cli import configure_logging
from flows.orchestration.deployments import DEPLOYMENTS_FILE, deploy, read_pool
from flows.orchestration.terminal import LOGS
from flows.run.parameters import form_sources
from flows.servers.credentials import USER, exclusive, load_credentials, published_environment
from flows.servers.services import HOST, ServerProcess, check_free, keep_running, responds
from throughline.shared.errors import ServiceFailed
from throughline.shared.failures import report_user_errors

MLFLOW_SQLITE = "sqlite:///mlflow.db"
STORE = "MLFLOW_BACKEND_STORE_URI"  # MLflow's own variable
LISTENING = ("--host", HOST, "--port")


@dataclass(frozen=True, kw_only=True)
class Endpoints:
    """Ports and stores of the servers, and environment variables for the Prefect `server`, MLflow
    (`tracking`), every client, stages included, and the `worker` with its runs.
    """

    prefect_port: int
    mlflow_port: int
    store: str = MLFLOW_SQLITE
    artifacts: str = "mlartifacts"
    mlflow_options: tuple[str, ...] = ()
    server: Mapping[str, str] = field(default_factory=dict)
    tracking: Mapping[str, str] = field(default_factory=dict)
    client: Mapping[str, str] = field(default_factory=dict)
    worker: Mapping[str, str] = field(default_factory=dict)

    @property
    def prefect(self) -> str:
        return f"http://{HOST}:{self.prefect_port}"

    @property
    def mlflow(self) -> str:
        return f"http://{HOST}:{self.mlflow_port}"

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for a process that uses the Prefect server and MLflow."""
        return {
            "PREFECT_API_URL": f"{self.prefect}/api",
            "PREFECT_UI_URL": self.prefect,
            "MLFLOW_TRACKING_URI": self.mlflow,
            "MLFLOW_REGISTRY_URI": self.mlflow,
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            **self.client,
        }


@contextmanager
def servers(endpoints: Endpoints, *, runs_at_once: int) -> Iterator[Callable[[], None]]:
    """Run both servers and a worker; yield a function to call regularly, which restarts those that
    have died, and updates the forms when params.yaml or a preset changes.

    Raises ServiceFailed if a port is taken, the deployments cannot be sent, or one of the three
    does not start or dies again and again.
    """
    check_free("prefect-port", endpoints.prefect_port)
    check_free("mlflow-port", endpoints.mlflow_port)
    python, pool = [sys.executable, "-m"], read_pool(DEPLOYMENTS_FILE)
    own_pages = [f"http://{name}:{endpoints.prefect_port}" for name in (HOST, "localhost")]
    server = ServerProcess(
        name="prefect-server",
        command=[*python, "flows.servers.prefect_server", *LISTENING, str(endpoints.prefect_port)],
        healthy=lambda: responds(f"{endpoints.prefect}/api/health"),
        environment={
            **endpoints.environment,
            "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": ",".join(own_pages),
            "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true",
            **endpoints.server,
        },
    )
    worker = ServerProcess(
        name="worker",
        command=[*python, "flows.worker", "--limit", str(runs_at_once)],
        healthy=lambda: _has_worker(endpoints, pool),
        environment={**endpoints.environment, **endpoints.worker},
    )
    with ExitStack() as started:
        tracking = tracking_process(endpoints)
        look_after_servers = started.enter_context(keep_running(server, tracking, logs=LOGS))
        sources = form_sources()
        deploy(endpoints.environment)
        look_after_worker = started.enter_context(keep_running(worker, logs=LOGS))

        def check_services() -> None:
            nonlocal sources
            if (changed := form_sources()) != sources:
                sources, shown = changed, "the forms show the new values"
                try:
                    deploy(endpoints.environment, forms=True)
                except ServiceFailed as failure:
                    shown = f"the forms still show the old values: {failure}"
                typer.echo(f"params.yaml or a preset has changed; {shown}")
            look_after_servers()
            look_after_worker()

        yield check_services


def tracking_process(endpoints: Endpoints) -> ServerProcess:
    """Return MLflow's server. The address of its store, which may hold a password, is passed in
    the environment, because all users can see command lines.
    """
    artifacts = endpoints.artifacts
    if "://" not in artifacts:
        artifacts = str(Path(artifacts).resolve())
    return ServerProcess(
        name="mlflow",
        command=[
            *(sys.executable, "-m", "flows.servers.tracking_server"),
            *(*LISTENING, str(endpoints.mlflow_port)),
            *("--artifacts-destination", artifacts, "--workers", "1"),
            *endpoints.mlflow_options,
        ],
        healthy=lambda: responds(f"{endpoints.mlflow}/health"),
        environment={**endpoints.environment, STORE: endpoints.store, **endpoints.tracking},
    )


def _has_worker(endpoints: Endpoints, pool: str) -> bool:
    """Return whether a work pool has a worker online, or is paused."""
    # To list its workers, a request would need a CSRF token.
    url = f"{endpoints.prefect}/api/work_pools/{quote(pool)}"
    user, _, password = endpoints.client.get("PREFECT_API_AUTH_STRING", "").partition(":")
    try:
        found = requests.get(url, auth=(user, password) if user else None, timeout=2)
    except requests.RequestException:
        return False
    return found.ok and found.json()["status"] in ("READY", "PAUSED")


def run_until_interrupted(*checks: Callable[[], object]) -> None:
    """Call `checks` every second until Ctrl-C or SIGTERM; later signals are ignored."""

    def end(*_: object) -> None:
        handle(lambda *_: None)
        raise KeyboardInterrupt

    def handle(handler: Callable[..., None]) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, handler)

    try:
        handle(end)
        while True:
            time.sleep(1.0)
            for check in checks:
                check()
    except KeyboardInterrupt:
        pass
    finally:
        handle(lambda *_: None)


PrefectPort = Annotated[int, typer.Option(help="port of the Prefect server and its UI")]
MlflowPort = Annotated[int, typer.Option(help="port of MLflow's server and its UI")]
RunsAtOnce = Annotated[
    int,
    typer.Option(min=1, help="most flow runs at once; stages that measure take turns nevertheless"),
]


def command(
    prefect_port: PrefectPort = 4200,
    mlflow_port: MlflowPort = 5000,
    store: Annotated[
        str,
        typer.Option(
            envvar=STORE,
            help="MLflow's backend store; default: the project's SQLite file. If it has a password,"
            " set the variable instead, because all users of the machine can see options",
        ),
    ] = MLFLOW_SQLITE,
    runs_at_once: RunsAtOnce = 2,
    open_: Annotated[
        bool,
        typer.Option(
            "--open", help="ask for no password: every user of this machine may do everything"
        ),
    ] = False,
) -> None:
    """Start the Prefect server, a worker and MLflow, print their URLs, and stop them on Ctrl-C."""
    configure_logging()
    os.umask(0o077)  # makes databases, logs and results private
    with report_user_errors():
        credentials = load_credentials(Path.cwd())
        take_from_others(Path.cwd())
        endpoints = Endpoints(
            prefect_port=prefect_port,
            mlflow_port=mlflow_port,
            store=store,
            mlflow_options=() if open_ else ("--app-name", "basic-auth"),
            server={} if open_ else credentials.server,
            tracking={} if open_ else credentials.tracking,
            client={} if open_ else credentials.clients,
        )
        typer.echo("starting the Prefect server, MLflow and a worker …")
        here = Path.cwd()
        with (
            exclusive(here),
            servers(endpoints, runs_at_once=runs_at_once) as check_services,
            published_environment(here, endpoints.environment) as file,
        ):
            print_urls(endpoints, runs_at_once)
            password = credentials.keys.password
            access = (
                f"  password  Prefect asks for {USER}:{password}\n"
                f"            MLflow asks for user {USER}, password {password}"
            )
            if open_:
                access = (
                    "  OPEN      without a password: every user of this machine can start runs,"
                    " read all results and delete them"
                )
            typer.echo(
                f"{access}\nFlows from a terminal in this folder use these servers automatically;"
                f" for other programs: source {file.relative_to(here)}\nCtrl-C stops all three."
            )
            run_until_interrupted(check_services)
        typer.echo("stopped")


def take_from_others(project: Path) -> None:
    """Make private the databases, artifacts and logs that earlier runs left open to other users."""
    prefect = Path(os.environ.get("PREFECT_HOME") or "~/.prefect").expanduser()
    for path in (prefect, project / LOGS, project / "mlartifacts", *project.glob("mlflow.db*")):
        # Nothing is there, or it belongs to another user.
        with suppress(FileNotFoundError, PermissionError):
            path.chmod(path.stat().st_mode & 0o700)


def print_urls(endpoints: Endpoints, runs_at_once: int) -> None:
    typer.echo(
        f"  Prefect   {endpoints.prefect}/deployments   start a run here: training, comparison,"
        " tuning, prepare-data\n"
        f"  MLflow    {endpoints.mlflow}               compare runs here"
    )
    if os.environ.get("MLFLOW_DISABLE_TELEMETRY", "").lower() in ("1", "true"):
        typer.echo(
            "            its page says that usage data is collected; here that is switched off"
        )
    pool = read_pool(DEPLOYMENTS_FILE)
    typer.echo(f"  worker    pool {pool}, {runs_at_once} runs at once      logs in {LOGS}/")


if __name__ == "__main__":
    typer.run(command)
