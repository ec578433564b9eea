"""Whose deployments are replaced; and what was set in the UI stays."""

from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from prefect.cli.deploy._schedules import _schedule_config_to_deployment_schedule
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolUpdate
from prefect.client.schemas.objects import DeploymentSchedule
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from flows.orchestration.deployments import (
    keep_schedules,
    make_pool,
    read_pool,
    refuse_other_project,
)
from tests.support.project import ROOT
from tests.support.shared_servers import shared_prefect
from throughline.shared.errors import MissingInput, ServiceFailed

HERE, ELSEWHERE = "http://127.0.0.1:4200/api", "https://prefect.example.org/api"
STEP = "prefect.deployments.steps.set_working_directory"


@pytest.fixture
def projects(tmp_path) -> tuple[Path, Path]:
    """Two of them; another folder of a deployment is not there."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "prefect.yaml").write_text((ROOT / "prefect.yaml").read_text())
    return tmp_path / "one", tmp_path / "two"


def sent_from(folder: Path | None) -> list[DeploymentResponse]:
    steps = [{STEP: {"directory": str(folder)}}] if folder else None
    return [DeploymentResponse(flow_id=uuid4(), name="training", pull_steps=steps)]


def test_deployments_of_another_project_are_not_replaced(projects):
    (one, two), gone = projects, projects[0].with_name("gone")
    with pytest.raises(ServiceFailed, match=rf"another project, {two}: training\. Rename"):
        refuse_other_project(sent_from(two), one, HERE)
    with pytest.raises(ServiceFailed, match=f"another project, {gone}: "):
        refuse_other_project(sent_from(gone), one, ELSEWHERE)
    for own in (sent_from(one), sent_from(None)):
        refuse_other_project(own, one, ELSEWHERE)
    refuse_other_project(sent_from(gone), one, HERE)  # it was moved from there


def test_all_deployments_are_of_one_pool(projects):
    file = projects[0] / "prefect.yaml"
    assert read_pool(file) == "throughline"
    file.write_text(file.read_text().replace("work_pool: *pool", "work_pool: {name: other}", 1))
    with pytest.raises(MissingInput, match="one work pool for all deployments"):
        read_pool(file)


@pytest.mark.integration
def test_schedules_are_sent_as_they_were_set_in_the_ui():
    nightly = {"cron": "0 2 * * *", "timezone": "UTC", "active": False, "slug": "nightly"}
    new = {"interval": 3600, "slug": "new"}
    hourly = IntervalSchedule(interval=timedelta(hours=1), timezone="UTC")
    present = [
        DeploymentSchedule(schedule=CronSchedule(cron="0 3 * * *"), active=True, slug="nightly"),
        DeploymentSchedule(schedule=hourly, active=False, parameters={"name": "x"}),
        DeploymentSchedule(schedule=hourly, active=True, slug="gone"),
    ]
    deployment = {"name": "comparison", "schedules": [nightly, new]}
    keep_schedules(deployment, present)
    *of_file, of_ui = deployment["schedules"]
    assert of_file == [{**nightly, "active": True}, new]
    sent = _schedule_config_to_deployment_schedule(of_ui)
    assert sent == {"schedule": hourly, "active": False, "parameters": {"name": "x"}}
    deployment = {"name": "training"}
    keep_schedules(deployment, [])
    assert deployment == {"name": "training"}


@pytest.mark.slow
def test_what_was_set_of_the_work_pool_stays():
    access = shared_prefect.environment(["flows."])
    settings = {key: access[key.name] for key in (PREFECT_API_URL, PREFECT_API_AUTH_STRING)}
    with temporary_settings(settings), get_client(sync_client=True) as client:
        make_pool(client, "mine")
        client.update_work_pool("mine", WorkPoolUpdate(is_paused=True, concurrency_limit=3))
        client.update_work_pool("mine", WorkPoolUpdate(base_job_template={}))
        make_pool(client, "mine")
        pool = client.read_work_pool("mine")
    assert pool.is_paused and pool.concurrency_limit == 3
    assert pool.base_job_template["variables"]["additionalProperties"] is False
