"""`make stack`: the whole stack as processes of this machine, with authentication."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import typer

from flows.orchestration.cli import configure_logging
from flows.run.access_policy import OWN_SERVICE
from flows.run.locks import STATE_DIR
from flows.run.processes import supervised
from flows.servers.credentials import (
    ask_for_password,
    exclusive,
    exports,
    published_environment,
    write_private,
)
from flows.servers.services import check_free
from flows.ui import (
    Endpoints,
    MlflowPort,
    PrefectPort,
    RunsAtOnce,
    print_urls,
    run_until_interrupted,
    servers,
)
from infra.local import clusters, postgres, s3
from infra.local.stack_config import StackConfig, hold_stack, load_stack
from throughline.shared.errors import ServiceFailed
from throughline.shared.failures import report_user_errors

REMOTE = "stack"
ENVIRONMENT_FILE = "environment"
AUTH = Path(__file__).parents[1] / "mlflow-auth.ini"
Folder = Annotated[
    Path, typer.Option("--home", help="where the stack keeps its data, logs and secrets")
]
HOME_FOLDER = Path(STATE_DIR) / "stack"
STORE_FOLDER = Path(STATE_DIR) / "store"

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Postgres, an S3 store, Prefect, MLflow, a worker and a tf.data service as processes of"
    " this machine, with passwords.",
)


@app.callback()
def keep_private(context: typer.Context) -> None:
    """Make everything that the commands write private to its owner."""
    context.obj = os.umask(0o077)


@app.command()
def up(  # noqa: PLR0913 - each is an option of the command
    prefect_port: PrefectPort = 4200,
    mlflow_port: MlflowPort = 5000,
    postgres_port: Annotated[
        int | None, typer.Option(help="port of Postgres; default: the last one used, or 5433")
    ] = None,
    s3_port: Annotated[
        int | None,
        typer.Option(
            max=55_000,
            help="port of the S3 store; it also uses the next three, and these four + 10,000",
        ),
    ] = None,
    input_port: Annotated[
        int | None,
        typer.Option(help="port of the tf.data dispatcher; its workers use the next ones"),
    ] = None,
    input_workers: Annotated[
        int,
        typer.Option(
            min=0,
            help="workers of the tf.data service, which listens on every interface and asks for no"
            " password; 0: no such service",
        ),
    ] = 0,
    dask_port: Annotated[
        int | None, typer.Option(help="port of the Dask scheduler; its workers use the next ones")
    ] = None,
    dask_workers: Annotated[
        int,
        typer.Option(
            min=0,
            help="workers of a Dask cluster, through which any user of this machine can run"
            " programs as you; 0: no such cluster",
        ),
    ] = 0,
    runs_at_once: RunsAtOnce = 2,
    home: Folder = HOME_FOLDER,
) -> None:
    """Start everything, print where it is, and stop it on Ctrl-C."""
    configure_logging()
    with report_user_errors():
        here = Path.cwd()
        with ExitStack() as running:
            running.enter_context(hold_stack(home))
            running.enter_context(exclusive(here))
            opened = load_stack(
                home,
                postgres_port=postgres_port,
                s3_port=s3_port,
                input_port=input_port,
                dask_port=dask_port,
            )
            endpoints = _endpoints(opened, prefect_port, mlflow_port, workers=input_workers)
            typer.echo("starting Postgres, the S3 store, the Prefect server, MLflow and a worker …")
            check_stores = running.enter_context(stores(opened))
            check_services = running.enter_context(servers(endpoints, runs_at_once=runs_at_once))
            others = [
                *running.enter_context(clusters.input_service(opened, input_workers)),
                *running.enter_context(clusters.dask_cluster(opened, dask_workers)),
            ]
            running.enter_context(published_environment(here, endpoints.environment))
            _write_client_environment(opened, endpoints)
            print_urls(endpoints, runs_at_once)
            _print_more_urls(opened, input_workers, dask_workers)
            checks = [check_stores, check_services, *(one.check for one in others)]
            run_until_interrupted(*checks)
        typer.echo("stopped")


def _print_more_urls(home: StackConfig, input_workers: int, dask_workers: int) -> None:
    address, workers = home.objects["AWS_ENDPOINT_URL"], "workers; for"
    buckets = ", ".join(s3.BUCKETS)
    typer.echo(f"  S3        {address:<36} buckets {buckets}; DVC's remote `{REMOTE}`")
    if input_workers:
        address = f"grpc://{clusters.input_address(home)}"
        typer.echo(f"  tf.data   {address:<36} {input_workers} {workers} `service: {{address: …}}`")
    if dask_workers:
        address = clusters.dask_address(home)
        typer.echo(f"  Dask      {address:<36} {dask_workers} {workers} `engine: {{address: …}}`")
    file = home.folder / ENVIRONMENT_FILE
    typer.echo(f"Users and passwords, and all a terminal needs: source {file}")
    typer.echo("Ctrl-C stops all of it.")


@app.command()
def store(
    context: typer.Context,
    command: Annotated[list[str], typer.Argument(help="what to run, after `--`")],
    bucket: Annotated[str, typer.Option(help="bucket to create if it is missing")] = "data",
    home: Annotated[
        Path, typer.Option(help="where the store keeps its objects, logs and secrets")
    ] = STORE_FOLDER,
) -> None:
    """Run a command with an S3 store, whose address and keys are in its environment."""
    with report_user_errors():
        if shutil.which(command[0]) is None:
            raise ServiceFailed(f"there is no program {command[0]}")
        with hold_stack(home), s3.temporary_store(home, bucket) as variables:
            os.umask(context.obj)  # no restriction on the files that the command writes
            environment = {**os.environ, **variables}
            with supervised(command, environment=environment, output=None) as process:
                raise typer.Exit(process.wait())


@contextmanager
def stores(home: StackConfig) -> Iterator[Callable[[], None]]:
    """Run Postgres and the S3 store; yield a function that restarts one that has ended."""
    check_free("postgres-port", home.settings.postgres_port)
    check_free("s3-port", *s3.list_ports(home.settings.s3_port))
    with postgres.postgres(home) as check_postgres, s3.object_store(home) as check_objects:

        def check_stores() -> None:
            check_postgres()
            check_objects()

        yield check_stores


def _endpoints(
    home: StackConfig, prefect_port: int, mlflow_port: int, *, workers: int
) -> Endpoints:
    own = home.settings
    service = {OWN_SERVICE: f"grpc://{clusters.input_address(home)}"} if workers else {}
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
            **ask_for_password(AUTH, own.mlflow_password, own.mlflow_secret),
        },
        client=home.clients,
        worker=service,
    )


def _write_client_environment(home: StackConfig, endpoints: Endpoints) -> None:
    """Write the file that terminals source, and add the store to DVC's remotes of this machine."""
    write_private(home.folder / ENVIRONMENT_FILE, exports(endpoints.environment))
    add = ["add", "--local", "--force", REMOTE, "s3://dvc"]
    modify = ["modify", "--local", REMOTE, "endpointurl", home.objects["AWS_ENDPOINT_URL"]]
    for arguments in (add, modify):
        command = [sys.executable, "-m", "dvc", "remote", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ServiceFailed(f"`dvc remote {' '.join(arguments)}` failed: {done.stderr.strip()}")


if __name__ == "__main__":
    app()
