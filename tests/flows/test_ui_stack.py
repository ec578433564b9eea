"""The stack of `make ui` for real: a server, a worker and MLflow; runs started as the UI starts
them, cancelled, crashed; nothing left behind.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import mlflow
import psutil
import pytest

from flows.orchestration.deployments import deploy
from tests.support.project import SMALL, run, run_quietly
from tests.support.stack import processes_of, wait_for
from throughline.shared.errors import ServiceFailed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_the_form_has_one_type_bounds_choices_and_the_values_of_params_yaml(stack):
    schema = stack.deployment("training")["parameter_openapi_schema"]
    own = list(SMALL["pipelines"])
    pipeline = schema["properties"]["pipeline"]
    assert pipeline["enum"][: len(own)] == own, "then those that presets bring"
    assert pipeline["default"] == "optimized"
    changes = schema["definitions"]["Changes"]["properties"]
    assert changes["epochs"].items() >= {
        "type": "integer", "minimum": 1, "maximum": 100_000, "default": SMALL["train"]["epochs"]
    }.items()  # fmt: skip
    assert changes["batch_size"]["default"] == SMALL["batch_size"]
    assert changes["learning_rate"]["default"] == SMALL["train"]["learning_rate"]
    assert (changes["preset"]["enum"][0], changes["preset"]["default"]) == ("none", "none")
    assert all(field["description"] for field in changes.values())
    compared = stack.deployment("comparison")["parameter_openapi_schema"]["properties"]
    assert compared["pipelines"]["default"] == own
    assert compared["pipelines"]["items"]["enum"][: len(own)] == own
    for field in (*schema["properties"].values(), *compared.values(), *changes.values()):
        assert "anyOf" not in field, "nobody has to choose a type first"
    assert not stack.deployment("comparison")["schedules"][0]["active"], (
        "the nightly one is there, to be switched on"
    )


def nightly(stack) -> str:
    """Where the schedule of prefect.yaml is set."""
    deployment = stack.deployment("comparison")
    (own,) = [each for each in deployment["schedules"] if each["slug"] == "nightly"]
    return f"deployments/{deployment['id']}/schedules/{own['id']}"


@pytest.mark.parametrize("cut", [False, True], ids=["to its end", "killed, and again"])
def test_schedules_stay_as_they_were_set_in_the_ui_when_it_starts_again(stack, monkeypatch, cut):
    def schedules() -> set[tuple[str, bool, str | None]]:
        found = stack.deployment("comparison")["schedules"]
        return {(each["schedule"]["cron"], each["active"], each["slug"]) for each in found}

    before = schedules()
    made = {"cron": "30 4 * * 6", "timezone": "Europe/Berlin"}
    deployment = stack.deployment("comparison")["id"]
    assert stack.post(nightly(stack), method="PATCH", active=True).ok
    reply = stack.post_json(f"deployments/{deployment}/schedules", [{"schedule": made}])
    assert reply.ok, reply.text
    access = {"PREFECT_API_URL": f"{stack.server}/api"}
    access["PREFECT_API_AUTH_STRING"] = ":".join(stack.user)
    monkeypatch.chdir(stack.project)
    wanted = {("0 2 * * *", True, "nightly"), ("30 4 * * 6", True, None)}
    assert schedules() == wanted
    try:
        if cut:
            command = [sys.executable, "-m", "flows.orchestration.schedules"]
            with subprocess.Popen(command, env={**os.environ, **access}) as process:
                wait_for(lambda: schedules() != wanted, 60)
                process.kill()
            wait_for(lambda: not processes_of(stack.project, "--no-prompt"))
            assert schedules() != wanted
        deploy(access)
        assert schedules() == wanted
    finally:
        for each in stack.deployment("comparison")["schedules"]:
            if each["slug"] is None:
                path = f"deployments/{deployment}/schedules/{each['id']}"
                assert stack.post(path, method="DELETE").ok
        assert stack.post(nightly(stack), method="PATCH", active=False).ok
    assert schedules() == before


def test_another_project_does_not_replace_the_deployments(stack, monkeypatch, tmp_path):
    def deployed() -> dict:
        polled = {"last_polled", "status", "updated"}  # change whenever a worker asks for work
        found = stack.deployment("training")
        return {key: value for key, value in found.items() if key not in polled}

    other = tmp_path / "other"
    shutil.copytree(stack.project, other, ignore=shutil.ignore_patterns(".throughline", ".dvc"))
    monkeypatch.chdir(other)
    before = deployed()
    access = {"PREFECT_API_URL": f"{stack.server}/api"}
    access["PREFECT_API_AUTH_STRING"] = ":".join(stack.user)
    with pytest.raises(
        ServiceFailed, match=rf"of another project, {stack.project}, with the names"
    ):
        deploy(access)
    assert deployed() == before
    file = other / "prefect.yaml"
    file.write_text(
        re.sub(
            r"name: (training|comparison|tuning|prepare-data|throughline)\b",
            r"name: \1-2",
            file.read_text(),
        )
    )
    deploy(access)
    assert stack.deployment("training-2")["work_pool_name"] == "throughline-2"
    assert deployed() == before


def test_the_form_follows_params_yaml_and_a_schedule_stays_as_it_was_set(stack):
    def offered() -> int:
        schema = stack.deployment("comparison")["parameter_openapi_schema"]
        return schema["properties"]["changes"]["default"]["epochs"]

    schedule = nightly(stack)
    file = stack.project / "params.yaml"
    before = file.read_text()
    assert stack.post(schedule, method="PATCH", active=True).ok
    try:
        file.write_text(before.replace("epochs: 2", "epochs: 9"))
        wait_for(lambda: offered() == 9)
        assert stack.deployment("comparison")["schedules"][0]["active"]
    finally:
        file.write_text(before)
        assert stack.post(schedule, method="PATCH", active=False).ok
    wait_for(lambda: offered() == 2)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"pipeline": "nive"}, "'nive' is not one of"),
        ({"pipeline": "naive", "changes": {"epochs": 0}}, "less than the minimum of 1"),
        ({"pipeline": "naive", "changes": {"overrides": ["rm -rf"]}}, "does not match"),
        ({"pipeline": "naive", "name": "../../elsewhere"}, "does not match"),
    ],
)
def test_wrong_values_are_refused_at_once(stack, parameters, said):
    assert said in stack.refused("training", **parameters)


def test_a_run_is_an_experiment_with_artifacts_and_leaves_the_project_alone(
    stack, trained, monkeypatch
):
    name = stack.state(trained)["name"]
    assert {
        ("training", "table"),
        ("training-timeline", "image"),
        ("mlflow-run", "markdown"),
        ("progress", "progress"),
    } <= stack.artifacts(trained)
    assert name in run(stack.project, "dvc", "exp", "list")
    assert run_quietly(stack.project, "git", "status", "--porcelain") == ""
    assert not (stack.project / ".throughline" / "workspaces" / name).exists(), (
        "it cleans up after itself"
    )
    assert (stack.project / ".throughline" / "reports" / name / "index.html").exists()
    stack.use_mlflow(monkeypatch)
    found = mlflow.search_runs(
        search_all_experiments=True,
        filter_string=f"tags.`prefect.flow_run_id` = '{trained}'",
        output_format="list",
    )
    assert [(one.data.tags["dvc.experiment"], one.info.run_name) for one in found] == [
        (name, f"{name}/naive")
    ]
    assert len(found[0].data.tags["git.commit"]) == 40


def test_the_graph_of_a_run_has_an_edge_from_each_stage_to_the_next(stack, trained):
    stages = ["fetch", "ingest", "shard", "snapshot", "build@naive", "train@naive", "profile@naive"]
    assert {*itertools.pairwise([*stages, "report"])} <= stack.edges(trained)


def test_cancelling_ends_every_process_within_fifteen_seconds_and_frees_the_locks(stack):
    flow_run = stack.start("training", pipeline="naive", changes={"epochs": 50_000}, name="endless")
    wait_for(lambda: processes_of(stack.project, "tasks.train"))
    began = time.monotonic()
    stack.ask(f"flow_runs/{flow_run}/set_state", state={"type": "CANCELLING", "name": "Cancelling"})
    wait_for(
        lambda: (
            not processes_of(stack.project, "tasks.train")
            and not processes_of(stack.project, "dvc")
        ),
        15,
    )
    ended = stack.ended(flow_run, 30)
    assert (ended["state_type"], ended["name"]) == ("CANCELLED", "endless")
    assert time.monotonic() - began < 30
    run(stack.project, "dvc", "status")


def test_runs_at_the_same_time_do_not_clash_and_measured_stages_take_turns(stack, trained_at_once):
    runs, most = trained_at_once
    assert most == 1, "never two measured stages at once"
    names = run(stack.project, "dvc", "exp", "list")
    assert all(stack.state(flow_run)["name"] in names for flow_run in runs)


def test_a_run_whose_worker_crashed_is_started_again_without_redoing_what_was_done(stack):
    asked = {
        "pipeline": "naive",
        "changes": {"epochs": 150, "overrides": ["train.checkpoint_every=10 epochs"]},
        "name": "crashed",
        "measure": False,
    }
    stack.start("training", **asked)
    workspace = stack.project / ".throughline" / "workspaces" / "crashed"
    wait_for(lambda: list((workspace / "runs" / "naive" / ".checkpoint").glob("*/at-*")))
    worker = next(
        process
        for process in processes_of(stack.project, "flows.worker")
        if "supervise" not in " ".join(process.cmdline())
    )
    for process in (*worker.children(recursive=False), worker):
        with contextlib.suppress(psutil.NoSuchProcess):
            os.kill(process.pid, signal.SIGKILL)
    wait_for(lambda: not processes_of(stack.project, "tasks.train"), 15)
    # Taken by the worker that `make ui` has started in place of the dead one.
    again = stack.start("training", **asked)
    stack.completed(again)
    assert "resuming interrupted training" in stack.log(again)
    assert "Finished in state Cached('shard" in stack.log(again)
    assert json.loads((workspace / "runs" / "naive" / "run.json").read_text())["mlflow_run_id"]
