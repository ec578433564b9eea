"""What could not be sent is kept in its order, with copies of its files, until it has been sent."""

import math
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import mlflow
import pytest

from tasks.sync import main
from tests.support.mlflow_servers import points
from tests.support.small_data import write_files
from throughline.shared.errors import DamagedFile
from throughline.shared.file_lock import hold_outputs
from throughline.tracking.calls import PendingRun, enqueue, list_pending, remove
from throughline.tracking.experiments import RunKey
from throughline.tracking.lineage import PARENT_RUN
from throughline.tracking.recorder import UNSENT, Recorder, find_sent, is_gone, sync
from throughline.tracking.store import ADDRESS, store_home


def unsent(pipeline: str, *calls) -> PendingRun:
    run_key = RunKey(dataset="photos", pipeline=pipeline, data_digest="d", sketch=["1f", "a0"])
    return PendingRun(run_key=run_key, run_id=None, status="FINISHED", tags={}, calls=calls)


def test_runs_come_back_value_by_value_the_oldest_first_and_a_damaged_one_is_named(tmp_path):
    runs = [unsent("naive", ["metric", "loss", 0.5, 3]), unsent("cached", ["tag", "a", "b"])]
    for run in runs:
        enqueue(tmp_path, run)
    expected = [replace(run, calls=list(run.calls)) for run in runs]
    assert [run for _, run in list_pending(tmp_path)] == expected
    file = min(tmp_path.iterdir())
    file.write_text(file.read_text()[:40])
    pending = list_pending(tmp_path)
    assert next(pending)[1].run_key.pipeline == "cached", "it holds up no other"
    with pytest.raises(DamagedFile, match=f"{file.name} is damaged, .* so delete this file"):
        next(pending)


def test_files_and_folders_are_copied_and_outlive_their_originals(tmp_path):
    outbox, files = tmp_path / "outbox", {"profile/trace.txt": "trace", "plan.json": "plan"}
    worktree = write_files(tmp_path / "worktree", files)
    calls = (["artifact", str(worktree / "profile"), "x"], ["model", str(worktree / "plan.json")])
    enqueue(outbox, unsent("naive", *calls))
    shutil.rmtree(worktree)
    ((file, run),) = list_pending(outbox)
    (kind, folder), (_, plan) = ((call[0], call[1]) for call in run.calls)
    assert (kind, run.calls[0][2]) == ("artifact", "x")
    assert (outbox / folder / "trace.txt").read_text() == "trace"
    assert (outbox / plan).read_text() == "plan"
    remove(file)
    assert list(outbox.iterdir()) == [] and list(list_pending(outbox)) == []


@pytest.fixture
def away(mlflow_store, absent_server, monkeypatch):
    """A store whose server is away; without the variable it is a file that is there."""
    monkeypatch.setenv(ADDRESS, absent_server)
    return monkeypatch


KEY = RunKey(dataset="lost", pipeline="naive", data_digest="d")


@pytest.mark.integration
def test_a_run_that_was_kept_is_as_if_it_had_been_sent(away):
    away.setenv(PARENT_RUN, "ab" * 16)
    away.setenv("DVC_EXP_NAME", "short")
    with Recorder(KEY) as recorder:
        recorder.log_metrics({"train/loss": 1.0})
    with Recorder(KEY, follows=recorder.unsent) as profile:
        profile.log_metrics({"input/stall_pct": 12.0})
    assert recorder.unsent and recorder.run_id is None and not profile.sent
    for name in (ADDRESS, PARENT_RUN, "DVC_EXP_NAME"):
        away.delenv(name)
    assert sync() == (2, 0) and count_runs() == 1
    run = mlflow.get_run(find_sent(recorder.unsent))
    assert run.info.run_name == "short/naive"
    assert run.data.tags["mlflow.parentRunId"] == "ab" * 16
    assert run.data.metrics == {"train/loss": 1.0, "input/stall_pct": 12.0}


@pytest.mark.slow
def test_what_an_interrupted_training_kept_leaves_the_finished_one_finished(away):
    server = os.environ[ADDRESS]
    away.delenv(ADDRESS)
    away.setenv("DVC_EXP_NAME", "first")
    with pytest.raises(KeyboardInterrupt), Recorder(KEY) as first:
        mlflow.set_tracking_uri(server)
        first.log_metrics({"train/loss": 1.0})
        raise KeyboardInterrupt
    away.delenv(ADDRESS)
    away.setenv("DVC_EXP_NAME", "later")
    with Recorder(KEY, run_id=first.run_id):
        pass
    away.delenv("DVC_EXP_NAME")
    assert sync() == (1, 0)
    run = mlflow.get_run(first.run_id)
    assert run.info.status == "FINISHED" and run.data.tags["dvc.experiment"] == "later"
    assert run.data.metrics == {"train/loss": 1.0}


def count_runs():
    return len(mlflow.search_runs(search_all_experiments=True, output_format="list"))


@pytest.mark.integration
@pytest.mark.parametrize(("is_back", "error"), [(True, SystemExit), (False, KeyboardInterrupt)])
def test_parts_of_a_training_of_which_one_or_both_were_kept_become_one_run(away, is_back, error):
    """What was kept of its first part comes later, with epochs that the second has logged."""
    with pytest.raises(error), Recorder(KEY) as first:
        first.log_metrics({"train/loss": 2.0}, step=0)
        first.log_metrics({"first/part": 1.0})
        assert first.unsent, "as a checkpoint holds it"
        raise error
    if is_back:
        away.delenv(ADDRESS)
    with Recorder(KEY, unsent=first.unsent) as second:
        second.log_metrics({"train/loss": 2.0}, step=0)
        second.log_metrics({"train/loss": float("nan")}, step=1)
    assert (second.sent, second.unsent) == (is_back, None if is_back else first.unsent)
    away.delenv(ADDRESS, raising=False)
    assert sync() == (1 if is_back else 2, 0) and count_runs() == 1
    run_id = find_sent(first.unsent)
    assert second.run_id in (None, run_id)
    run = mlflow.get_run(run_id)
    assert run.info.status == "FINISHED" and run.data.metrics["first/part"] == 1
    (_, loss), (step, lost) = points(run_id)
    assert loss == 2 and step == 1 and math.isnan(lost), "a number again"


@pytest.mark.integration
def test_sending_that_is_interrupted_makes_no_run_twice(away):
    with pytest.raises(ArithmeticError), Recorder(KEY) as recorder:
        recorder.log_metrics({"train/loss": 2.0}, step=0)
        raise ArithmeticError
    away.delenv(ADDRESS)

    def end(*_):
        raise KeyboardInterrupt

    with away.context() as interrupted, pytest.raises(KeyboardInterrupt):
        interrupted.setattr(mlflow, "end_run", end)
        sync()
    mlflow.end_run("KILLED")  # as the process that was interrupted would have
    assert count_runs() == 1 and sync() == (1, 0) and count_runs() == 1
    run_id = find_sent(recorder.unsent)
    assert mlflow.get_run(run_id).info.status == "FAILED", "as it ended"
    assert points(run_id) == [(0, 2.0)]


@pytest.mark.integration
def test_what_cannot_be_kept_is_said_in_a_line_and_ends_nothing(away, tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "train.json").write_text("{}")
    with Recorder(KEY) as recorder:
        recorder.log_artifact(tmp_path / "train.json")
        recorder.log_artifact(tmp_path / "pipe")
    said = capsys.readouterr().out
    assert said.count("the data of naive for MLflow cannot be kept") == 1
    assert "named pipe" in said
    assert not list((store_home() / UNSENT).iterdir())
    assert not is_gone(None, recorder.unsent), "the store does not answer"
    away.delenv(ADDRESS)
    assert is_gone(None, recorder.unsent), "and what is measured later is not sent, either"


@pytest.mark.integration
def test_what_cannot_be_kept_again_stays_as_it_was_kept(away, tmp_path):
    (tmp_path / "train.json").write_text("{}")
    with Recorder(KEY) as recorder:
        recorder.log_artifact(tmp_path / "train.json")
    ((file, run),) = list_pending(store_home() / UNSENT)
    copy = Path(run.calls[0][1])
    copy.unlink()
    os.mkfifo(copy)
    assert sync() == (0, 1)
    assert [path for path, _ in list_pending(store_home() / UNSENT)] == [file]


@pytest.mark.integration
def test_what_belongs_to_a_run_that_is_gone_holds_up_nothing(away, capsys):
    for tag in ("ab" * 16, None):
        with Recorder(KEY, follows=tag) as recorder:
            recorder.log_metrics({"train/loss": 1.0})
    away.delenv(ADDRESS)
    assert sync() == (1, 1), "what belongs to it stays, since another store may have it"
    assert "of naive is not sent: MLflow at" in capsys.readouterr().out
    assert find_sent(recorder.unsent)


@pytest.mark.slow
def test_a_run_of_another_store_is_kept_until_that_one_is_named(away, tmp_path, capsys):
    server, home = os.environ[ADDRESS], store_home()
    shutil.copy(home / "mlflow.db", tmp_path / "other.db")
    other = f"sqlite:///{tmp_path / 'other.db'}"
    away.setenv(ADDRESS, other)
    with Recorder(KEY) as recorder:
        mlflow.set_tracking_uri(server)
        recorder.log_metrics({"train/loss": 1.0})
    away.delenv(ADDRESS)
    capsys.readouterr()
    assert sync() == (0, 1) and count_runs() == 0
    said = capsys.readouterr().out
    assert f"MLflow at sqlite:///{home / 'mlflow.db'} does not have its run" in said
    away.setenv(ADDRESS, other)
    assert sync() == (1, 0) and count_runs() == 1
    assert points(recorder.run_id) == [(0, 1.0)]


@pytest.mark.integration
def test_a_run_is_gone_where_a_store_that_answers_does_not_have_it(away):
    assert not is_gone("0" * 32, None), "nobody has said so"
    with Recorder(KEY) as kept:
        pass
    away.delenv(ADDRESS)
    assert not is_gone(None, kept.unsent)
    assert is_gone(None, "cd" * 16) and is_gone("0" * 32, None)
    with Recorder(KEY) as sent:
        pass
    assert not is_gone(sent.run_id, None)


@pytest.mark.integration
def test_one_process_sends_at_a_time(away, capsys):
    away.setattr(sys, "argv", ["sync"])
    away.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    with hold_outputs(store_home() / UNSENT, "at work"), pytest.raises(SystemExit):
        main()
    assert "wait until it has ended" in capsys.readouterr().err
