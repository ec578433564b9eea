"""Flows with a real Prefect server, DVC, git and MLflow: no orphan, no trace left."""

import json
import re
import shutil
import signal
import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import mlflow
import pytest

from flows.run.parameters import Changes
from flows.run.resolution import resolve
from flows.run.workspace import UNNAMED, find_experiment, is_saved, open_workspace
from tasks.tune import find_key
from tests.support.answers import ANSWER
from tests.support.project import copy_project, run, run_quietly, runs_of, share_servers, start
from tests.support.shared_servers import shared_prefect
from tests.support.worktrees import leave
from throughline.config.params import load_params
from throughline.config.params_file import read_yaml
from throughline.reporting.table import comparison_table, to_text
from throughline.results.comparison import Comparison
from throughline.results.race import RaceResult
from throughline.results.train import TrainResult
from throughline.shared.layout import Layout
from throughline.tuning.budgets import read_budgets
from throughline.tuning.question import FOLDER

pytestmark = pytest.mark.timeout(900)
CHANGE = ("--set", "pipelines.naive.prefetch=2", "--name", "tuned")


def flow(folder: Path, name: str, *options: str, code: int = 0) -> str:
    """What a flow says."""
    return run(folder, "python", "-m", f"flows.{name}", *options, code=code)


def marked(mark: str, line: str, said: str) -> list[str]:
    """Lines of stages that begin with a mark."""
    return re.findall(rf"^{mark} {line}", said, re.MULTILINE)


def assert_concluded(folder: Path, said: str) -> None:
    """It ends with the table of the report in a folder, and its headline, within a screen."""
    compared = Comparison.read(folder / "report")
    assert to_text(comparison_table(compared)) in said and compared.headline in said
    assert len(said.splitlines()) <= 45


@pytest.mark.slow
def test_a_comparison_of_what_is_up_to_date_runs_nothing_and_is_concluded_where_mlflow_lacks_it(
    first,
):
    """As one that was cut before, or of which `dvc repro` by hand has made the report."""
    folder, _ = first
    left = leave(folder, "left")
    parents, said = {"filter_string": "tags.pipeline = 'comparison'"}, []
    for options in ([], [], ["--promote"]):
        for parent in runs_of(folder, **parents) if options else ():
            mlflow.MlflowClient().delete_run(parent.info.run_id)
        said.append(flow(folder, "comparison", *options))
    assert [len(marked("champion:", "", one)) for one in said] == [1, 0, 1]
    assert len(marked("·", r"\S.* up to date$", said[0])) == 12
    assert not re.search("Running stage|Traceback", "".join(said))
    assert_concluded(folder, said[0])
    assert f"removed the worktree that run {left.name} left more than a day ago" in said[0]
    assert not left.exists()
    for parent in runs_of(folder, **parents):
        assert parent.data.tags["headline"] and parent.data.tags["prefect.flow_run_id"]
        assert "dvc.experiment" not in parent.data.tags, "it had no changes"
    _, _, table = flow(folder, "comparison", "--pipeline", "optimized").partition("skipping report")
    assert "Their files: runs/optimized" in table
    assert re.search(r"^\W*optimized\b", table, re.MULTILINE)
    printed = run_quietly(folder, "python", "-m", "flows.training", "--pipeline", "naive", "--json")
    stall_pct = RaceResult.read(folder / "race").configurations["naive"].stall_pct
    assert json.loads(printed)["stall_pct"] == stall_pct


@pytest.mark.slow
def test_what_is_measured_again_is_raced_but_not_trained(first):
    folder, _ = first
    before = RaceResult.read(folder / "race")
    said = flow(folder, "comparison", "--measure-again", "naive")
    assert RaceResult.read(folder / "race").rounds != before.rounds
    assert marked("·", "train naive +up to date$", said) and marked("✓", "report ", said)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_cut_says_how_it_goes_on(first, number):
    command = [sys.executable, "-m", "flows.prepare_data", "--verbose", "--name", "cut"]
    command += ["--set", "shard.min_shards=3"]
    preparation = start(first[0], *command, shared=share_servers(command))
    assert any("Running stage 'shard'" in line for line in preparation.stdout)
    preparation.send_signal(number)
    said = preparation.communicate()[0]
    assert preparation.returncode in (128 + number, -number)
    assert said.splitlines()[-1] == "stopped; the same command with --name cut resumes it"
    assert "Traceback" not in said and "Warning" not in said


@pytest.fixture(scope="module")
def tuned(finished, tmp_path_factory):
    """A project after a comparison with a change, what it had before, and what that has said."""
    folder = copy_project(finished[0], tmp_path_factory.mktemp("tuned") / "project")
    before = (folder / "dvc.lock").read_text(), (folder / "params.yaml").read_text()
    return folder, before, flow(folder, "comparison", *CHANGE)


@pytest.mark.core
def test_a_run_with_overrides_is_isolated_and_takes_from_the_cache_what_is_there(tuned):
    folder, before, said = tuned
    assert ((folder / "dvc.lock").read_text(), (folder / "params.yaml").read_text()) == before
    assert json.loads(run_quietly(folder, "dvc", "status", "--json")) == {}
    workspace = folder / ".throughline" / "workspaces" / "tuned"
    assert read_yaml(workspace / "params.yaml")["pipelines"]["naive"]["prefetch"] == 2
    assert len(marked("·", "(snapshot|train optimized) +from DVC's cache$", said)) == 2


@pytest.mark.core
def test_the_configurations_of_a_comparison_are_below_one_run_in_mlflow(tuned):
    runs = runs_of(tuned[0])
    parent = next(found for found in runs if found.info.run_name == "tuned")
    below = ("mlflow.parentRunId", parent.info.run_id)
    children = [found for found in runs if below in found.data.tags.items()]
    assert all("throughput/speedup_vs_naive" in child.data.metrics for child in children)
    tags = {child.info.run_name: child.data.tags for child in children}
    assert {*tags} == {"tuned/naive", "tuned/optimized"}
    assert tags["tuned/naive"]["dvc.experiment"] == "tuned" and parent.data.tags["headline"]
    for tag in ("dvc.experiment", "prefect.flow_run_id", "git.commit"):
        assert parent.data.tags[tag] == tags["tuned/naive"][tag]
    assert tags["tuned/optimized"]["reused_run_id"], "it was trained by an earlier run"


@pytest.mark.core
def test_a_run_with_overrides_is_an_experiment_that_is_kept_once(tuned, monkeypatch):
    folder, *_ = tuned
    assert "tuned" in run(folder, "dvc", "exp", "list")
    monkeypatch.chdir(folder)
    resolved = resolve(folder, Changes(overrides=["pipelines.naive.prefetch=2"]))
    with open_workspace(resolved, name="tuned") as workspace:
        assert re.fullmatch("[0-9a-f]{40}", find_experiment(workspace, "tuned"))
        assert not find_experiment(workspace, "another")
        assert is_saved(workspace, "tuned"), "so the same command does not keep it again"
        other = replace(workspace, params=(folder / "params.yaml").read_text())
        assert not is_saved(other, "tuned"), "it was cut before its parameters were replaced"
        lock = workspace.root / "dvc.lock"
        last = lock.read_text()
        lock.write_text(last.replace("train@", "trained@"))
        assert not is_saved(workspace, "tuned"), "it is of an earlier run"
        lock.write_text(last)
    run(folder, "dvc", "exp", "remove", "tuned")  # as if it had been cut before it was kept
    again = flow(folder, "comparison", *CHANGE)
    assert "Running stage" not in again and "from DVC's cache" not in again, "all is up to date"
    assert "kept as DVC experiment tuned: " in again


@pytest.mark.slow
def test_a_failing_stage_says_its_reason_once_and_by_which_name_the_run_goes_on(first):
    folder, _ = first
    source = folder / "source" / "broken.npz"
    source.write_bytes(b"nonsense")
    options = ("--set", "data.path=source/broken.npz")
    said = flow(folder, "prepare_data", *options, code=2)
    assert "ingest failed: UnreadableSource: " in said
    assert said.count("broken.npz") == 1, "reported once"
    assert "Traceback" not in said and "Finished in state" not in said
    log = Path(re.search(r"Log: (\S+)", said)[1]).read_text()
    assert "broken.npz" in log and "Finished in state Failed" in log, "what Prefect says is there"
    (name,) = re.findall(r"^the same command with --name (\S+) continues", said, re.MULTILINE)
    shutil.copy(folder / "source" / "data.npz", source)
    again = flow(folder, "prepare_data", *options, "--name", name)
    assert marked("·", "fetch +up to date$", again), "it is finished there"
    assert marked("✓", "ingest ", again)


@pytest.mark.slow
def test_a_training_measures_nothing_or_is_a_complete_experiment(first):
    folder, _ = first
    options = ("--pipeline", "naive", "--set", "train.epochs=1")
    said = flow(folder, "training", *options, "--no-measure")
    assert "profile" not in said and "`naive` is trained, not measured" in said
    name = re.search(r"\.throughline/workspaces/([^/]+)/runs/naive", said)[1]
    workspace = folder / ".throughline" / "workspaces" / name
    assert not (folder / UNNAMED / name).exists(), "it would be removed a day later"
    files = workspace / "runs" / "naive"
    assert TrainResult.read(files).last_epoch and not (files / "profile").exists()
    assert name not in run(folder, "dvc", "exp", "list", "--name-only")
    # As it has said, the same command without that goes on from there.
    said = flow(folder, "training", *options, "--name", name)
    assert marked("·", "train naive +up to date$", said)
    assert f"kept as DVC experiment {name}" in said
    assert_concluded(workspace, said)
    assert list(read_yaml(workspace / "params.yaml")["pipelines"]) == ["naive"]
    assert json.loads(run_quietly(workspace, "dvc", "status", "--json")) == {}


@pytest.mark.slow
def test_what_is_found_is_shown_and_added_also_where_it_cannot_be_added(first):
    folder, before = first[0], list_artifacts()
    path, answer = folder / "params.yaml", replace(ANSWER, mlflow_run_id=None)
    key = find_key(load_params(path), Layout(folder), read_budgets())
    answer.write(folder / FOLDER / key)
    assert flow(folder, "tuning", "--apply").splitlines()[-1] == answer.sentence
    assert "train@tuned" in run(folder, "dvc", "status")
    shown = {("tuning", "table"), ("tuning-report", "markdown"), ("tuning-picture", "image")}
    assert shown <= {*list_artifacts()[len(before) :]}
    path.write_text(path.read_text().replace("prefetch: 7", "prefetch: 8"))
    refused = flow(folder, "tuning", "--apply", code=2)
    assert answer.sentence in refused
    assert "pipelines.tuned exists with other settings" in " ".join(refused.split())
    assert list_artifacts()[len(before) :].count(("tuning", "table")) == 2


def list_artifacts():
    """Keys and kinds of what flows have shown in the Prefect that tests share, in their order."""
    file = shared_prefect.folder / "home" / "prefect.db"
    if not file.exists():
        return []
    with closing(sqlite3.connect(file)) as database:
        return database.execute("SELECT key, type FROM artifact ORDER BY created").fetchall()
