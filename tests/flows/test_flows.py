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

pytestmark = pytest.mark.timeout(400)
CHANGE = ("--set", "pipelines.naive.prefetch=2", "--name", "tuned")


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
        said.append(run(folder, "python", "-m", "flows.comparison", *options))
    assert [len(re.findall(r"^champion: ", one, re.MULTILINE)) for one in said] == [1, 0, 1]
    # Without asking DVC stage by stage.
    assert len(re.findall(r"^· \S.* up to date$", said[0], re.MULTILINE)) == 12
    assert not re.search("Running stage|Traceback", "".join(said))
    compared = Comparison.read(folder / "report")
    assert to_text(comparison_table(compared)) in said[0], "it ends with the table"
    assert compared.headline in said[0] and len(said[0].splitlines()) <= 45
    assert f"removed the worktree that run {left.name} left more than a day ago" in said[0]
    assert not left.exists()
    for parent in runs_of(folder, **parents):
        assert parent.data.tags["headline"] and parent.data.tags["prefect.flow_run_id"]
        assert "dvc.experiment" not in parent.data.tags, "it had no changes"
    printed = run_quietly(folder, "python", "-m", "flows.training", "--pipeline", "naive", "--json")
    stall_pct = RaceResult.read(folder / "race").configurations["naive"].stall_pct
    assert json.loads(printed)["stall_pct"] == stall_pct


@pytest.mark.slow
def test_what_is_measured_again_while_parameters_change_concludes_nothing(first):
    folder, _ = first
    before = RaceResult.read(folder / "race")
    command = [sys.executable, "-m", "flows.comparison", "--measure-again", "naive", "--verbose"]
    flow = start(folder, *command, shared=share_servers(command))
    said, params = "", folder / "params.yaml"
    for line in flow.stdout:
        said += line
        if "racing naive" in line:
            text = params.read_text()
            params.write_text(text.replace("learning_rate: 0.01\n", "learning_rate: 0.02\n"))
    assert flow.wait() == 2, said
    after = RaceResult.read(folder / "race")
    assert after.rounds != before.rounds
    assert re.search(r"^· train naive +up to date$", said, re.MULTILINE), "it is not trained"
    assert re.search(r"^✓ report ", said, re.MULTILINE)
    assert "is not finished: params.yaml, code or data changed during the run" in said
    stale = "profile@naive, profile@optimized, race, train@naive, train@optimized"
    assert f"out of date again: {stale}. Its" in said, "nothing else"
    assert "champion:" not in said


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_cut_says_how_it_goes_on(first, number):
    folder, _ = first
    command = [sys.executable, "-m", "flows.prepare_data", "--verbose", "--name", "cut"]
    command += ["--set", "shard.min_shards=3"]
    flow = start(folder, *command, shared=share_servers(command))
    for line in flow.stdout:
        if "Running stage 'shard'" in line:
            flow.send_signal(number)
            break
    said = flow.communicate()[0]
    assert flow.returncode in (128 + number, -number)
    assert said.splitlines()[-1] == "stopped; the same command with --name cut resumes it"
    assert "Traceback" not in said and "Warning" not in said


@pytest.fixture(scope="module")
def tuned(finished, tmp_path_factory):
    """A project after a comparison with a change, what it had before, and what that has said."""
    folder = copy_project(finished[0], tmp_path_factory.mktemp("tuned") / "project")
    before = (folder / "dvc.lock").read_text(), (folder / "params.yaml").read_text()
    return folder, before, run(folder, "python", "-m", "flows.comparison", *CHANGE)


@pytest.mark.core
def test_a_run_with_overrides_is_isolated_and_takes_from_the_cache_what_is_there(tuned):
    folder, before, output = tuned
    assert ((folder / "dvc.lock").read_text(), (folder / "params.yaml").read_text()) == before
    assert json.loads(run_quietly(folder, "dvc", "status", "--json")) == {}
    workspace = folder / ".throughline" / "workspaces" / "tuned"
    assert read_yaml(workspace / "params.yaml")["pipelines"]["naive"]["prefetch"] == 2
    for restored in ("snapshot", "train optimized"):
        assert re.search(rf"^· {restored} +from DVC's cache$", output, re.MULTILINE)


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
    again = run(folder, "python", "-m", "flows.comparison", *CHANGE)
    assert "Running stage" not in again and "from DVC's cache" not in again, "all is up to date"
    assert "kept as DVC experiment tuned: " in again


@pytest.mark.slow
def test_a_failing_stage_says_its_reason_once_and_by_which_name_the_run_goes_on(first):
    folder, _ = first
    source = folder / "source" / "broken.npz"
    source.write_bytes(b"nonsense")
    command = ["python", "-m", "flows.prepare_data", "--set", "data.path=source/broken.npz"]
    said = run(folder, *command, code=2)
    assert "ingest failed: UnreadableSource: " in said
    assert said.count("broken.npz") == 1, "reported once"
    assert "Traceback" not in said and "Finished in state" not in said
    log = Path(re.search(r"Log: (\S+)", said)[1]).read_text()
    assert "broken.npz" in log and "Finished in state Failed" in log, "what Prefect says is there"
    name = re.search(r"^the same command with --name (\S+) continues", said, re.MULTILINE)[1]
    shutil.copy(folder / "source" / "data.npz", source)
    again = run(folder, *command, "--name", name)
    assert re.search(r"^· fetch +up to date$", again, re.MULTILINE), "it is finished there"
    assert re.search(r"^✓ ingest ", again, re.MULTILINE)


@pytest.mark.slow
def test_a_training_measures_nothing_or_is_a_complete_experiment(first):
    folder, _ = first
    command = ["python", "-m", "flows.training", "--pipeline", "naive", "--set", "train.epochs=1"]
    output = run(folder, *command, "--no-measure")
    assert "profile" not in output
    assert "`naive` is trained, not measured" in output
    name = re.search(r"\.throughline/workspaces/([^/]+)/runs/naive", output)[1]
    workspace = folder / ".throughline" / "workspaces" / name
    assert not (folder / UNNAMED / name).exists(), "it would be removed a day later"
    files = workspace / "runs" / "naive"
    assert TrainResult.read(files).last_epoch and not (files / "profile").exists()
    assert name not in run(folder, "dvc", "exp", "list", "--name-only")
    # As it has said, the same command without that goes on from there.
    output = run(folder, *command, "--name", name)
    assert re.search(r"^· train naive +up to date$", output, re.MULTILINE)
    assert f"kept as DVC experiment {name}" in output
    compared = Comparison.read(workspace / "report")
    assert to_text(comparison_table(compared)) in output and compared.headline in output
    assert len(output.splitlines()) < 45
    assert list(read_yaml(workspace / "params.yaml")["pipelines"]) == ["naive"]
    # What is kept is what dvc.lock says.
    assert json.loads(run_quietly(workspace, "dvc", "status", "--json")) == {}


READING = """
import sys
from pathlib import Path
from flows.{flow} import command
from flows.run.locks import lock_path
from throughline.results.base import read_value
from throughline.shared.file_lock import hold_if_free

lock, free = lock_path(Path.cwd(), "project"), set()

def look(frame, event, argument):
    if event == "call" and frame.f_code is read_value.__code__:
        with hold_if_free(lock, "a test") as held:
            free.add(held is not None)

sys.setprofile(look)
command(pipeline={pipeline!r})
print("free", free)
"""  # of a flow that asks whether others could change each result while it is read


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flow", "pipeline"),
    [("training", "naive"), ("comparison", ["optimized"]), ("comparison", ["naive", "optimized"])],
    ids=["a training", "a comparison of some", "a comparison"],
)
def test_results_are_read_while_no_other_run_changes_them(first, flow, pipeline):
    said = run(first[0], "python", "-c", READING.format(flow=flow, pipeline=pipeline))
    assert "free {False}" in said
    if pipeline == ["optimized"]:
        _, _, table = said.partition("skipping report")
        assert "Their files: runs/optimized" in table
        assert re.search(r"^\W*optimized\b", table, re.MULTILINE)


# A model that takes all the time ends a search after its first phase, of few processes.
SHORT_SEARCH = """
batch_size: 4
model!: {name: emulated, options: {step_ms: 60}}
pipelines!: {naive: {read: shards}}
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_search_with_changes_shows_what_it_finds_and_leaves_params_yaml(first):
    folder, _ = first
    before = (folder / "params.yaml").read_bytes()
    (folder / "changes.yaml").write_text(SHORT_SEARCH)
    command = ["python", "-m", "flows.tuning", "--time", "1min", "--epochs", "3"]
    output = run(folder, *command, "--overlay", "changes.yaml")
    assert "Traceback" not in output
    assert re.search(r"^✓ tune ", output, re.MULTILINE)
    assert re.search(r"^ ?naive +", output, re.MULTILINE), "a line of the table"
    assert output.splitlines()[-1].startswith("tuned: ")
    assert (folder / "params.yaml").read_bytes() == before


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_is_found_is_shown_and_added_also_where_it_cannot_be_added(first):
    folder, before = first[0], list_artifacts()
    path, search = folder / "params.yaml", ("python", "-m", "flows.tuning", "--apply")
    answer = replace(ANSWER, mlflow_run_id=None)
    key = find_key(load_params(path), Layout(folder), read_budgets())
    answer.write(folder / FOLDER / key)
    assert run(folder, *search).splitlines()[-1] == answer.sentence
    assert "train@tuned" in run(folder, "dvc", "status")
    shown = {("tuning", "table"), ("tuning-report", "markdown"), ("tuning-picture", "image")}
    assert shown <= {*list_artifacts()[len(before) :]}
    path.write_text(path.read_text().replace("prefetch: 7", "prefetch: 8"))
    refused = run(folder, *search, code=2)
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
