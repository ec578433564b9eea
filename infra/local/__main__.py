"""`make stack`: the whole stack as processes of this machine, with authentication."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from flows.orchestration.cli import configure_logging
from flows.run.access_policy import OWN_SERVICE
from flows.run.workspace import STATE_DIR
from flows.servers.credentials import USER, exclusive, exports, published_environment, write_private
from flows.servers.services import HOST, ServerProcess, check_free, is_listening, run_servers
from flows.ui import (
    Endpoints,
    MlflowPort,
    PrefectPort,
    RunsAtOnce,
    print_urls,
    run_until_interrupted,
    servers,
)
from infra.local import postgres, s3
from infra.local.stack_config import StackConfig, load_stack
from throughline.shared.errors import ServiceFailed, report_user_errors

REMOTE = "stack"
ENVIRONMENT_FILE = "environment"
AUTH = Path(__file__).parents[1] / "mlflow-auth.ini"
Folder = Annotated[
    Path, typer.Option("--home", help="where the stack keeps its data, logs and secrets")
]
HOME_FOLDER = Path(STATE_DIR) / "stack"

HELP = (
    "Postgres, an S3 store, Prefect, MLflow, a worker and a tf.data service as processes of this"
    " machine, with passwords."
)

app = typer.Typer(
    add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True, help=HELP
)


@app.callback()
def keep_private() -> None:
    """Whatever a command here writes is for its owner alone."""
    os.umask(0o077)


@app.command()
def up(  # noqa: PLR0913 - each is an option of the command
    prefect_port: PrefectPort = 4200,
    mlflow_port: MlflowPort = 5000,
    postgres_port: Annotated[
        int | None, typer.Option(help="of Postgres; default: as last time, 5433 at first")
    ] = None,
    s3_port: Annotated[
        int | None,
        typer.Option(
            max=55_000,
            help="of the S3 store, which takes the next three, too, and 10,000 above them",
        ),
    ] = None,
    input_port: Annotated[
        int | None,
        typer.Option(help="of the tf.data service's dispatcher; its workers take the next ones"),
    ] = None,
    input_workers: Annotated[
        int,
        typer.Option(
            min=0,
            help=(
                "workers of the tf.data service, which listens on every interface and asks for no"
                " password; 0: no such service"
            ),
        ),
    ] = 0,
    runs_at_once: RunsAtOnce = 2,
    home: Folder = HOME_FOLDER,
) -> None:
    """Start everything, print where it is, and stop it on Ctrl-C."""
    configure_logging()
    with report_user_errors():
        opened = load_stack(
            home, postgres_port=postgres_port, s3_port=s3_port, input_port=input_port
        )
        endpoints = _endpoints(opened, prefect_port, mlflow_port)
        here = Path.cwd()
        if input_workers:
            endpoints = replace(endpoints, worker={OWN_SERVICE: f"grpc://{_input_address(opened)}"})
        typer.echo("starting Postgres, the S3 store, the Prefect server, MLflow and a worker …")
        with ExitStack() as running:
            for part in (opened.exclusive(), exclusive(here), stores(opened)):
                running.enter_context(part)
            check_services = running.enter_context(servers(endpoints, runs_at_once=runs_at_once))
            running.enter_context(input_service(opened, input_workers))
            running.enter_context(published_environment(here, endpoints.environment))
            _write_client_environment(opened, endpoints)
            print_urls(endpoints, runs_at_once)
            typer.echo(
                f"  S3        {opened.objects['AWS_ENDPOINT_URL']}               buckets"
                f" {', '.join(s3.BUCKETS)}; DVC's remote `{REMOTE}`"
            )
            if input_workers:
                typer.echo(
                    f"  tf.data   grpc://{_input_address(opened)}                {input_workers}"
                    " workers; for `service: {address: …}`"
                )
            typer.echo(
                "Users and passwords, and all a terminal needs: source"
                f" {opened.folder / ENVIRONMENT_FILE}"
            )
            typer.echo("Ctrl-C stops all of it.")
            run_until_interrupted(check_services)
        typer.echo("stopped")


@contextmanager
def stores(home: StackConfig) -> Iterator[None]:
    """Postgres and the S3 store, for as long as the block."""
    own = home.settings
    check_free({"postgres-port": own.postgres_port, "s3-port": own.s3_port})
    with postgres.postgres(home), s3.object_store(home):
        yield


@contextmanager
def input_service(home: StackConfig, workers: int) -> Iterator[None]:
    """A dispatcher of the tf.data service and its workers, for as long as the block; nothing for no
    workers.
    """
    if not workers:
        yield
        return
    first = home.settings.input_port
    ports = range(first + 1, first + 1 + workers)
    check_free({"input-port": first})
    roles = {
        "dispatcher": [
            "dispatcher",
            "--port",
            str(first),
            *(option for port in ports for option in ("--worker", f"{HOST}:{port}")),
        ]
    }
    joining = ["worker", "--dispatcher", _input_address(home), "--host", HOST, "--port"]
    roles |= {
        f"input-worker-{place}": [*joining, str(port)] for place, port in enumerate(ports, start=1)
    }
    with run_servers(
        *(
            ServerProcess(
                name=name,
                command=[sys.executable, "-m", "throughline.pipelines.service", *role],
                healthy=partial(is_listening, port),
                environment={},
            )
            for (name, role), port in zip(roles.items(), (first, *ports), strict=True)
        ),
        logs=home.logs,
    ):
        yield


def _input_address(home: StackConfig) -> str:
    return f"{HOST}:{home.settings.input_port}"


def _endpoints(home: StackConfig, prefect_port: int, mlflow_port: int) -> Endpoints:
    own = home.settings
    return Endpoints(
        prefect_port=prefect_port,
        mlflow_port=mlflow_port,
        store="postgresql+psycopg2:///mlflow",
        artifacts="s3://mlflow",
        mlflow_options=("--app-name", "basic-auth"),
        server={
            **home.databases,
            "PREFECT_API_DATABASE_CONNECTION_URL": "postgresql+asyncpg:///prefect",
            "PREFECT_SERVER_API_AUTH_STRING": home.clients["PREFECT_API_AUTH_STRING"],
        },
        tracking={
            **home.databases,
            **home.objects,
            "MLFLOW_AUTH_CONFIG_PATH": str(AUTH),
            "MLFLOW_AUTH_ADMIN_USERNAME": USER,
            "MLFLOW_AUTH_ADMIN_PASSWORD": own.mlflow_password,
            "MLFLOW_FLASK_SERVER_SECRET_KEY": own.mlflow_secret,
        },
        client=home.clients,
    )


def _write_client_environment(home: StackConfig, endpoints: Endpoints) -> None:
    """Write what a terminal needs into a file for its owner alone, and make the store a DVC remote
    of this checkout.
    """
    write_private(home.folder / ENVIRONMENT_FILE, exports(endpoints.environment))
    dvc = [sys.executable, "-m", "dvc", "remote"]
    settings = (
        ["add", "--local", "--force", REMOTE, "s3://dvc"],
        ["modify", "--local", REMOTE, "endpointurl", home.objects["AWS_ENDPOINT_URL"]],
    )
    for command in settings:
        done = subprocess.run([*dvc, *command], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ServiceFailed(f"`dvc remote {' '.join(command)}` failed: {done.stderr.strip()}")


if __name__ == "__main__":
    app()
