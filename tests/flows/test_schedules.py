"""Whose deployments are replaced; and what was set in the UI stays."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolUpdate
from prefect.client.schemas.objects import DeploymentSchedule
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from flows.orchestration.deployments import read_pool
from flows.orchestration.schedules import KEPT, keep_until_restored, make_pool, refuse_other_project
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


def sent_from(folder: Path | None, name: str = "training") -> list[DeploymentResponse]:
    steps = [{STEP: {"directory": str(folder)}}] if folder else None
    return [DeploymentResponse(flow_id=uuid4(), name=name, pull_steps=steps)]


def test_deployments_of_another_project_are_not_replaced(projects):
    (one, two), gone = projects, projects[0].with_name("gone")
    with pytest.raises(ServiceFailed, match=rf"another project, {two}, .*training\. Give these"):
        refuse_other_project(sent_from(two), one, HERE)
    with pytest.raises(ServiceFailed, match=f"another project, {gone}, "):
        refuse_other_project(sent_from(gone), one, ELSEWHERE)
    for own in (sent_from(one), sent_from(None), sent_from(two, "another name")):
        refuse_other_project(own, one, ELSEWHERE)
    refuse_other_project(sent_from(gone), one, HERE)  # it was moved from there


def test_all_deployments_are_of_one_pool(projects):
    file = projects[0] / "prefect.yaml"
    assert read_pool(file) == "throughline"
    file.write_text(file.read_text().replace("work_pool: *pool", "work_pool: {name: other}", 1))
    with pytest.raises(MissingInput, match="one work pool for all deployments"):
        read_pool(file)


def with_schedules(*schedules: CronSchedule | IntervalSchedule) -> DeploymentResponse:
    """A deployment of a server, with schedules that were made in the UI."""
    made = [DeploymentSchedule(id=uuid4(), schedule=each, active=False) for each in schedules]
    return DeploymentResponse(id=uuid4(), flow_id=uuid4(), name="training", schedules=made)


@pytest.mark.integration
def test_schedules_are_known_until_they_are_restored_whatever_cuts_that(tmp_path):
    hourly = IntervalSchedule(interval=timedelta(hours=1))
    first = with_schedules(CronSchedule(cron="0 3 * * *", timezone="Europe/Berlin"), hourly)
    second, elsewhere = with_schedules(hourly), with_schedules(hourly)
    with pytest.raises(KeyboardInterrupt), keep_until_restored([first, elsewhere], tmp_path):
        raise KeyboardInterrupt
    file = tmp_path / ".throughline" / "ui" / KEPT
    assert file.stat().st_mode & 0o777 == 0o600
    lost = first.model_copy(update={"schedules": []})
    for _ in range(2):  # the second time cut again
        with pytest.raises(ServiceFailed), keep_until_restored([lost, second], tmp_path) as before:
            raise ServiceFailed("the server is away")
        assert before == [first, second]
    with keep_until_restored([lost, second], tmp_path) as before:
        assert before == [first, second]
    with keep_until_restored([lost], tmp_path) as before:
        assert before == [lost], "it was restored; this is how it was set since"
    with keep_until_restored([elsewhere], tmp_path) as before:
        assert before == [elsewhere]
    assert not file.exists()


@pytest.mark.integration
@pytest.mark.parametrize("content", ["", "[{}]", "\udcff"])
def test_schedules_that_cannot_be_read_are_those_of_the_server(tmp_path, content):
    file = tmp_path / ".throughline" / "ui" / KEPT
    file.parent.mkdir(parents=True)
    file.write_text(content, errors="surrogateescape")
    present = [with_schedules(CronSchedule(cron="0 3 * * *"))]
    with keep_until_restored(present, tmp_path) as before:
        assert before == present


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
