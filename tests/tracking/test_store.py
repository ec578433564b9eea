"""Where runs are sent, without passwords or proxies; an answer is no absence; and the files in
which runs are kept for a store that is absent.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import mlflow
import pytest
import requests
from mlflow.exceptions import MlflowException

from tests.support.lanes import slow_but_first
from tests.support.mlflow_servers import mlflow_server, points
from tests.support.project import run_python
from tests.support.small_data import write_files
from throughline.shared.errors import DamagedFile
from throughline.shared.layout import STORE_HOME
from throughline.tracking.calls import PendingRun, enqueue, list_pending, remove
from throughline.tracking.recorder import UNSENT, Recorder, RunKey
from throughline.tracking.store import hide_password, is_refusal, reason, use_store

KEY = RunKey(dataset="sent", pipeline="naive", data_digest="d")


@pytest.fixture(autouse=True)
def _own_store(tmp_path, monkeypatch) -> Iterator[None]:
    """Each test names its store; none is left for the next one."""
    for name in ("URI", "USERNAME", "PASSWORD"):
        # Set first, so that what the test itself sets is taken back.
        monkeypatch.setenv(f"MLFLOW_TRACKING_{name}", "")
        monkeypatch.delenv(f"MLFLOW_TRACKING_{name}")
    monkeypatch.setenv(STORE_HOME, str(tmp_path))
    yield
    mlflow.set_tracking_uri(None)


def test_a_stage_in_a_worktree_writes_to_the_store_of_the_project(tmp_path, monkeypatch):
    (tmp_path / "worktree").mkdir()
    monkeypatch.chdir(tmp_path / "worktree")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///runs.db")
    use_store()
    assert mlflow.get_tracking_uri() == f"sqlite:///{tmp_path / 'runs.db'}"


def test_a_password_goes_to_the_store_and_into_no_message(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:s%40cret@host:5000/prefix")
    use_store()
    assert mlflow.get_tracking_uri() == "http://host:5000/prefix"
    given = [os.environ[f"MLFLOW_TRACKING_{name}"] for name in ("URI", "USERNAME", "PASSWORD")]
    assert given == ["http://host:5000/prefix", "me", "s@cret"]
    text = "no answer of postgresql+psycopg2://me:s%40cret@host/db"
    assert hide_password(text) == "no answer of postgresql+psycopg2://me:***@host/db"
    assert reason(OSError(text)) == hide_password(text)
    hint = "(raised as a result of Query-invoked autoflush; consider using a no_autoflush block)"
    full = "(sqlite3.OperationalError) database or disk is full"
    for said, first in ((f"{hint}\n{full}\n[SQL: INSERT]", full), ("a\nb", "a"), ("", "OSError")):
        assert reason(OSError(said)) == first


@pytest.mark.integration
def test_a_run_that_is_held_back_keeps_no_password(tmp_path, absent_server, monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", absent_server.replace("//", "//me:s3cret@"))
    with Recorder(KEY) as recorder:
        recorder.log_metrics({"train/loss": 1.0}, step=0)
    said = capsys.readouterr().out
    assert f"MLflow at {absent_server} cannot be written" in said
    (kept,) = (tmp_path / UNSENT).glob("*.json")
    assert "train/loss" in kept.read_text()
    assert "s3cret" not in kept.read_text() + said


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
    (kind, folder, name), (_, plan) = run.calls
    assert (kind, name) == ("artifact", "x")
    assert (outbox / folder / "trace.txt").read_text() == "trace"
    assert (outbox / plan).read_text() == "plan"
    remove(file)
    assert list(outbox.iterdir()) == [] and list(list_pending(outbox)) == []


def answered(status: int) -> requests.HTTPError:
    answer = requests.Response()
    answer.status_code = status
    return requests.HTTPError(f"{status} of an upload", response=answer)


def unnamed(status: int) -> MlflowException:
    """What MLflow's client makes of an answer that is no JSON."""
    return MlflowException(f"API request to endpoint x failed with error code {status} != 200.")


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        *((make(400), True) for make in (answered, unnamed)),
        *((make(status), False) for make in (answered, unnamed) for status in (429, 503)),
        (OSError("disk full"), False),
        (MlflowException.invalid_parameter_value("too long"), True),
        (ValueError("a model that MLflow does not take"), True),
    ],
    ids=str,
)
def test_an_answer_is_a_refusal_and_no_answer_is_an_absence(error, refused):
    assert is_refusal(error) is refused


@pytest.mark.slow
def test_what_a_server_does_not_take_is_left_out_and_later_metrics_go_on(
    mlflow_store, tmp_path, monkeypatch, capsys
):
    refused = tmp_path / "refused.json"
    refused.write_text('{"mlflow-artifacts/": 413}')
    (tmp_path / "train.json").write_text("{}")
    with mlflow_server(tmp_path) as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        with Recorder(KEY) as recorder:
            recorder.log_metrics({"train/loss": 2.0}, step=0)
            for _ in range(2):
                recorder.log_artifact(tmp_path / "train.json")
            recorder.log_metrics({"train/loss": 1.0}, step=1)
        assert recorder.sent and points(recorder.run_id) == [(0, 2.0), (1, 1.0)]
        with Recorder(KEY) as away:
            away.log_metrics({"train/loss": 3.0}, step=0)
            refused.write_text('{"api/2.0": 404}')  # as a proxy answers whose server is away
            away.log_metrics({"train/loss": 4.0}, step=1)
        assert not away.sent and list((tmp_path / UNSENT).glob("*.json"))
    said = capsys.readouterr().out
    assert said.count("does not accept artifact train.json; left out") == 1
    assert said.count("cannot be written") == 1


PROXIED = """
import os, requests, httpx, tasks
from httpx._utils import get_environment_proxies
print(
    os.environ["NO_PROXY"],
    os.environ["no_proxy"],
    *requests.utils.get_environ_proxies("http://127.0.0.1:5000"),
    *requests.utils.get_environ_proxies("http://localhost:4200"),
    get_environment_proxies().get("all://127.0.0.1", "no rule"),
    sep=";",
)
"""


@pytest.mark.integration
@pytest.mark.parametrize(
    ("set_by_user", "direct", "rule"),
    slow_but_first(
        [
            ({"no_proxy": "localhost,x", "NO_PROXY": "y"}, "localhost,x,127.0.0.1", "None"),
            ({"NO_PROXY": "*"}, "*", "no rule"),
        ]
    ),
)
def test_servers_of_this_machine_are_asked_without_a_proxy(set_by_user, direct, rule):
    proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    done = run_python(PROXIED, without=("NO_PROXY", "no_proxy"), **proxies, **set_by_user)
    assert done.stdout.strip() == f"{direct};{direct};{rule}"


@pytest.mark.slow
@pytest.mark.integration
def test_an_experiment_that_was_made_over_a_server_takes_artifacts_without_it(
    mlflow_store, tmp_path
):
    mlflow.create_experiment("throughline/sent", artifact_location="mlflow-artifacts:/7")
    (tmp_path / "report.txt").write_text("what was found")
    with Recorder(KEY) as recorder:
        recorder.log_artifact(tmp_path / "report.txt", folder="report")
    assert recorder.sent
    kept = tmp_path / "mlartifacts" / "7" / recorder.run_id / "artifacts" / "report" / "report.txt"
    assert kept.read_text() == "what was found"
    downloaded = mlflow.artifacts.download_artifacts(run_id=recorder.run_id)
    assert Path(downloaded).samefile(kept.parents[1])
