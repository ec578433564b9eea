"""The worker, which executes the flow runs that wait on the Prefect server.

The server decides only a run's deployment, and parameters within `flows/run/access_policy.py`.
Command, environment, working directory and entrypoint come from this project: job variables, pull
steps and entrypoints of the server's database are ignored, so access to it runs no commands.
"""

import asyncio
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import anyio
import anyio.abc
import typer
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.flows import Flow, load_flow_from_entrypoint
from prefect.runner._flow_run_executor import FlowRunExecutorContext
from prefect.runner._starter_engine import EngineCommandStarter
from prefect.settings import PREFECT_WORKER_HEARTBEAT_SECONDS
from prefect.utilities.processutils import setup_signal_handlers_worker
from prefect.workers.process import ProcessJobConfiguration, ProcessWorker, ProcessWorkerResult

from flows.orchestration.deployments import DEPLOYMENTS_FILE, deploy, read_entrypoints, read_pool
from flows.run.access_policy import CONFINED, Limits, load_limits
from throughline.shared.errors import ServiceFailed
from throughline.shared.failures import report_user_errors
from throughline.shared.scratch import temporary_files_in_scratch

with warnings.catch_warnings():
    # ProjectWorker replaces Prefect's worker for this type of pool on purpose.
    warnings.filterwarnings("ignore", message="Type 'ProjectWorker'")

    class ProjectWorker(ProcessWorker):
        """A process worker that runs only the deployments of prefect.yaml in the current folder."""

        async def run(
            self,
            flow_run: FlowRun,
            configuration: ProcessJobConfiguration,
            task_status: anyio.abc.TaskStatus[int] | None = None,
        ) -> ProcessWorkerResult:
            """Run a flow of the project in a new process; the server's `configuration` is not used.

            Raises ServiceFailed if the flow run belongs to no deployment of this project, so that
            Prefect marks it as crashed, and RuntimeError if its process does not start.
            """
            entrypoint = await find_entrypoint(flow_run)

            async def load(_: FlowRun) -> Flow[..., Any]:
                return load_flow_from_entrypoint(entrypoint, use_placeholder_flow=False)

            async with FlowRunExecutorContext() as context:
                starter = EngineCommandStarter(
                    entrypoint=entrypoint,
                    cwd=Path.cwd(),
                    env=dict(run_environment(load_limits(Path.cwd()))),
                    control_channel=context.control_channel,
                )
                executor = context.create_executor(
                    flow_run, starter, resolve_flow=load, propose_submitting=False
                )
                result = None

                async def execute(*, task_status: anyio.abc.TaskStatus[Any]) -> None:
                    nonlocal result
                    result = await executor.submit(task_status=task_status)

                async with anyio.create_task_group() as group:
                    handle = await group.start(execute)
                    if task_status:
                        task_status.started(handle.pid)
            if result is None or result.status_code is None:
                raise RuntimeError(f"the process of flow run {flow_run.id} did not start")
            pid = str(result.handle.pid)
            return ProcessWorkerResult(status_code=result.status_code, identifier=pid)


def run_environment(limits: Limits) -> Mapping[str, str]:
    return {
        CONFINED: "1",
        "PREFECT_FLOWS_DEFAULT_RETRIES": str(limits.retries),
        "THROUGHLINE_STAGE_TIMEOUT_S": str(limits.stage_timeout_s),
    }


async def find_entrypoint(flow_run: FlowRun) -> str:
    """Return the entrypoint of a flow run in prefect.yaml; ServiceFailed if it has none there."""
    if flow_run.deployment_id is None:
        raise ServiceFailed(
            f"flow run {flow_run.name} belongs to no deployment; this worker runs only those of"
            f" {DEPLOYMENTS_FILE}"
        )
    async with get_client() as client:
        deployment = await client.read_deployment(flow_run.deployment_id)
    known = read_entrypoints(DEPLOYMENTS_FILE)
    if deployment.name not in known:
        raise ServiceFailed(
            f"deployment {deployment.name} is not in {DEPLOYMENTS_FILE}; this worker runs only"
            f" {', '.join(sorted(known))}"
        )
    return known[deployment.name]


def command(
    limit: Annotated[int, typer.Option(min=1, help="most flow runs at once")] = 2,
    with_deployments: Annotated[
        bool, typer.Option("--deploy", help="first create the work pool and the deployments")
    ] = False,
    healthcheck: Annotated[
        bool, typer.Option(help="serve /health on port PREFECT_WORKER_WEBSERVER_PORT")
    ] = False,
) -> None:
    """Execute this project's flow runs of the server at PREFECT_API_URL, until stopped."""
    # Prefect makes a temporary folder for each worker.
    with report_user_errors(), temporary_files_in_scratch(Path.cwd()):
        load_limits(Path.cwd())
        if with_deployments:
            deploy({})
        setup_signal_handlers_worker(os.getpid(), "the worker", typer.echo)
        worker = ProjectWorker(
            read_pool(DEPLOYMENTS_FILE),
            limit=limit,
            heartbeat_interval_seconds=int(PREFECT_WORKER_HEARTBEAT_SECONDS.value()),
            create_pool_if_not_found=False,
        )
        asyncio.run(worker.start(with_healthcheck=healthcheck, printer=typer.echo))


if __name__ == "__main__":
    typer.run(command)
