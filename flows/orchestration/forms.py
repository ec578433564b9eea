"""Brings the forms of the deployments up to date with params.yaml: `python -m
flows.orchestration.forms`, which `make ui` runs when params.yaml changes. Schedules stay as they
were set in the UI.
"""

from __future__ import annotations

import typer
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentUpdate
from prefect.flows import load_flow_from_entrypoint
from prefect.utilities.callables import parameter_schema

from flows.orchestration.deployments import DEPLOYMENTS_FILE, read_entrypoints
from throughline.shared.failures import report_user_errors


def send_forms() -> None:
    """Send the current folder's params.yaml to the forms of all deployments."""
    with get_client(sync_client=True) as client:
        for name, entrypoint in read_entrypoints(DEPLOYMENTS_FILE).items():
            flow = load_flow_from_entrypoint(entrypoint, use_placeholder_flow=False)
            deployment = client.read_deployment_by_name(f"{flow.name}/{name}")
            schema = parameter_schema(flow).model_dump_for_openapi()
            client.update_deployment(
                deployment.id, DeploymentUpdate(parameter_openapi_schema=schema)
            )


def command() -> None:
    """Update the forms of this project's deployments on the server that PREFECT_API_URL names."""
    with report_user_errors():
        send_forms()


if __name__ == "__main__":
    typer.run(command)
