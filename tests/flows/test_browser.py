"""What people see, in a real browser: a run started through the form of the Prefect UI and watched,
and MLflow's list.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator

import mlflow
import pytest
from playwright.sync_api import Locator, Page, TimeoutError, expect

from flows.run.parameters import Changes
from flows.run.resolution import resolve
from tests.support.browser import browsing, picture, sign_in
from tests.support.project import SMALL, run
from throughline.config.params_file import parse_yaml

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def page(stack) -> Iterator[Page]:
    with browsing(stack.user) as opened:
        sign_in(opened, stack.server, stack.user)
        yield opened


def newest(stack) -> str | None:
    found = stack.ask("flow_runs/filter", sort="EXPECTED_START_TIME_DESC", limit=1)
    return found[0]["id"] if found else None


def field(page: Page, title: str) -> Locator:
    """The input of a form's field; its innermost element that has the title holds it."""
    named = page.locator(".schema-form-property").filter(has_text=f"{title} (Optional)")
    return named.last.locator("input")


def submitted(stack, page) -> str:
    """Submit the form that a page shows; returns the flow run that this has started.

    On a busy machine the form now and then stays as it is, without a run; people submit it again.
    """
    form, before = page.url, newest(stack)
    for attempt in range(4):
        page.get_by_role("button", name="Submit").click()
        try:
            page.wait_for_url(lambda url: url != form, timeout=20_000, wait_until="commit")
            break
        except TimeoutError:
            assert attempt < 3, "the form cannot be submitted"
            assert newest(stack) == before, "a run was started, and the form is still there"
    deadline = time.monotonic() + 60
    while (started := newest(stack)) == before:
        assert time.monotonic() < deadline, "the form started nothing"
        time.sleep(0.5)
    # The page of a running flow moves, and drawing it takes a core from what runs.
    page.goto("about:blank")
    return started


def test_a_run_started_through_the_form_has_what_was_changed_there(stack, page):
    deployment = stack.deployment("prepare-data")["id"]
    form = f"{stack.server}/deployments/deployment/{deployment}/run"
    page.goto(form)
    submit = page.get_by_role("button", name="Submit")
    submit.wait_for()
    epochs = field(page, "Epochs")
    expect(epochs).to_have_value(str(SMALL["train"]["epochs"]))
    expect(field(page, "Batch Size")).to_have_value(str(SMALL["batch_size"]))
    expect(page.get_by_text("Property is type")).to_have_count(0)
    picture(page, "prefect-form")
    epochs.fill("0")
    submit.click()
    # The server checks what the form holds, and the form listens again when it has answered.
    expect(page.get_by_text("0 is less than the minimum of 1").first).to_be_visible()
    assert page.url == form, "0 epochs are refused by the form"
    epochs.fill("3")
    started = submitted(stack, page)
    ended = stack.completed(started)
    resolved = resolve(stack.project, Changes(**ended["parameters"]["changes"]))
    assert parse_yaml(resolved.text, "it") == SMALL | {"train": SMALL["train"] | {"epochs": 3}}


def test_the_page_of_a_run_shows_its_stages_and_artifacts(stack, page, trained):
    page.goto(f"{stack.server}/runs/flow-run/{trained}")
    expect(page.get_by_text("Completed").first).to_be_visible()
    expect(
        page.get_by_text("Running stage").first
    ).to_be_visible()  # of the log, which shows its beginning
    picture(page, "prefect-run")
    page.get_by_text("Artifacts").first.click()
    for name in ("training-timeline", "mlflow-run"):
        expect(page.get_by_text(name).first).to_be_visible()
    picture(page, "prefect-artifacts")


def test_a_form_that_was_left_as_it_is_starts_a_run_without_changes(stack, page):
    shutil.rmtree(stack.project / "report")
    page.goto(f"{stack.server}/deployments/deployment/{stack.deployment('comparison')['id']}/run")
    page.get_by_role("button", name="Submit").wait_for()
    for name in SMALL["pipelines"]:
        expect(page.get_by_text(name, exact=True).first).to_be_visible()
    started = submitted(stack, page)
    ended = stack.completed(started)
    assert ended["parameters"]["pipelines"] == list(SMALL["pipelines"])
    assert ended["name"] not in run(stack.project, "dvc", "exp", "list"), "it is no experiment"
    assert (stack.project / "report" / "index.html").exists(), "it is about the project's results"
    assert {
        (first, second)
        for name in SMALL["pipelines"]
        for first, second in (("snapshot", f"build@{name}"), (f"profile@{name}", "report"))
    } <= stack.edges(started)


def test_the_timeline_is_a_picture_on_the_page_of_its_artifact(stack, page, trained):
    found = stack.ask(
        "artifacts/filter",
        artifacts={"flow_run_id": {"any_": [trained]}, "key": {"any_": ["training-timeline"]}},
    )[0]
    page.goto(f"{stack.server}/artifacts/artifact/{found['id']}")
    image = page.locator("img[src^='data:image/png']").first
    image.wait_for()
    assert image.evaluate("picture => picture.naturalWidth") > 500
    picture(page, "prefect-timeline")


def test_mlflow_lists_the_runs_by_their_configurations(stack, page, trained_at_once, monkeypatch):
    stack.use_mlflow(monkeypatch)
    runs = mlflow.search_runs(
        search_all_experiments=True,
        filter_string="attributes.status = 'FINISHED'",
        output_format="list",
    )
    pair = [
        next(run.info for run in runs if run.data.tags.get("prefect.flow_run_id") == flow_run)
        for flow_run in trained_at_once[0]
    ]
    page.goto(f"{stack.tracking}/#/experiments/{pair[0].experiment_id}")
    page.wait_for_url("**/runs?*")  # not the traces of language models
    for info in pair:
        expect(page.get_by_text(info.run_name, exact=True).first).to_be_visible()
    picture(page, "mlflow-runs")
