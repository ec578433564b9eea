"""What flows decide around their stages, which do not run here."""

import asyncio
from contextlib import asynccontextmanager, nullcontext
from types import SimpleNamespace

import pytest
from prefect.logging import disable_run_logger

from flows import comparison, training, worker
from flows.orchestration import artifacts, flow_run
from flows.orchestration.flow_run import FinishedStage, Run, share_imports
from flows.orchestration.stages import PREPARATION, StageEnvironment
from flows.run.access_policy import CONFINED, Limits
from flows.run.workspace import Workspace
from throughline.shared.errors import InvalidParams, ServiceFailed, WorkspaceProblem
from throughline.shared.fork_client import STAGE_SERVER


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


@pytest.mark.parametrize(
    ("isolated", "saves", "stale", "refused"),
    [
        (False, True, "ingest", False),
        (False, True, "train@a", True),
        (False, True, "train@other", False),
        (True, True, "ingest", True),
        (True, False, "report", False),
    ],
)
def test_what_went_out_of_date_meanwhile_fails_a_run_unless_its_results_lack_nothing(
    make_run, monkeypatch, isolated, saves, stale, refused
):
    monkeypatch.setattr(flow_run, "_find_stale", lambda _: {stale})
    run, stages = make_run(isolated=isolated), [*PREPARATION, "train@a", "report"]
    run.check_up_to_date(stages, changed=False, saves=saves)
    with pytest.raises(WorkspaceProblem, match=stale) if refused else nullcontext():
        run.check_up_to_date(stages, changed=True, saves=saves)


@pytest.mark.parametrize(
    ("isolated", "changed", "saved", "saves"),
    [
        (False, True, False, 0),
        (True, True, True, 1),
        (True, False, True, 0),
        (True, False, False, 1),
    ],
)
def test_an_experiment_is_saved_once(make_run, monkeypatch, isolated, changed, saved, saves):
    calls = []
    monkeypatch.setattr(flow_run, "is_saved", lambda *_: saved)
    monkeypatch.setattr(flow_run, "find_experiment", lambda *_: "")
    monkeypatch.setattr(flow_run, "save_experiment", lambda *_: calls.append(1))
    assert make_run(isolated=isolated).save_experiment(changed=changed) is None
    assert len(calls) == saves


@pytest.mark.parametrize(
    ("stale", "named", "served"),
    [
        (["a"], "", False),
        (["a", "b"], "", True),
        (["identities"], "", True),
        (["a", "b"], "one", False),
    ],
)
def test_several_stages_share_their_imports_unless_a_server_is_named(
    tmp_path, monkeypatch, stale, named, served
):
    monkeypatch.setenv(STAGE_SERVER, named)
    monkeypatch.setattr(flow_run, "stage_server", lambda *_: nullcontext({STAGE_SERVER: "here"}))
    workspace = Workspace(root=tmp_path, project=tmp_path)
    with share_imports(StageEnvironment(workspace, frozenset(stale))) as stage_env:
        assert (STAGE_SERVER in stage_env.environment) is served


@pytest.mark.parametrize(
    ("stages", "stale", "certain", "known", "opens"),
    [
        ([], ["report"], True, False, False),
        (["report"], ["report"], False, True, True),
        (["report"], ["train@other"], False, True, False),
        (["report"], [], True, True, True),
        (["report"], [], False, False, True),
    ],
)
def test_a_comparison_has_a_run_in_mlflow_unless_that_knows_it(
    make_run, monkeypatch, stages, stale, certain, known, opens
):
    kept = SimpleNamespace(has_comparison=lambda _: known)
    kept.open_comparison = lambda *_: nullcontext("a run")
    monkeypatch.setattr(comparison, "comparison_run", kept)
    with comparison.open_parent(make_run(stale=stale), stages, None, certain=certain) as parent:
        assert (parent is not None) is opens


class Chained(Exception):
    """The stages that a flow asks for first."""


@pytest.fixture
def opened(monkeypatch, tmp_path):
    """What both flows open: a run that ends when it is asked for stages."""

    def chain(stages, **_):
        raise Chained(*stages)

    def open_run(*, isolated=False):
        root = tmp_path / "x" if isolated else tmp_path
        run = SimpleNamespace(workspace=Workspace(root=root, project=tmp_path), chain=chain)
        run.params = SimpleNamespace(pipelines={"naive": {}, "optimized": {}})
        run.with_forced = run.with_progress_bar = lambda _: run
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
    with pytest.raises(Chained) as chained:
        training.training.fn("naive", measure=measure)
    assert chained.value.args[-2:] == last


def test_what_contradicts_itself_is_refused_before_any_stage(opened):
    opened()
    with pytest.raises(InvalidParams, match="leave one out"):
        training.training.fn("naive", measure_again=["naive"], measure=False)
    with pytest.raises(InvalidParams, match="promote: a champion"):
        comparison.comparison.fn(["naive"], promote=True)


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
    @asynccontextmanager
    async def get_client():
        async def read_deployment(_):
            return SimpleNamespace(name=name)

        yield SimpleNamespace(read_deployment=read_deployment)

    monkeypatch.chdir(tmp_path)
    own = "deployments: [{name: training, entrypoint: its.own}]"
    (tmp_path / "prefect.yaml").write_text(own)
    monkeypatch.setattr(worker, "get_client", get_client)
    with pytest.raises(ServiceFailed, match=refused) if refused else nullcontext():
        found = asyncio.run(worker.find_entrypoint(SimpleNamespace(name="x", deployment_id=asked)))
        assert found == "its.own"


def test_a_run_of_a_worker_is_confined():
    assert worker.run_environment(Limits(retries=3, stage_timeout_s=60)) == {
        CONFINED: "1",
        "PREFECT_FLOWS_DEFAULT_RETRIES": "3",
        "THROUGHLINE_STAGE_TIMEOUT_S": "60.0",
    }
