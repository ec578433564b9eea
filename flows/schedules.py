"""Sends the deployments of prefect.yaml to the Prefect server, and keeps what people have set
there: `python -m flows.schedules`, which `make ui` runs when it starts.

`prefect deploy` alone replaces all schedules of a deployment: one that was switched on is off
again, one that was made in the UI is gone.
"""

from __future__ import annotations

import typer
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.responses import DeploymentResponse

from flows.deployments import run_module
from tasks.errors import report_user_errors


def deploy_all() -> None:
    """Send all deployments of the current folder's prefect.yaml.

    Raises:
      ServiceFailed: with what Prefect said.
    """
    with get_client(sync_client=True) as client:
        before = client.read_deployments()
        run_module(["prefect", "--no-prompt", "deploy", "--all"])
        after = {deployment.name: deployment for deployment in client.read_deployments()}
        for deployment in before:
            restore_schedules(client, deployment, after[deployment.name])


def restore_schedules(
    client: SyncPrefectClient, before: DeploymentResponse, after: DeploymentResponse
) -> None:
    """Make the schedules of a deployment what they were: those of prefect.yaml, which have a slug,
    switched on or off, and those that were made in the UI.
    """
    kept = {schedule.id for schedule in after.schedules}
    by_slug = {schedule.slug: schedule for schedule in after.schedules if schedule.slug}
    for schedule in before.schedules:
        if schedule.id in kept:
            continue
        if again := by_slug.get(schedule.slug or ""):
            if again.active != schedule.active:
                client.update_deployment_schedule(after.id, again.id, active=schedule.active)
        elif not schedule.slug:
            values = schedule.model_dump(include=set(DeploymentScheduleCreate.model_fields))
            made = DeploymentScheduleCreate.model_validate({**values, "slug": None})
            client.create_deployment_schedules(after.id, [made])


def command() -> None:
    """Send this project's deployments to the server that PREFECT_API_URL names."""
    with report_user_errors():
        deploy_all()


if __name__ == "__main__":
    typer.run(command)
