"""Sends the deployments of prefect.yaml and their work pool to the Prefect server: `python -m
flows.orchestration.schedules`, which `make ui` runs when it starts.

`prefect deploy` alone would reset schedules that were switched on and remove those made in the UI.
A file keeps them until they are restored, so that a kill loses none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID

import typer
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import (
    DeploymentScheduleCreate,
    WorkPoolCreate,
    WorkPoolUpdate,
)
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterName
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import ObjectAlreadyExists
from pydantic import TypeAdapter

from flows.orchestration.deployments import (
    DEPLOYMENTS_FILE,
    read_entrypoints,
    read_pool,
    run_module,
)
from flows.run.locks import STATE_DIR, hold_briefly
from flows.servers.credentials import private_folder, write_private
from flows.servers.services import HOST
from throughline.shared.errors import ServiceFailed
from throughline.shared.failures import report_user_errors

SET_FOLDER = ".set_working_directory"  # a step of Prefect
KEPT = "schedules.json"  # deployments whose schedules are not restored yet
DEPLOYMENTS = TypeAdapter(list[DeploymentResponse])
# The work pool's template has no variables, so the server refuses job variables.
JOB_TEMPLATE = Path(__file__).with_name("job-template.json")


def deploy_all() -> None:
    """Send all deployments of the current folder's prefect.yaml.

    Raises:
      ServiceFailed: with Prefect's output; or another project has deployments of these names.
    """
    names = DeploymentFilterName(any_=[*read_entrypoints(DEPLOYMENTS_FILE)])
    ours = DeploymentFilter(name=names)
    # If several workers start together, they deploy one at a time.
    held = hold_briefly(Path.cwd(), "deploy", "deploys")
    with held, get_client(sync_client=True) as client:
        present = client.read_deployments(deployment_filter=ours)
        refuse_other_project(present, Path.cwd(), str(client.api_url))
        make_pool(client, read_pool(DEPLOYMENTS_FILE))
        with keep_until_restored(present, Path.cwd()) as before:
            run_module(["prefect", "--no-prompt", "deploy", "--all"])
            after = {one.id: one for one in client.read_deployments(deployment_filter=ours)}
            for deployment in before:
                if deployment.id in after:
                    restore_schedules(client, deployment, after[deployment.id])


@contextmanager
def keep_until_restored(
    present: Sequence[DeploymentResponse], project: Path
) -> Iterator[list[DeploymentResponse]]:
    """Keep the deployments in a file until the block has succeeded; yield them as they were before.

    What an interrupted block has left in the file takes precedence over `present`.
    """
    file = private_folder(project / STATE_DIR / "ui") / KEPT
    left: dict[UUID, DeploymentResponse] = {}
    with suppress(OSError, ValueError):  # no file, or that of another version
        left = {one.id: one for one in DEPLOYMENTS.validate_json(file.read_bytes())}
    before = [left.pop(one.id, one) for one in present]
    others = list(left.values())  # on another server
    write_private(file, DEPLOYMENTS.dump_json([*before, *others]).decode())
    yield before
    if others:
        write_private(file, DEPLOYMENTS.dump_json(others).decode())
    else:
        file.unlink()


def make_pool(client: SyncPrefectClient, name: str) -> None:
    """Create the work pool, or replace the template of an existing one; the UI sets the rest."""
    template = json.loads(JOB_TEMPLATE.read_text())
    pool = WorkPoolCreate(name=name, type="process", base_job_template=template)
    try:
        client.create_work_pool(pool)
    except ObjectAlreadyExists:
        client.update_work_pool(name, WorkPoolUpdate(base_job_template=template))


def refuse_other_project(
    deployments: Sequence[DeploymentResponse], project: Path, server: str
) -> None:
    """Refuse to replace deployments that another project's folder has sent.

    A folder on this machine that is no project any more does not count: this one may have moved.

    Raises:
      ServiceFailed: names the folder, and what to do.
    """
    names = read_entrypoints(project / DEPLOYMENTS_FILE)
    others = {
        deployment.name: folder
        for deployment in deployments
        if deployment.name in names
        and (folder := _read_folder(deployment)) not in (None, project.resolve())
    }
    here = urlsplit(server).hostname in (HOST, "localhost")
    others = {
        name: folder
        for name, folder in others.items()
        if not here or (folder / DEPLOYMENTS_FILE).is_file()
    }
    if others:
        name, folder = next(iter(others.items()))
        raise ServiceFailed(
            f"the Prefect server at {server} has deployments of another project, {folder}, with"
            f" the names of this one's: {', '.join(others)}. Give these, and the work pool, names"
            f" of their own in {DEPLOYMENTS_FILE}, or use a server of its own, such as by"
            " `PREFECT_HOME=$PWD/.throughline/prefect make ui`. Should that be this project before"
            f" it was moved: `prefect deployment delete FLOW/{name}`, and the others alike"
        )


def _read_folder(deployment: DeploymentResponse) -> Path | None:
    """Return the folder that a deployment was sent from, which Prefect notes for its runs."""
    steps = (step for one in deployment.pull_steps or () for step in one.items())
    folders = [inputs.get("directory") for name, inputs in steps if name.endswith(SET_FOLDER)]
    return Path(folders[0]) if folders and folders[0] else None


def restore_schedules(
    client: SyncPrefectClient, before: DeploymentResponse, after: DeploymentResponse
) -> None:
    """Switch a deployment's schedules on or off as before, and make those of the UI again."""
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
