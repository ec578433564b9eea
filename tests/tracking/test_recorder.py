"""A tracking server that goes away in mid run: nothing is lost, and everything is sent later."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from urllib.parse import urlsplit

import keras
import mlflow
import numpy as np
import pytest

from tasks.sync import main
from tests.support.lanes import slow_but_first
from tests.support.mlflow_servers import mlflow_server, points
from tests.support.project import git, run_python
from tests.support.small_data import write_files
from throughline.shared.layout import STORE_HOME
from throughline.tracking.lineage import read_lineage
from throughline.tracking.recorder import UNSENT, Recorder, RunKey

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


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.filterwarnings("ignore:.*Any type hint:UserWarning")  # of MLflow's own functions
def test_what_a_dead_server_missed_is_sent_when_it_is_back(
    mlflow_store, absent_server, tmp_path, monkeypatch, capsys
):
    address, port = absent_server, urlsplit(absent_server).port
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    mlflow.set_tracking_uri(address)
    passing = write_files(tmp_path / "worktree", {"train.json": "{}"})
    network = keras.Sequential([keras.Input((4,), dtype="uint8"), keras.layers.Dense(3)])
    network.save(passing / "model.keras")
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
    (kept,) = (tmp_path / UNSENT).glob("*.json")
    calls = [call[0] for call in json.loads(kept.read_text())["calls"]]
    assert calls == ["metrics", "metrics", "artifact", "model"]
    monkeypatch.setattr(sys, "argv", ["python -m tasks.sync"])
    with pytest.raises(SystemExit, match="1"):
        main()
    assert "0 of 1 kept runs sent" in capsys.readouterr().out
    assert len(list((tmp_path / UNSENT).glob("*.json"))) == 1
    with mlflow_server(tmp_path, port):
        main()
        assert "1 of 1 kept runs sent" in capsys.readouterr().out
        client = mlflow.MlflowClient()
        run = client.get_run(recorder.run_id)
        assert run.info.status == "FINISHED"
        assert points(recorder.run_id) == [(0, 2.0), (1, 1.0), (2, 0.5)]
        assert [found.path for found in client.list_artifacts(recorder.run_id)] == ["train.json"]
        of_run = f"source_run_id = '{recorder.run_id}'"
        (model,) = client.search_logged_models([run.info.experiment_id], filter_string=of_run)
        pixels = np.array([[0, 51, 102, 255]], np.uint8)
        found = mlflow.pyfunc.load_model(model.model_uri).predict(pixels)
        np.testing.assert_allclose(found, network(pixels).numpy(), rtol=1e-5)
    assert not list((tmp_path / UNSENT).iterdir())


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


ENDED = """
import time
from throughline.shared.termination import exit_on_sigterm
from throughline.tracking.experiments import RunKey
from throughline.tracking.recorder import Recorder
exit_on_sigterm()
with Recorder(RunKey(dataset="ended", pipeline="naive", data_digest="d")) as recorder:
    recorder.log_metrics({"train/loss": 1.0}, step=0)
    print(recorder.run_id, flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_sigterm_ends_a_run_as_killed_however_often_it_comes(mlflow_store):
    command = [sys.executable, "-c", ENDED]
    environment = {**os.environ, STORE_HOME: str(mlflow_store)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        run_id = process.stdout.readline().strip()
        for _ in range(3):  # of a group that ends, supervisors ask each process again
            process.terminate()
            time.sleep(0.02)
        # The second is Python's own once it has started to take itself apart.
        assert process.wait(timeout=60) in (128 + signal.SIGTERM, -signal.SIGTERM)
    run = mlflow.get_run(run_id)
    assert run.info.status == "KILLED" and run.data.metrics == {"train/loss": 1.0}


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
