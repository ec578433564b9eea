"""What flows check and decide around their stages, which do not run here; and what is deployed."""

import asyncio
import json
import os
import sys
from contextlib import nullcontext
from datetime import timedelta
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pytest
from prefect.cli.deploy._schedules import _schedule_config_to_deployment_schedule
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolUpdate
from prefect.client.schemas.objects import DeploymentSchedule
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule
from prefect.logging import disable_run_logger
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from flows import comparison, training, worker
from flows.orchestration import artifacts, deployments, flow_run
from flows.orchestration.flow_run import FinishedStage, Run, share_imports
from flows.orchestration.stages import PREPARATION, StageEnvironment
from flows.run import source_check
from flows.run.access_policy import CONFINED, Limits
from flows.run.parameters import Changes
from flows.run.source_check import check_named_files, check_source, is_large
from flows.run.workspace import Workspace
from flows.tuning import list_options, tuning
from tasks.own_code import list_watched_files
from tests.support.project import ROOT, SMALL, write_params
from tests.support.shared_servers import shared_prefect
from tests.support.small_data import write_files
from throughline.config.named_files import find_named_files
from throughline.shared import errors
from throughline.shared.fork_client import STAGE_SERVER
from throughline.shared.object_store import open_store
from throughline.tuning.budgets import Budgets, read_budgets


@pytest.fixture(autouse=True)
def _no_log():
    with disable_run_logger():
        yield


@pytest.fixture
def make_run(tmp_path):
    """A run in the project itself, or in a worktree."""

    def make(*, isolated=False, stale=(), **given):
        workspace = Workspace(root=tmp_path / "x" if isolated else tmp_path, project=tmp_path)
        stage_env = StageEnvironment(workspace, frozenset(stale))
        return Run(name="x", params=None, stage_env=stage_env, **given)

    return make


def test_once_a_stage_has_changed_all_later_ones_ask_dvc(make_run, monkeypatch):
    asked = []

    def run_stage(stage, _, *, upstream_changed, wait_for, return_state):
        asked.append((upstream_changed, wait_for))
        return SimpleNamespace(result=lambda: stage == "b")

    monkeypatch.setattr(flow_run, "run_stage", run_stage)
    run = make_run(identified=[FinishedStage(state="identities", changed=False)])
    assert run.chain(["a", "b", "c"]).changed
    assert [changed for changed, _ in asked] == [False, False, True]
    assert asked[0][1] == ["identities"]


BOTH = (False, True)


def test_what_went_out_of_date_meanwhile_fails_a_run_unless_its_results_lack_nothing(
    make_run, monkeypatch
):
    stages = [*PREPARATION, "train@a", "report"]
    for isolated, saves, stale in product(BOTH, BOTH, ("ingest", "train@a", "train@b", "report")):
        monkeypatch.setattr(flow_run, "_find_stale", lambda _, stale=stale: {stale})
        run, matters = make_run(isolated=isolated), stale == "train@a" or (isolated and saves)
        run.check_up_to_date(stages, changed=False, saves=saves)
        refused = pytest.raises(errors.WorkspaceProblem, match=stale)
        with refused if matters and stale != "train@b" else nullcontext():
            run.check_up_to_date(stages, changed=True, saves=saves)


def test_an_experiment_is_saved_once(make_run, monkeypatch):
    monkeypatch.setattr(flow_run, "find_experiment", lambda *_: "")
    for isolated, changed, saved in product(BOTH, repeat=3):
        calls = []
        monkeypatch.setattr(flow_run, "is_saved", lambda *_, saved=saved: saved)
        monkeypatch.setattr(flow_run, "save_experiment", lambda *_, calls=calls: calls.append(1))
        assert make_run(isolated=isolated).save_experiment(changed=changed) is None
        assert len(calls) == (isolated and (changed or not saved))


@pytest.mark.parametrize(
    ("stale", "named", "served"),
    [("a", "", False), ("ab", "", True), (["identities"], "", True), ("ab", "one", False)],
)
def test_several_stages_share_their_imports_unless_a_server_is_named(
    make_run, monkeypatch, stale, named, served
):
    monkeypatch.setenv(STAGE_SERVER, named)
    monkeypatch.setattr(flow_run, "stage_server", lambda *_: nullcontext({STAGE_SERVER: "here"}))
    with share_imports(make_run(stale=stale).stage_env) as stage_env:
        assert (STAGE_SERVER in stage_env.environment) is served


def test_a_comparison_has_a_run_in_mlflow_unless_that_knows_it(make_run, monkeypatch):
    """One of some configurations, which has no report, never."""
    kept = SimpleNamespace(open_comparison=lambda *_: nullcontext("a run"))
    monkeypatch.setattr(comparison, "comparison_run", kept)
    for stale, certain, known in product((["report"], ["train@other"]), BOTH, BOTH):
        kept.has_comparison = lambda _, known=known: known
        for stages in ([], ["report"]):
            opened = comparison.open_parent(make_run(stale=stale), stages, None, certain=certain)
            with opened as parent:
                opens = stages and (certain or stale == stages or not known)
                assert (parent is not None) is bool(opens)


@pytest.fixture
def opened(monkeypatch, tmp_path):
    """What both flows open: a run that ends with the stages that it is first asked for."""

    def open_run(*, isolated=False):
        root = tmp_path / "x" if isolated else tmp_path
        run = SimpleNamespace(workspace=Workspace(root=root, project=tmp_path))
        run.params = SimpleNamespace(pipelines={"naive": {}, "optimized": {}})
        run.with_forced = run.with_progress_bar = lambda _: run
        run.chain = lambda stages, **_: sys.exit(tuple(stages))
        for module in (comparison, training):
            monkeypatch.setattr(module, "start_run", lambda *_, **__: nullcontext(run))

    return open_run


@pytest.mark.parametrize(
    ("measure", "isolated", "last"),
    [
        (True, True, ("race", "report")),
        (True, False, ("profile@naive", "race")),
        (False, True, ("build@naive", "train@naive")),
    ],
)
def test_a_training_is_measured_and_reported_where_it_is_to_be(opened, measure, isolated, last):
    opened(isolated=isolated)
    with pytest.raises(SystemExit) as asked:
        training.training.fn("naive", measure=measure)
    assert asked.value.code[-2:] == last


def test_what_contradicts_itself_is_refused_before_any_stage(opened, tmp_path, monkeypatch):
    opened()
    with pytest.raises(errors.InvalidParams, match="leave one out"):
        training.training.fn("naive", measure_again=["naive"], measure=False)
    with pytest.raises(errors.InvalidParams, match="promote: a champion"):
        comparison.comparison.fn(["naive"], promote=True)
    write_params(tmp_path, SMALL)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(errors.Untunable, match=r"because it edits params\.yaml: leave it out"):
        tuning.fn(changes=Changes(batch_size=4), apply=True)
    cluster = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    with pytest.raises(errors.Untunable, match="TF_CONFIG"):
        tuning.fn()


def test_a_bar_is_full_after_the_last_stage(monkeypatch):
    shown = []
    monkeypatch.setattr(artifacts, "create_progress_artifact", lambda *_, **__: "a bar")
    update = "update_progress_artifact"
    monkeypatch.setattr(artifacts, update, lambda _, share, **__: shown.append(share))
    progress = artifacts.StageProgress(4)
    for stage in PREPARATION:
        progress.advance(stage)
    assert shown == [25, 50, 75, 100]


@pytest.mark.parametrize(
    ("asked", "name", "refused"),
    [("an id", "training", ""), ("an id", "mine", "mine is not in"), (None, "training", "no depl")],
)
def test_a_worker_runs_deployments_of_its_project_alone(
    tmp_path, monkeypatch, asked, name, refused
):
    async def read_deployment(_):
        return SimpleNamespace(name=name)

    client = SimpleNamespace(read_deployment=read_deployment)
    monkeypatch.setattr(worker, "get_client", lambda: nullcontext(client))
    own = "deployments: [{name: training, entrypoint: its.own}]"
    monkeypatch.chdir(write_files(tmp_path, {"prefect.yaml": own}))
    with pytest.raises(errors.ServiceFailed, match=refused) if refused else nullcontext():
        found = asyncio.run(worker.find_entrypoint(SimpleNamespace(name="x", deployment_id=asked)))
        assert found == "its.own"


def test_a_run_of_a_worker_is_confined():
    assert worker.run_environment(Limits(retries=3, stage_timeout_s=60)) == {
        CONFINED: "1",
        "PREFECT_FLOWS_DEFAULT_RETRIES": "3",
        "THROUGHLINE_STAGE_TIMEOUT_S": "60.0",
    }


def test_the_form_has_a_field_for_each_budget_which_the_flow_hands_to_the_command():
    budgets = Budgets(ram="8GiB", epochs=30, allow=("approximate", "unordered"))
    options = list_options(budgets)
    assert options == ["--ram=8GiB", "--epochs=30", "--allow=approximate", "--allow=unordered"]
    assert list_options(read_budgets()) == []
    fields = tuning.parameters.model_dump()["definitions"]["Budgets"]["properties"]
    assert fields.keys() == Budgets.model_fields.keys() and fields["time"]["default"] == "5min"
    assert all(field["description"] for field in fields.values())


HERE, ELSEWHERE = "http://127.0.0.1:4200/api", "https://prefect.example.org/api"
STEP = "prefect.deployments.steps.set_working_directory"


def sent_from(folder: Path | None) -> list[DeploymentResponse]:
    steps = [{STEP: {"directory": str(folder)}}] if folder else None
    return [DeploymentResponse(flow_id=uuid4(), name="training", pull_steps=steps)]


def test_deployments_of_another_project_are_not_replaced(tmp_path):
    one, two, gone = (tmp_path / name for name in ("one", "two", "gone"))
    for project in (one, two):
        write_files(project, {"prefect.yaml": ""})
    for other, server in ((two, HERE), (gone, ELSEWHERE)):
        with pytest.raises(
            errors.ServiceFailed, match=rf"another project, {other}: training\. Rename"
        ):
            deployments.refuse_other_project(sent_from(other), one, server)
    for own, server in ((one, ELSEWHERE), (None, ELSEWHERE), (gone, HERE)):  # moved from there
        deployments.refuse_other_project(sent_from(own), one, server)


def test_all_deployments_are_of_one_pool(tmp_path):
    assert deployments.read_pool(ROOT / "prefect.yaml") == "throughline"
    text = (ROOT / "prefect.yaml").read_text()
    other = text.replace("work_pool: *pool", "work_pool: {name: other}", 1)
    with pytest.raises(errors.MissingInput, match="one work pool for all deployments"):
        deployments.read_pool(write_files(tmp_path, {"prefect.yaml": other}) / "prefect.yaml")


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
    deployments.keep_schedules(deployment, present)
    *of_file, of_ui = deployment["schedules"]
    assert of_file == [{**nightly, "active": True}, new]
    sent = _schedule_config_to_deployment_schedule(of_ui)
    assert sent == {"schedule": hourly, "active": False, "parameters": {"name": "x"}}
    deployment = {"name": "training"}
    deployments.keep_schedules(deployment, [])
    assert deployment == {"name": "training"}


@pytest.mark.slow
def test_what_was_set_of_the_work_pool_stays():
    access = shared_prefect.environment(["flows."])
    settings = {key: access[key.name] for key in (PREFECT_API_URL, PREFECT_API_AUTH_STRING)}
    with temporary_settings(settings), get_client(sync_client=True) as client:
        deployments.make_pool(client, "mine")
        client.update_work_pool("mine", WorkPoolUpdate(is_paused=True, concurrency_limit=3))
        client.update_work_pool("mine", WorkPoolUpdate(base_job_template={}))
        deployments.make_pool(client, "mine")
        pool = client.read_work_pool("mine")
    assert pool.is_paused and pool.concurrency_limit == 3
    assert pool.base_job_template["variables"]["additionalProperties"] is False


@pytest.fixture
def photos(tmp_path) -> Path:
    """A folder of a project's photos; the project is as after `dvc init --no-scm`."""
    config = "[core]\nno_scm = True\nanalytics = false\n"
    write_files(tmp_path, {".dvc/config": config, "photos/cat/größe.jpg": "x"})
    return tmp_path / "photos" / "cat"


@pytest.mark.slow
def test_what_dvc_cannot_hash_is_refused_with_its_name_unless_it_is_ignored(photos, tmp_path):
    check_source(tmp_path, "photos")
    os.mkfifo(photos / "pipe.jpg")
    (photos / "link.png").symlink_to("nowhere")
    (photos / "zero.png").symlink_to("/dev/zero")
    reasons = dict.fromkeys(("pipe.jpg", "zero.png"), "is not a regular file")
    reasons |= {"link.png": "is a link to nothing; `dvc pull`"}
    with pytest.raises(errors.UnreadableSource) as refused:
        check_source(tmp_path, "photos")
    assert all(f"{name} {reason}" in str(refused.value) for name, reason in reasons.items())
    not_utf8 = Path(os.fsdecode(os.fsencode(photos) + b"/x\xff.png"))
    not_utf8.touch()
    (tmp_path / ".dvcignore").write_text("".join(f"photos/cat/{name}\n" for name in reasons))
    with pytest.raises(errors.UnreadableSource) as refused:
        check_source(tmp_path, "photos")
    assert "xff.png has a name that is" in str(refused.value)
    not_utf8.unlink()
    check_source(tmp_path, "photos")


@pytest.mark.integration
def test_of_data_outside_the_project_no_dvcignore_is_advised(photos, tmp_path):
    (photos / "link.png").symlink_to("nowhere")
    (tmp_path / "project").mkdir()
    (tmp_path / ".dvc").rename(tmp_path / "project" / ".dvc")
    advice = r"Remove them: `find \S+ -xtype l -delete` removes dangling links$"
    with pytest.raises(errors.UnreadableSource, match=advice):
        check_source(tmp_path / "project", "../photos")


def test_a_source_that_is_not_there_is_named_unless_it_will_be_fetched(tmp_path):
    (tmp_path / "table.csv").write_text("a,b\n")
    check_source(tmp_path, "table.csv")
    check_source(tmp_path, "data/raw/fashion_mnist", fetched="fashion_mnist")
    for fetched in ("none", "fashion_mnist"):
        with pytest.raises(errors.DataNotFound, match=r"^data\.path: nothing does not exist"):
            check_source(tmp_path, "nothing", fetched=fetched)


@pytest.mark.slow
@pytest.mark.integration
def test_a_bucket_in_which_nothing_is_there_is_named(tmp_path, bucket_url, proxy):
    open_store(bucket_url).write("photos/cat/1.jpg", b"x")
    proxy.requests.clear()
    for path in ("", "/photos", "/photos/", "/photos/cat/1.jpg"):
        check_source(tmp_path, f"{bucket_url}{path}")
    assert not [path for method, path, _ in proxy.requests if method == "GET" and "?" not in path]
    with pytest.raises(errors.DataNotFound, match=rf"^data\.path: {bucket_url}/phot does not"):
        check_source(tmp_path, f"{bucket_url}/phot")
    with pytest.raises(errors.ObjectStoreFailed, match=r"s3://other"):
        check_source(tmp_path, "s3://other")


def test_named_and_listed_files_that_git_does_not_know_are_refused_before_anything_runs(tmp_path):
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.touch()
    relative = {"preprocess": [{"tokenize": {"kind": "wordpiece", "model": "vocab.txt"}}]}
    weights = {"model": {"name": "mlp", "weights": "some.h5"}}
    named = [("preprocess: tokenize.model", "vocab.txt"), ("model.weights", "some.h5")]
    assert find_named_files({**relative, **weights}) == named
    listed = "      # Own ops and models\n      - my_ops.py\n      - lookup.csv\n    outs: []\n"
    (tmp_path / "dvc.yaml").write_text(listed)
    assert list_watched_files(tmp_path) == ["lookup.csv"]

    check_named_files(tmp_path, relative, [vocabulary.name])
    with pytest.raises(errors.InvalidParams) as refused:
        check_named_files(tmp_path / "worktree", relative, ["lookup.csv"])
    of_params, of_dvc = refused.value.problems
    assert "`git add --force vocab.txt`, or set its absolute path" in of_params
    assert of_dvc.startswith("dvc.yaml: lookup.csv is not in")
    for given in ({"kind": "wordpiece", "model": str(vocabulary)}, {"kind": "bytes"}):
        check_named_files(tmp_path / "worktree", {"preprocess": [{"tokenize": given}]})


def test_data_is_large_from_so_many_files_or_bytes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(source_check, "MANY_FILES", 3)
    assert not is_large(tmp_path / "nowhere")
    assert not is_large(write_files(tmp_path, {"a/1": "", "a/2": ""}))
    (tmp_path / "b").symlink_to("gone")
    assert is_large(tmp_path) and not is_large(tmp_path / "a" / "1")
    os.truncate(tmp_path / "a" / "1", source_check.MANY_BYTES)  # takes no room
    assert is_large(tmp_path / "a" / "1") and is_large(tmp_path / "a")
