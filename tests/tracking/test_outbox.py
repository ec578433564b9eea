"""What could not be sent is kept in its order, with copies of its files, until it has been sent."""

from __future__ import annotations

import os

import mlflow
import pytest

from flows.servers.services import find_free_port
from throughline.shared.layout import STORE_HOME
from throughline.tracking.experiments import RunKey
from throughline.tracking.outbox import PendingRun, enqueue, list_pending, remove
from throughline.tracking.recorder import PARENT_RUN, Recorder, find_sent, sync
from throughline.tracking.store import ADDRESS


def unsent(pipeline: str, *calls) -> PendingRun:
    run_key = RunKey(dataset="photos", pipeline=pipeline, data_digest="d", sketch=["1f", "a0"])
    return PendingRun(run_key=run_key, run_id=None, status="FINISHED", tags={}, calls=calls)


def test_runs_come_back_value_by_value_the_oldest_first(tmp_path):
    runs = [unsent("naive", ["metric", "loss", 0.5, 3]), unsent("cached", ["tag", "a", "b"])]
    for run in runs:
        enqueue(tmp_path, run)
    assert [run for _, run in list_pending(tmp_path)] == [
        PendingRun(**{**vars(run), "calls": list(run.calls)}) for run in runs
    ]


def test_files_and_folders_are_copied_and_outlive_their_originals(tmp_path):
    worktree, outbox = tmp_path / "worktree", tmp_path / "outbox"
    (worktree / "profile").mkdir(parents=True)
    (worktree / "profile" / "trace.txt").write_text("trace")
    (worktree / "plan.json").write_text("plan")
    calls = (["artifact", str(worktree / "profile"), "x"], ["model", str(worktree / "plan.json")])
    enqueue(outbox, unsent("naive", *calls))
    for path in (worktree / "profile" / "trace.txt", worktree / "plan.json"):
        path.unlink()
    ((file, run),) = list_pending(outbox)
    (kind, folder), (_, plan) = ((call[0], call[1]) for call in run.calls)
    assert (kind, run.calls[0][2]) == ("artifact", "x")
    assert (outbox / folder / "trace.txt").read_text() == "trace"
    assert (outbox / plan).read_text() == "plan"
    remove(file)
    assert list(outbox.iterdir()) == [] and list(list_pending(outbox)) == []


@pytest.fixture
def away(tmp_path, monkeypatch):
    """A store whose server is away; without the variable it is a file that is there."""
    monkeypatch.setenv(STORE_HOME, str(tmp_path))
    monkeypatch.setenv(ADDRESS, f"http://127.0.0.1:{find_free_port()}")
    yield monkeypatch
    mlflow.set_tracking_uri(None)


KEY = RunKey(dataset="lost", pipeline="naive", data_digest="d")


@pytest.mark.integration
def test_a_run_that_was_kept_is_as_if_it_had_been_sent(away):
    away.setenv(PARENT_RUN, "ab" * 16)
    away.setenv("DVC_EXP_NAME", "short")
    with Recorder(KEY) as recorder:
        recorder.log_metrics({"train/loss": 1.0})
    for name in (ADDRESS, PARENT_RUN, "DVC_EXP_NAME"):
        away.delenv(name)
    assert sync() == (1, 0)
    run = mlflow.get_run(find_sent(KEY, recorder.unsent))
    assert run.info.run_name == "short/naive"
    assert run.data.tags["mlflow.parentRunId"] == "ab" * 16
    assert run.data.metrics == {"train/loss": 1.0}


@pytest.mark.integration
def test_what_an_interrupted_training_kept_leaves_the_finished_one_finished(away):
    server = os.environ[ADDRESS]
    away.delenv(ADDRESS)
    away.setenv("DVC_EXP_NAME", "first")
    with pytest.raises(KeyboardInterrupt), Recorder(KEY) as first:
        mlflow.set_tracking_uri(server)
        first.log_metrics({"train/loss": 1.0})
        raise KeyboardInterrupt
    away.setenv("DVC_EXP_NAME", "later")
    with Recorder(KEY, run_id=first.run_id):
        pass
    away.delenv("DVC_EXP_NAME")
    assert sync() == (1, 0)
    run = mlflow.get_run(first.run_id)
    assert run.info.status == "FINISHED" and run.data.tags["dvc.experiment"] == "later"
    assert run.data.metrics == {"train/loss": 1.0}
