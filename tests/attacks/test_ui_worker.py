"""Whoever has Prefect's whole API makes the worker execute nothing but the project's flows."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

RUN = {"parameters": {"pipeline": "naive"}}
JOB_VARIABLES: list[dict[str, Any]] = [
    {"command": "touch {mark}"},
    {"env": {"THROUGHLINE_DATA_ROOTS": "/"}},
    {"env.PREFECT__FLOW_ENTRYPOINT": "/tmp/evil.py:flow"},
    {"working_dir": "/"},
]


@pytest.fixture
def mark(tmp_path) -> Iterator[Path]:
    """A file that must not be there when the attack is over."""
    tmp_path.chmod(0o777)
    yield tmp_path / "executed"
    assert not (tmp_path / "executed").exists(), "a command of the attacker's ran"


@pytest.mark.parametrize("variables", JOB_VARIABLES, ids=lambda value: next(iter(value)))
def test_job_variables_are_refused(stack, mark, variables):
    """Of a run when it is made; of a deployment when a run of it is made."""
    own = stack.deployment("training")
    place = f"deployments/{own['id']}"
    asked = json.loads(json.dumps(variables).replace("{mark}", str(mark)))
    reply = stack.post(f"{place}/create_flow_run", **RUN, job_variables=asked)
    assert reply.status_code == 422 and "Additional properties are not allowed" in reply.text
    try:
        stack.post(place, method="PATCH", job_variables=asked)
        assert stack.post(f"{place}/create_flow_run", **RUN).status_code == 422
    finally:
        stack.post(place, method="PATCH", job_variables=own["job_variables"])


def test_nothing_that_is_written_into_the_server_decides_what_the_worker_executes(
    stack, mark, tmp_path
):
    """Neither the work pool's template, nor a deployment, nor a run without one."""
    evil = tmp_path / "evil.py"
    flow = "from prefect import flow\n@flow\ndef training(): pass\n"
    evil.write_text(f"open({str(mark)!r}, 'w')\n{flow}")
    command, own = f"touch {mark}", stack.deployment("training")
    address = f"{stack.server}/api/work_pools/throughline"
    pool = requests.get(address, auth=stack.user, timeout=30).json()
    job = {"command": command, "env": {"PREFECT__FLOW_ENTRYPOINT": f"{evil}:training"}}
    command_only = {"command": {"type": "string", "default": command}}
    variables = {"type": "object", "properties": command_only}
    job |= {"working_dir": str(tmp_path)}
    template = {"base_job_template": {"job_configuration": job, "variables": variables}}
    steps = [{"prefect.deployments.steps.run_shell_script": {"script": command}}]
    changed = {"entrypoint": f"{evil}:training", "pull_steps": steps, "path": str(tmp_path)}
    changed |= {"job_variables": {"command": command}}
    try:
        assert stack.post("work_pools/throughline", method="PATCH", **template).ok
        assert stack.post(f"deployments/{own['id']}", method="PATCH", **changed).ok
        refused = {"overrides": ["data.path=/etc", 'model.name="os:system"']}
        runs = [stack.start("training", pipeline="naive", changes=refused)]
        place = {"flow_id": own["flow_id"], "work_pool_name": "throughline"}
        made = stack.ask("deployments/", name="mine", **place, **changed)
        runs.append(stack.ask(f"deployments/{made['id']}/create_flow_run")["id"])
        free = {"state": {"type": "SCHEDULED"}, "job_variables": {"command": command}}
        runs.append(stack.ask("flow_runs/", **place, **free)["id"])
        states = [stack.ended(one) for one in runs]
    finally:
        before = {"base_job_template": pool["base_job_template"]}
        stack.post("work_pools/throughline", method="PATCH", **before)
        back = {key: own[key] for key in ("entrypoint", "pull_steps", "path", "job_variables")}
        assert stack.post(f"deployments/{own['id']}", method="PATCH", **back).ok
    assert [state["state_type"] for state in states] == ["FAILED", "CRASHED", "CRASHED"]
    said = states[0]["state"]["message"]
    assert "data.path: /etc is outside" in said, "the project's own flow ran, confined"
    assert "model: os:system is not a module of this project" in said
    assert ("training-failure", "markdown") in stack.artifacts(runs[0])
