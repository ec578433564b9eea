"""The stack of `make ui` for real: runs as the UI starts them, and what a real browser shows."""

import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

import mlflow
import pytest
from playwright.sync_api import Locator, Page, expect

from flows.orchestration.deployments import deploy
from flows.run.parameters import Changes
from flows.run.resolution import resolve
from tests.support.browser import browsing, picture, sign_in
from tests.support.project import SMALL, run, run_quietly
from tests.support.stack import processes_of, wait_for
from throughline.config.params_file import parse_yaml

pytestmark = pytest.mark.timeout(600)


@pytest.mark.slow
def test_the_form_has_one_type_bounds_choices_and_the_values_of_params_yaml(stack):
    deployment, comparison = stack.deployment("training"), stack.deployment("comparison")
    assert deployment["enforce_parameter_schema"], "the server refuses what is not in it"
    schema, own = deployment["parameter_openapi_schema"], list(SMALL["pipelines"])
    fields, changes = schema["properties"], schema["definitions"]["Changes"]["properties"]
    compared = comparison["parameter_openapi_schema"]["properties"]
    for field in (fields["pipeline"], compared["pipelines"]["items"]):
        assert field["enum"][: len(own)] == own, "then those that presets bring"
    values = SMALL["train"] | {"batch_size": SMALL["batch_size"], "preset": "none"}
    for name in ("epochs", "batch_size", "learning_rate", "preset"):
        assert changes[name]["default"] == values[name]
    bounds = {"type": "integer", "minimum": 1, "maximum": 100_000}
    assert changes["epochs"].items() >= bounds.items()
    assert not re.search(changes["overrides"]["items"]["pattern"], "rm -rf")
    assert not re.search(fields["name"]["pattern"], "../../elsewhere")
    several = [*fields.values(), *compared.values(), *changes.values()]
    assert not [field for field in several if "anyOf" in field], "nobody has to choose a type first"
    assert [one["active"] for one in comparison["schedules"]] == [False], "to be switched on"


@pytest.mark.core
def test_a_form_that_was_left_as_it_is_starts_a_run_without_changes(stack):
    shutil.rmtree(stack.project / "report")
    fields = stack.deployment("comparison")["parameter_openapi_schema"]["properties"]
    started = stack.start("comparison", **{name: each["default"] for name, each in fields.items()})
    ended = stack.completed(started)
    assert ended["parameters"]["pipelines"] == list(SMALL["pipelines"])
    assert ended["name"] not in run(stack.project, "dvc", "exp", "list"), "it is no experiment"
    assert (stack.project / "report" / "index.html").exists(), "it is about the project's results"
    edges = stack.edges(started)
    for name in SMALL["pipelines"]:
        assert {("snapshot", f"build@{name}"), (f"profile@{name}", "race")} <= edges


@pytest.mark.slow
def test_schedules_stay_as_they_were_set_in_the_ui_when_it_starts_again(stack, monkeypatch):
    """Whether the start before came to its end or was killed."""

    def schedules() -> set[tuple[str, bool, str | None]]:
        found = stack.deployment("comparison")["schedules"]
        return {(each["schedule"]["cron"], each["active"], each["slug"]) for each in found}

    before, deployment = schedules(), stack.deployment("comparison")
    place = f"deployments/{deployment['id']}/schedules"
    (own,) = [each["id"] for each in deployment["schedules"] if each["slug"] == "nightly"]
    assert stack.post(f"{place}/{own}", method="PATCH", active=True).ok
    made = {"cron": "30 4 * * 6", "timezone": "Europe/Berlin"}
    assert stack.post_json(place, [{"schedule": made}]).ok
    access = {"PREFECT_API_URL": f"{stack.server}/api"}
    access["PREFECT_API_AUTH_STRING"] = ":".join(stack.user)
    monkeypatch.chdir(stack.project)
    wanted = {("0 2 * * *", True, "nightly"), ("30 4 * * 6", True, None)}
    try:
        deploy(access)
        assert schedules() == wanted
        command = [sys.executable, "-m", "flows.orchestration.deployments"]
        with subprocess.Popen(command, env={**os.environ, **access}) as process:
            wait_for(lambda: processes_of(stack.project, "--no-prompt"))
            process.kill()
        wait_for(lambda: not processes_of(stack.project, "--no-prompt"))
        assert schedules() == wanted
        deploy(access)
        assert schedules() == wanted
    finally:
        for each in stack.deployment("comparison")["schedules"]:
            own = each["slug"] == "nightly"
            back = {"method": "PATCH", "active": False} if own else {"method": "DELETE"}
            assert stack.post(f"{place}/{each['id']}", **back).ok
    assert schedules() == before


@pytest.mark.slow
def test_the_form_follows_params_yaml(stack):
    def offered() -> int:
        schema = stack.deployment("comparison")["parameter_openapi_schema"]
        return schema["properties"]["changes"]["default"]["epochs"]

    file = stack.project / "params.yaml"
    before = file.read_text()
    try:
        file.write_text(before.replace("epochs: 2", "epochs: 9"))
        wait_for(lambda: offered() == 9)
    finally:
        file.write_text(before)
    wait_for(lambda: offered() == 2)


@pytest.mark.slow
def test_runs_at_once_take_turns_and_are_experiments_that_leave_the_project_alone(
    stack, trained_at_once, trained, monkeypatch
):
    runs, most = trained_at_once
    assert most == 1, "never two measured stages at once"
    names, kept = (
        [stack.state(each)["name"] for each in runs],
        run(stack.project, "dvc", "exp", "list"),
    )
    assert all(name in kept for name in names)
    shown = {("training", "table"), ("training-timeline", "image")}
    shown |= {("mlflow-run", "markdown"), ("progress", "progress")}
    assert shown <= stack.artifacts(trained)
    stages = "fetch ingest shard snapshot build@naive train@naive profile@naive race report"
    assert {*itertools.pairwise(stages.split())} <= stack.edges(trained)
    assert run_quietly(stack.project, "git", "status", "--porcelain") == ""
    hidden = stack.project / ".throughline"
    assert not (hidden / "workspaces" / names[0]).exists(), "it is removed"
    assert (hidden / "reports" / names[0] / "index.html").exists()
    stack.use_mlflow(monkeypatch)
    of_run = f"tags.`prefect.flow_run_id` = '{trained}'"
    every = {"search_all_experiments": True, "output_format": "list"}
    (one,) = mlflow.search_runs(filter_string=of_run, **every)
    assert (one.data.tags["dvc.experiment"], one.info.run_name) == (names[0], f"{names[0]}/naive")
    assert len(one.data.tags["git.commit"]) == 40


@pytest.mark.slow
def test_cancelling_ends_every_process_and_frees_the_locks(stack):
    flow_run = stack.start("training", pipeline="naive", changes={"epochs": 50_000}, name="endless")
    wait_for(lambda: processes_of(stack.project, "tasks.train"))
    stack.ask(f"flow_runs/{flow_run}/set_state", state={"type": "CANCELLING", "name": "Cancelling"})
    for name in ("tasks.train", "dvc"):
        wait_for(lambda name=name: not processes_of(stack.project, name))
    ended = stack.ended(flow_run)
    assert (ended["state_type"], ended["name"]) == ("CANCELLED", "endless")
    run(stack.project, "dvc", "status")


@pytest.fixture(scope="module")
def page(stack) -> Iterator[Page]:
    with browsing(stack.user) as opened:
        sign_in(opened, stack.server, stack.user)
        yield opened


def field(page: Page, title: str) -> Locator:
    """The input of a form's field; its innermost element that has the title holds it."""
    named = page.locator(".schema-form-property").filter(has_text=f"{title} (Optional)")
    return named.last.locator("input")


@pytest.mark.slow
def test_a_run_started_through_the_form_has_what_was_changed_there(stack, page):
    deployment = stack.deployment("prepare-data")["id"]
    form = f"{stack.server}/deployments/deployment/{deployment}/run"
    page.goto(form)
    submit, epochs = page.get_by_role("button", name="Submit"), field(page, "Epochs")
    expect(epochs).to_have_value(str(SMALL["train"]["epochs"]))
    expect(field(page, "Batch Size")).to_have_value(str(SMALL["batch_size"]))
    expect(page.get_by_text("Property is type")).to_have_count(0)
    picture(page, "prefect-form")
    epochs.fill("0")
    submit.click()
    refusal = page.get_by_text("0 is less than the minimum of 1")
    expect(refusal.first).to_be_visible()
    assert page.url == form, "0 epochs are refused by the form"
    epochs.fill("3")
    # The server checks what the form holds; until it has answered, the form cannot be submitted.
    expect(refusal).to_have_count(0)
    with page.expect_response("**/create_flow_run") as created:
        submit.click()
    started = created.value.json()["id"]
    page.goto("about:blank")  # drawing the page of a running flow takes a core from what runs
    ended = stack.completed(started)
    resolved = resolve(stack.project, Changes(**ended["parameters"]["changes"]))
    assert parse_yaml(resolved.text, "it") == SMALL | {"train": SMALL["train"] | {"epochs": 3}}


@pytest.mark.slow
def test_the_pages_of_a_run_show_its_stages_and_its_timeline(stack, page, trained):
    page.goto(f"{stack.server}/runs/flow-run/{trained}")
    for text in ("Completed", "Running stage"):  # the second in the beginning of its log
        expect(page.get_by_text(text).first).to_be_visible()
    picture(page, "prefect-run")
    of_run = {"flow_run_id": {"any_": [trained]}, "key": {"any_": ["training-timeline"]}}
    (timeline,) = stack.ask("artifacts/filter", artifacts=of_run)
    page.goto(f"{stack.server}/artifacts/artifact/{timeline['id']}")
    image = page.locator("img[src^='data:image/png']").first
    image.wait_for()
    assert image.evaluate("picture => picture.naturalWidth") > 500
