"""A run is recorded once, whatever ends it: what a store that is away misses is kept in its order,
with copies of its files, and sent when the store is back.
"""

import math
import os
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import keras
import mlflow
import pytest

from tasks.sync import main
from tests.support.lanes import slow_but_first
from tests.support.mlflow_servers import mlflow_server, points
from tests.support.project import git, run_python
from tests.support.small_data import write_files
from throughline.shared.file_lock import hold_outputs
from throughline.shared.layout import STORE_HOME
from throughline.tracking.calls import list_models, list_pending
from throughline.tracking.lineage import PARENT_RUN, read_lineage
from throughline.tracking.recorder import UNSENT, Recorder, RunKey, find_sent, is_gone, sync
from throughline.tracking.store import ADDRESS, store_home

pytestmark = pytest.mark.integration

KEY = RunKey(dataset="lost", pipeline="naive", data_digest="d")
DVC_YAML = """stages:
  a:
    deps:
      - data
      # Own ops and models, as runs list them
      - one.py
    outs: []
"""


@pytest.fixture
def away(mlflow_store, absent_server, monkeypatch):
    """A store whose server is away; without the variable it is a file that is there."""
    monkeypatch.setenv(ADDRESS, absent_server)
    return monkeypatch


def count_runs():
    return len(mlflow.search_runs(search_all_experiments=True, output_format="list"))


def kept():
    return list_pending(store_home() / UNSENT)


def test_code_is_dirty_where_it_differs_from_the_commit_not_where_a_run_s_own_files_do(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    committed = dict.fromkeys(("params.yaml", "dvc.lock", "code.py"), "committed")
    write_files(tmp_path, {**committed, "dvc.yaml": DVC_YAML})
    for command in ("init -q", "add -A", "commit -qm all"):
        git(tmp_path, *command.split())
    own = DVC_YAML.replace("one.py\n", "one.py\n      - two.py\n")
    for name, text, dirty in (
        ("params.yaml", "changed", "false"),
        ("dvc.lock", "changed", "false"),
        ("dvc.yaml", own, "false"),
        ("dvc.yaml", own.replace("outs: []", "outs: [x]"), "true"),
        ("dvc.yaml", own.replace("      - data\n", ""), "true"),
        ("dvc.yaml", DVC_YAML, "false"),
        ("code.py", "changed", "true"),
    ):
        (tmp_path / name).write_text(text)
        assert read_lineage()["git.dirty"] == dirty, (name, text)
    monkeypatch.setenv("PATH", "")
    assert "git.commit" not in read_lineage(), "without git nothing is known of it"


def test_a_run_that_goes_on_logs_no_step_twice(mlflow_store):
    with Recorder(KEY) as recorder:
        recorder.log_metrics({"train/loss": 2.0, "val/loss": 3.0}, step=0)
        recorder.log_metrics({"train/loss": 1.0}, step=1)
        recorder.log_metrics({"examples": 1.0})
    with Recorder(KEY, run_id=recorder.run_id) as again:
        again.log_metrics({"val/loss": 3.5}, step=0)
        again.log_metrics({"train/loss": 1.0, "val/loss": 2.5}, step=1)
        again.log_metrics({"train/loss": 0.5}, step=2)
        again.log_metrics({"examples": 2.0})
    run_id = recorder.run_id
    assert points(run_id) == [(0, 2.0), (1, 1.0), (2, 0.5)]
    last = "what is another value comes last"
    assert points(run_id, "val/loss") == [(0, 3.0), (0, 3.5), (1, 2.5)], last
    assert points(run_id, "examples") == [(0, 1.0), (0, 2.0)], "of no step: what it is now"
    mlflow.MlflowClient().delete_run(run_id)
    with again:
        again.log_metrics({"after": 1.0})
    assert again.run_id != run_id, "a run that was deleted is followed by a new one"
    assert mlflow.get_run(again.run_id).data.metrics == {"after": 1.0}


@pytest.mark.parametrize("after", slow_but_first([True, False]))
def test_a_signal_while_mlflow_begins_a_run_that_goes_on_ends_it_as_killed(
    mlflow_store, monkeypatch, after
):
    with Recorder(KEY) as first:
        pass
    start = mlflow.start_run

    def interrupted(**arguments):
        mlflow.MlflowClient().update_run(arguments["run_id"], status="RUNNING")
        if after:
            start(**arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(mlflow, "start_run", interrupted)
    with pytest.raises(KeyboardInterrupt), Recorder(KEY, run_id=first.run_id):
        pytest.fail("the run is not there yet")
    assert mlflow.active_run() is None
    assert mlflow.get_run(first.run_id).info.status == "KILLED"


LOSING_ITS_STORE = """
import mlflow, os, shutil
from throughline.shared.layout import STORE_HOME
from throughline.tracking.experiments import RunKey
from throughline.tracking.recorder import Recorder
with Recorder(RunKey(dataset="lost", pipeline="naive", data_digest="d")) as recorder:
    shutil.rmtree(os.environ[STORE_HOME])
    recorder.log_metrics({"train/loss": 1.0}, step=0)
print("sent", recorder.sent, "active", mlflow.active_run())
"""


@pytest.mark.slow
def test_a_store_that_vanished_is_one_line_and_none_when_the_process_exits(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    done = run_python(LOSING_ITS_STORE, without=("MLFLOW_",), **{STORE_HOME: str(home)})
    assert "sent False active None" in done.stdout
    assert (done.stdout + done.stderr).count("cannot be written") == 1
    assert "Traceback" not in done.stderr and "ERROR" not in done.stderr, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.filterwarnings("ignore:.*Any type hint:UserWarning")  # of MLflow's own functions
def test_what_a_dead_server_missed_is_sent_when_it_is_back(away, tmp_path, capsys):
    away.setattr(sys, "argv", ["python -m tasks.sync"])
    port = urlsplit(os.environ[ADDRESS]).port
    passing = write_files(tmp_path / "worktree", {"train.json": "{}"})
    keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)]).save(passing / "model.keras")
    recorder, alive = Recorder(KEY), ExitStack()
    alive.enter_context(mlflow_server(tmp_path, port))
    with recorder:
        recorder.log_metrics({"train/loss": 2.0}, step=0)
        alive.close()
        recorder.log_metrics({"train/loss": 1.0}, step=1)
        recorder.log_metrics({"train/loss": 0.5}, step=2)
        recorder.log_artifact(passing / "train.json")
        recorder.log_model(passing / "model.keras")
    assert not recorder.sent and recorder.run_id
    shutil.rmtree(passing)  # as the worktree of a run that nobody named goes at its end
    with pytest.raises(SystemExit, match="1"):
        main()
    assert "0 of 1 kept runs sent" in capsys.readouterr().out
    with mlflow_server(tmp_path, port):
        main()
        assert "1 of 1 kept runs sent" in capsys.readouterr().out
        run = mlflow.get_run(recorder.run_id)
        assert run.info.status == "FINISHED" and len(list_models(run)) == 1
        assert points(recorder.run_id) == [(0, 2.0), (1, 1.0), (2, 0.5)]
        sent = mlflow.MlflowClient().list_artifacts(recorder.run_id)
        assert [found.path for found in sent] == ["train.json"]
    assert not list((tmp_path / UNSENT).iterdir())


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


@pytest.mark.parametrize(("is_back", "error"), [(True, SystemExit), (False, KeyboardInterrupt)])
def test_parts_of_a_training_of_which_one_or_both_were_kept_become_one_run(away, is_back, error):
    """What was kept of its first part comes later, with epochs that the second has logged."""
    away.setenv("DVC_EXP_NAME", "first")
    with pytest.raises(error), Recorder(KEY) as first:
        first.log_metrics({"train/loss": 2.0}, step=0)
        first.log_metrics({"first/part": 1.0})
        assert first.unsent, "as a checkpoint holds it"
        raise error
    if is_back:
        away.delenv(ADDRESS)
    away.setenv("DVC_EXP_NAME", "later")
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
    assert run.data.tags["dvc.experiment"] == "later"
    (_, loss), (step, lost) = points(run_id)
    assert loss == 2 and step == 1 and math.isnan(lost), "a number again"


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


def test_what_cannot_be_kept_again_stays_as_it_was_kept(away, tmp_path):
    (tmp_path / "train.json").write_text("{}")
    with Recorder(KEY) as recorder:
        recorder.log_artifact(tmp_path / "train.json")
    ((file, run),) = kept()
    copy = Path(run.calls[0][1])
    copy.unlink()
    os.mkfifo(copy)
    assert sync() == (0, 1) and [path for path, _ in kept()] == [file]


def test_what_belongs_to_a_run_that_is_gone_holds_up_nothing(away, capsys):
    for tag in ("ab" * 16, None):
        with Recorder(KEY, follows=tag) as recorder:
            recorder.log_metrics({"train/loss": 1.0})
    away.delenv(ADDRESS)
    assert not is_gone(None, recorder.unsent), "it is kept"
    assert sync() == (1, 1), "what belongs to it stays, since another store may have it"
    assert "of naive is not sent: MLflow at" in capsys.readouterr().out
    run_id = find_sent(recorder.unsent)
    assert not is_gone(run_id, None)
    assert is_gone(None, "ab" * 16) and is_gone("0" * 32, None)


def test_one_process_sends_at_a_time(away, capsys):
    away.setattr(sys, "argv", ["sync"])
    away.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    with hold_outputs(store_home() / UNSENT, "at work"), pytest.raises(SystemExit):
        main()
    assert "wait until it has ended" in capsys.readouterr().err
