"""Stages one after another: which of them DVC is asked about."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.project import ROOT, run

STAGES = """
stages:
  first:
    cmd: cp params.yaml first.txt
    params: [epochs]
    outs: [first.txt]
  second:
    cmd: cp first.txt second.txt
    deps: [first.txt]
    outs: [second.txt]
"""
CHAIN = """
from pathlib import Path
from prefect import flow
from flows.orchestration.flow_run import Run
from flows.orchestration.stages import StageEnvironment
from flows.run.dvc_calls import stale_stages
from flows.run.workspace import Workspace

root = Path.cwd()

@flow
def chain():
    stage_env = StageEnvironment(root, stale_stages(root, {}, print))
    workspace = Workspace(root=root, project=root)
    run = Run(name="x", workspace=workspace, params=None, stage_env=stage_env)
    print("changed", run.chain(["first", "second"]).changed)

chain()
"""


def set_epochs(folder: Path, epochs: int) -> str:
    text = f"epochs: {epochs}\n"
    (folder / "params.yaml").write_text(text)
    return text


@pytest.mark.slow
def test_what_comes_after_a_stage_from_dvcs_cache_is_not_called_up_to_date(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "dvc.yaml").write_text(STAGES)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    run(folder, "dvc", "init", "-q")
    for epochs in (3, 5):
        set_epochs(folder, epochs)
        run(folder, "dvc", "repro")
    text = set_epochs(folder, 3)
    said = run(folder, "python", "-c", CHAIN)
    assert "first came from DVC's cache" in said and "changed True" in said
    assert (folder / "second.txt").read_text() == text
    assert "changed False" in run(folder, "python", "-c", CHAIN), "without asking stage by stage"
