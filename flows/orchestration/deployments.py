"""Sends the deployments of prefect.yaml and their work pool to the Prefect server: `python -m
flows.orchestration.deployments`, which `make ui` runs when it starts. With `--forms` it only
updates their forms, which `make ui` does when params.yaml or a preset changes.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentUpdate, WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterName
from prefect.client.schemas.objects import DeploymentSchedule
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import ObjectAlreadyExists
from prefect.flows import load_flow_from_entrypoint
from prefect.utilities.callables import parameter_schema
from ruamel.yaml import YAML

from flows.run.locks import hold_briefly
from flows.servers.services import HOST
from throughline.shared.errors import MissingInput, ServiceFailed
from throughline.shared.failures import report_user_errors

DEPLOYMENTS_FILE = Path("prefect.yaml")
SET_FOLDER = ".set_working_directory"  # end of the name of a pull step of Prefect
# The work pool's template has no variables, so the server refuses job variables.
JOB_TEMPLATE = Path(__file__).with_name("job-template.json")


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise MissingInput(f"{file.absolute()} is missing; run this in the project's folder")
    return YAML(typ="safe").load(file)


def read_entrypoints(file: Path) -> dict[str, str]:
    """Return the entrypoints of a prefect.yaml by deployment; MissingInput if there is none."""
    return {str(one["name"]): str(one["entrypoint"]) for one in _read(file)["deployments"]}


def read_pool(file: Path) -> str:
    """Return the work pool of a prefect.yaml; MissingInput if it does not name exactly one."""
    pools = sorted({str(one["work_pool"]["name"]) for one in _read(file)["deployments"]})
    if len(pools) != 1:
        raise MissingInput(f"{file} needs one work pool for all deployments, not {pools}")
    return pools[0]


def deploy(environment: Mapping[str, str], *, forms: bool = False) -> None:
    """Send deployments, or only their forms, in a new process, which reads the current params.yaml.

    Schedules stay as set in the UI. Raises ServiceFailed with the process's output if it fails.
    """
    options = ["--forms"] if forms else []
    _run_module(["flows.orchestration.deployments", *options], environment)


def _run_module(module: Sequence[str], environment: Mapping[str, str]) -> None:
    command, variables = [sys.executable, "-m", *module], {**os.environ, **environment}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip()[-2000:]
        raise ServiceFailed(f"`{' '.join(module)}` failed:\n{said}")


def send_all() -> None:
    """Send all deployments of the current folder's prefect.yaml; MissingInput if it is missing.

    Raises ServiceFailed if `prefect deploy` fails, or another project has deployments of that name.
    """
    names = DeploymentFilterName(any_=[*read_entrypoints(DEPLOYMENTS_FILE)])
    # If several workers start together, they deploy one at a time.
    held = hold_briefly(Path.cwd(), "deploy", "deploys")
    with held, get_client(sync_client=True) as client:
        present = client.read_deployments(deployment_filter=DeploymentFilter(name=names))
        refuse_other_project(present, Path.cwd(), str(client.api_url))
        make_pool(client, read_pool(DEPLOYMENTS_FILE))
        document = _read(DEPLOYMENTS_FILE)
        # `prefect deploy` replaces all schedules of a deployment at once.
        schedules = {one.name: one.schedules for one in present}
        for deployment in document["deployments"]:
            keep_schedules(deployment, schedules.get(deployment["name"], []))
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            YAML(typ="safe").dump(document, file)
            command = ["prefect", "--no-prompt", "deploy", "--all", "--prefect-file", file.name]
            _run_module(command, {})


def keep_schedules(deployment: dict[str, Any], present: Sequence[DeploymentSchedule]) -> None:
    """Let a deployment of prefect.yaml keep the schedules that were set in the UI.

    A schedule is on or off as the one of the same slug is on the server. Schedules made in the UI,
    which have no slug, are added.
    """
    active = {one.slug: one.active for one in present if one.slug}
    schedules = list(deployment.get("schedules") or [])
    for schedule in schedules:
        if schedule.get("slug") in active:
            schedule["active"] = active[schedule["slug"]]
    for one in present:
        if not one.slug:
            timing = one.schedule.model_dump(mode="json", exclude_none=True)
            schedules.append({**timing, "active": one.active, "parameters": one.parameters})
    if schedules:
        deployment["schedules"] = schedules


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
    """Raise ServiceFailed if another project sent some of the deployments that are to be replaced.

    A folder on this machine without a prefect.yaml does not count: the project may have moved.
    """
    here = urlsplit(server).hostname in (HOST, "localhost")
    others = {}
    for deployment in deployments:
        steps = [step for one in deployment.pull_steps or () for step in one.items()]
        inputs = [given for name, given in steps if name.endswith(SET_FOLDER)]
        for folder in (Path(given.get("directory") or project) for given in inputs):
            moved = here and not (folder / DEPLOYMENTS_FILE).is_file()
            if folder != project.resolve() and not moved:
                others[deployment.name] = folder
    if others:
        name, folder = next(iter(others.items()))
        raise ServiceFailed(
            f"the Prefect server at {server} already has deployments of these names, from another"
            f" project, {folder}: {', '.join(others)}. Rename this project's deployments and work"
            f" pool in {DEPLOYMENTS_FILE}, or use a separate server, such as with"
            " `PREFECT_HOME=$PWD/.throughline/prefect make ui`. If this project was moved from that"
            f" folder, delete each of them first: `prefect deployment delete FLOW/{name}`"
        )


def send_forms() -> None:
    """Update only the forms of all deployments to the current folder's params.yaml and presets."""
    with get_client(sync_client=True) as client:
        for name, entrypoint in read_entrypoints(DEPLOYMENTS_FILE).items():
            flow = load_flow_from_entrypoint(entrypoint, use_placeholder_flow=False)
            deployment = client.read_deployment_by_name(f"{flow.name}/{name}")
            form = DeploymentUpdate(
                parameter_openapi_schema=parameter_schema(flow).model_dump_for_openapi()
            )
            client.update_deployment(deployment.id, form)


def command(forms: Annotated[bool, typer.Option(help="update only the forms")] = False) -> None:
    """Send this project's deployments to the server that PREFECT_API_URL names."""
    with report_user_errors():
        (send_forms if forms else send_all)()


if __name__ == "__main__":
    typer.run(command)
