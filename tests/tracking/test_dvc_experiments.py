"""Experiments that DVC itself runs are in the one MLflow store of the project."""

from __future__ import annotations

import mlflow
import pytest

from tests.support.project import ROOT, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
RECORD = f"""
import sys
sys.path.append({str(ROOT)!r})
from throughline.tracking.recorder import Recorder, RunKey
with Recorder(RunKey(dataset="d", pipeline="p", data_digest="d")) as recorder:
    recorder.log_artifact(__import__("pathlib").Path("params.yaml"))
print(recorder.run_id, file=open("run.txt", "w"))
"""
STAGE = """
stages:
  train: {cmd: python record.py, deps: [record.py], params: [seed], outs: [run.txt]}
"""


def test_experiments_of_dvc_are_in_the_projects_store(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    for name, text in (("record.py", RECORD), ("dvc.yaml", STAGE), ("params.yaml", "seed: 0\n")):
        (folder / name).write_text(text)
    run(folder, "git", "init", "--quiet")
    run(folder, "dvc", "init", "--quiet")
    run(folder, "git", "add", "--all")
    run(folder, "git", "commit", "--quiet", "-m", "start")
    names = {"here": [], "apart": ["--temp"], "queued": ["--queue"]}
    for number, (name, how) in enumerate(names.items(), start=1):
        run(folder, "dvc", "exp", "run", "--name", name, "-S", f"seed={number}", *how)
    run(folder, "dvc", "queue", "start")
    run(folder, "dvc", "queue", "logs", "--follow", "queued")
    mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
    runs = mlflow.search_runs(search_all_experiments=True, output_format="list")
    assert {one.data.tags["dvc.experiment"]: one.info.status for one in runs} == dict.fromkeys(
        names, "FINISHED"
    )
    for one in runs:
        assert mlflow.artifacts.list_artifacts(run_id=one.info.run_id)
