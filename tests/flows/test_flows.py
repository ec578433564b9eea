"""Flows with a real Prefect server (started and stopped by Prefect itself), DVC, git and MLflow; no
orphan, no trace left.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import mlflow
import psutil
import pytest
from project import environment, experiment_of, run, run_quietly
from ruamel.yaml import YAML
from shared_servers import shared_libraries

from flows.run.workspace import EPHEMERAL
from throughline.reporting.table import comparison_table, to_text
from throughline.results.comparison import Comparison
from throughline.results.profiling import ProfileResult
from throughline.results.train import TrainResult

pytestmark = pytest.mark.timeout(400)
COUNT_RESOLVING = """
import sys
from collections import Counter
from flows import prepare_data
from throughline.config import params, params_file

COUNTED = {one.__code__ for one in (params_file.apply_overrides, params.check)}
calls = Counter()

def count(frame, event, argument):
    if event == "call" and frame.f_code in COUNTED:
        calls[frame.f_code.co_name] += 1

sys.setprofile(count)
prepare_data.command(set_=["model.options.width=9"])
print("called", dict(sorted(calls.items())))
"""


def train_naive(folder, override, *, name, code=0):
    """Run the training flow with a change; returns what it says."""
    command = ["python", "-m", "flows.training", "--pipeline", "naive"]
    return run(folder, *command, "--set", override, "--name", name, code=code)


@pytest.mark.slow
def test_a_comparison_of_what_is_up_to_date_runs_nothing(first):
    folder, _ = first
    output = run(folder, "python", "-m", "flows.comparison")
    assert len(re.findall(r"^· \S.* up to date$", output, re.MULTILINE)) == 11, (
        "without asking DVC stage by stage"
    )
    assert "Running stage" not in output
    assert "Traceback" not in output
    compared = Comparison.read(folder / "report")
    assert to_text(comparison_table(compared)) in output, "it ends with the table"
    assert compared.headline in output
    assert len(output.splitlines()) <= 45
    said = run_quietly(folder, "python", "-m", "flows.training", "--pipeline", "naive", "--json")
    assert json.loads(said)["stall_pct"] == ProfileResult.read(folder / "runs" / "naive").stall_pct


@pytest.mark.slow
def test_a_champion_that_is_asked_for_is_chosen_although_nothing_has_changed(first):
    folder, _ = first
    output = run(folder, "python", "-m", "flows.comparison", "--promote")
    assert "Running stage" not in output
    assert len(re.findall(r"^champion: ", output, re.MULTILINE)) == 1


@pytest.mark.slow
def test_a_configuration_is_measured_again_although_nothing_has_changed(first):
    folder, _ = first
    before = ProfileResult.read(folder / "runs" / "naive")
    output = run(folder, "python", "-m", "flows.comparison", "--measure-again", "naive")
    assert re.search(r"^✓ profile naive ", output, re.MULTILINE)
    assert re.search(r"^· train naive +up to date$", output, re.MULTILINE), "it is not trained"
    assert re.search(r"^✓ report ", output, re.MULTILINE)
    after = ProfileResult.read(folder / "runs" / "naive")
    assert after.stall_measurement_s != before.stall_measurement_s
    assert json.loads(run_quietly(folder, "dvc", "status", "--json")) == {}


@pytest.mark.slow
def test_a_comparison_whose_parameters_change_meanwhile_concludes_nothing(first):
    folder, _ = first
    flow = subprocess.Popen(
        [sys.executable, "-m", "flows.comparison", "--measure-again", "naive", "--verbose"],
        cwd=folder,
        env=environment(folder) | shared_libraries.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    said = ""
    for line in flow.stdout:
        said += line
        if "Running stage 'profile@naive'" in line:
            params = (folder / "params.yaml").read_text()
            (folder / "params.yaml").write_text(params.replace("0.01\n", "0.02\n", 2))
    assert flow.wait() == 2, said
    assert "is not finished: params.yaml, code or data have changed" in said
    assert "train@naive, train@optimized out of date again" in said
    assert "champion:" not in said
    mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
    (parent,) = mlflow.search_runs(
        experiment_names=[experiment_of(folder)],
        filter_string="tags.pipeline = 'comparison'",
        output_format="list",
    )
    assert parent.info.status == "FAILED" and "headline" not in parent.data.tags


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_cut_says_how_it_goes_on(first, number):
    folder, _ = first
    command = [sys.executable, "-m", "flows.prepare_data", "--verbose", "--name", "cut"]
    flow = subprocess.Popen(
        [*command, "--set", "shard.min_shards=3"],
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    for line in flow.stdout:
        if "Running stage 'shard'" in line:
            flow.send_signal(number)
            break
    said = flow.communicate()[0]
    assert flow.returncode in (128 + number, -number)
    assert said.splitlines()[-1] == "stopped; the same command with --name cut resumes it"
    assert "Traceback" not in said and "Warning" not in said


@pytest.mark.slow
def test_a_run_with_overrides_is_isolated_and_becomes_an_experiment(first):
    folder, _ = first
    before = (folder / "dvc.lock").read_text(), (folder / "params.yaml").read_text()
    change = ("--set", "pipelines.naive.prefetch=2", "--name", "tuned")
    command = ("python", "-m", "flows.comparison", *change)
    output = run(folder, *command)
    assert ((folder / "dvc.lock").read_text(), (folder / "params.yaml").read_text()) == before
    workspace = folder / ".throughline" / "workspaces" / "tuned"
    assert (
        YAML(typ="safe").load((workspace / "params.yaml").read_text())["pipelines"]["naive"][
            "prefetch"
        ]
        == 2
    )
    assert "tuned" in run(folder, "dvc", "exp", "list")
    for restored in ("snapshot", "train optimized"):
        assert re.search(rf"^· {restored} +from DVC's cache$", output, re.MULTILINE), (
            "comes from the shared cache"
        )
    mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
    runs = mlflow.search_runs(experiment_names=[experiment_of(folder)], output_format="list")
    parent = next(found for found in runs if found.info.run_name == "tuned")
    children = [
        found for found in runs if found.data.tags.get("mlflow.parentRunId") == parent.info.run_id
    ]
    assert {child.info.run_name for child in children} == {"tuned/naive", "optimized"}
    assert all("throughput/speedup_vs_naive" in child.data.metrics for child in children)
    by_name = {child.info.run_name: child.data.tags for child in children}
    assert by_name["tuned/naive"]["dvc.experiment"] == "tuned"
    assert by_name["optimized"]["reused_run_id"], "it was up to date and belongs to an earlier run"
    assert parent.data.tags["headline"]
    assert json.loads(run_quietly(folder, "dvc", "status", "--json")) == {}
    again = run(folder, *command)
    assert "Running stage" not in again and "from DVC's cache" not in again, "all is up to date"
    assert "kept as" not in again
    run(folder, "dvc", "exp", "remove", "tuned")  # as if it had been cut before it was kept
    assert "kept as DVC experiment tuned" in run(folder, *command)


@pytest.mark.slow
def test_parameters_are_merged_and_checked_once_for_a_command_and_its_flow(first):
    output = run(first[0], "python", "-c", COUNT_RESOLVING)
    assert "called {'apply_overrides': 1, 'check': 1}" in output
    assert re.search(r"^· snapshot +from DVC's cache$", output, re.MULTILINE)


@pytest.mark.slow
def test_wrong_overrides_leave_no_trace(first):
    folder, _ = first
    output = train_naive(folder, "train.epoch=1", name="wrong", code=2)
    assert "train.epoch is not a field; did you mean epochs?" in output
    assert not (folder / ".throughline" / "workspaces" / "wrong").exists()


@pytest.mark.slow
def test_a_run_that_needs_an_untracked_file_is_refused_before_its_stages(first):
    folder, _ = first
    builder = "def build(input_shape, outputs, **options): ...\n"
    (folder / "my_models.py").write_text(builder)
    (folder / "unrelated.py").touch()
    output = train_naive(folder, "model.name=my_models:build", name="untracked", code=2)
    for name in ("my_models.py", "unrelated.py"):
        (folder / name).unlink()
    assert "`git add --force my_models.py`" in output and "unrelated" not in output
    assert "identities" not in output


@pytest.mark.slow
def test_a_failing_stage_is_named_and_its_reason_told_once(first):
    folder, _ = first
    source = folder / "source" / "broken.npz"
    source.write_bytes(b"nonsense")
    output = train_naive(folder, "data.path=source/broken.npz", name="broken", code=2)
    source.unlink()
    assert "ingest failed: UnreadableSource: " in output
    assert output.count("broken.npz") == 1, "reported once"
    assert "Traceback" not in output and "Finished in state" not in output
    log = Path(output.partition("Log: ")[2].strip()).read_text()
    assert "broken.npz" in log and "Finished in state Failed" in log, "what Prefect says is there"


@pytest.mark.slow
def test_killing_the_flow_leaves_no_orphan_and_no_lock(first):
    folder, _ = first
    command = [
        sys.executable,
        "-m",
        "flows.training",
        "--pipeline",
        "naive",
        "--set",
        "train.epochs=5000",
        "--name",
        "killed",
        "--verbose",
    ]
    flow = subprocess.Popen(
        command,
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    for line in flow.stdout:
        if "epoch 1 of 5000" in line:
            break
    else:
        pytest.fail("the training never began")
    below = psutil.Process(flow.pid).children(recursive=True)
    ours = [process for process in below if process.status() != psutil.STATUS_ZOMBIE]
    assert len(ours) >= 6, "two supervisors, DVC and the stage, and the server below two of its own"
    os.kill(flow.pid, signal.SIGKILL)
    flow.wait()
    _, alive = psutil.wait_procs(ours, timeout=15)
    assert not alive
    run(folder, "dvc", "status")


@pytest.mark.slow
def test_a_name_cannot_lead_out_of_the_workspaces(first):
    folder, _ = first
    output = train_naive(folder, "train.epochs=1", name="../../out", code=2)
    assert "'../../out' cannot be the name of a run" in output or "should match pattern" in output
    assert not (folder.parent / "out").exists()


@pytest.mark.slow
def test_a_training_measures_nothing_or_is_a_complete_experiment(first):
    folder, _ = first
    command = ["python", "-m", "flows.training", "--pipeline", "naive", "--no-measure"]
    output = run(folder, *command, "--set", "train.epochs=1", "--name", "single")
    assert "profile" not in output
    assert "`naive` is trained, not measured" in output
    files = folder / ".throughline" / "workspaces" / "single" / "runs" / "naive"
    assert TrainResult.read(files).last_epoch and not (files / "profile.json").exists()
    assert "single" not in run(folder, "dvc", "exp", "list", "--name-only")
    # As it has said, the same command without that goes on from there.
    output = train_naive(folder, "train.epochs=1", name="single")
    assert re.search(r"^· train naive +up to date$", output, re.MULTILINE)
    assert "kept as DVC experiment single" in output
    compared = Comparison.read(folder / ".throughline" / "workspaces" / "single" / "report")
    assert to_text(comparison_table(compared)) in output and compared.headline in output
    assert len(output.splitlines()) < 45
    workspace = folder / ".throughline" / "workspaces" / "single"
    assert list(YAML(typ="safe").load((workspace / "params.yaml").read_text())["pipelines"]) == [
        "naive"
    ]
    assert json.loads(run_quietly(workspace, "dvc", "status", "--json")) == {}, (
        "what is kept is what dvc.lock says"
    )


@pytest.mark.slow
def test_what_a_run_without_a_name_has_trained_and_not_measured_stays(first):
    folder, _ = first
    command = ["python", "-m", "flows.training", "--pipeline", "naive", "--no-measure"]
    run(folder, *command, "--set", "train.epochs=1")
    (worktree,) = (folder / ".throughline" / "workspaces").iterdir()
    assert (worktree / "runs" / "naive" / "model.keras").exists()
    assert not (worktree / EPHEMERAL).exists(), "it would be removed a day later"


@pytest.mark.slow
def test_a_comparison_of_some_configurations_ends_with_their_table(first):
    folder, _ = first
    output = run(folder, "python", "-m", "flows.comparison", "--pipeline", "optimized")
    assert "skipping report" in output and "Their files: runs/optimized" in output
    assert re.search(r"^\W*optimized\b", output.partition("skipping report")[2], re.MULTILINE)
