"""The commands of docs/daily.md run as they stand, one block after another, in a project after its
first `dvc repro`.
"""

from __future__ import annotations

import json
import re
import subprocess

import numpy as np
import pytest

from tests.support.docs_blocks import read_blocks
from tests.support.project import ROOT, environment, run, run_quietly, share_servers, write_params
from throughline.config.params_file import read_yaml

BLOCKS = [block for block in read_blocks(ROOT / "docs" / "daily.md") if block.language == "sh"]


@pytest.mark.slow
def test_every_command_of_the_page_runs_and_does_what_it_says(first):
    folder, _ = first
    params = read_yaml(folder / "params.yaml")
    del params["pipelines"]["naive"]  # one configuration shows all that the page says
    write_params(folder, params)
    run(folder, "dvc", "repro")
    git(folder.parent, "init", "--quiet", "--bare", "-b", "main", "origin.git")
    git(folder, "remote", "add", "origin", str(folder.parent / "origin.git"))
    printed = {}
    for block in BLOCKS:
        if "metrics diff" in block.text:
            save_otherwise(folder / "source" / "data.npz")
        script = block.text.replace("/srv/throughline", str(folder.parent / "store"))
        done = subprocess.run(
            ["bash", "-euc", script],
            cwd=folder,
            env=environment(folder) | share_servers([script]),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{block}:\n{done.stdout}"
        printed[block.text.split("\n")[0].split("  ")[0]] = done.stdout
    ran = set(re.findall(r"Running stage '(.*)'", printed["dvc exp apply short"]))
    assert ran <= {"identities", "report"}
    assert "source/data.npz" in printed["dvc status"]
    assert re.findall(r"Running stage '(.*)'", printed["dvc status"]) == ["ingest"]
    other = folder.parent / "other"
    assert "epochs: 1" in (other / "params.yaml").read_text()
    assert (other / "runs" / "optimized" / "model.keras").is_file()
    assert (other / "data" / "snapshot" / "train" / "image.bin").is_file()
    assert {*json.loads(run_quietly(other, "dvc", "status", "--json"))} <= {"identities", "report"}
    assert "short" not in git(folder, "worktree", "list")
    assert "up to date" in run_quietly(folder, "dvc", "status")


def save_otherwise(path) -> None:
    """Make another file of the same data, of which ingest alone has to look at it."""
    with np.load(path) as arrays:
        np.savez_compressed(path, **{name: arrays[name] for name in arrays})


def git(folder, *arguments: str) -> str:
    return run_quietly(folder, "git", *arguments)


@pytest.mark.slow
def test_a_remote_of_one_clone_serves_earlier_runs_and_stays_when_one_is_applied(tmp_path):
    """As the page says of `dvc remote add --local`."""
    folder = tmp_path / "project"
    git(tmp_path, "init", "--quiet", "--bare", "-b", "main", "origin.git")
    git(tmp_path, "init", "--quiet", "-b", "main", "project")
    git(folder, "remote", "add", "origin", "../origin.git")
    run_quietly(folder, "dvc", "init", "--quiet")
    stage = "stages: {s: {cmd: cp params.yaml out.txt, params: [a], outs: [out.txt]}}"
    (folder / "dvc.yaml").write_text(stage)
    for value, keep in (
        (1, ["git", "commit", "-qm", "1"]),
        (2, ["dvc", "exp", "save", "-n", "two"]),
    ):
        (folder / "params.yaml").write_text(f"a: {value}\n")
        run_quietly(folder, "dvc", "repro", "--quiet")
        git(folder, "add", "--all")
        run_quietly(folder, *keep)
    git(folder, "reset", "--hard", "--quiet", "HEAD")
    store = tmp_path / "store"
    run_quietly(folder, "dvc", "remote", "add", "--local", "--default", "store", str(store))
    git(folder, "push", "--quiet", "origin", "main")
    run_quietly(folder, "dvc", "exp", "push", "origin", "two")
    assert [file.read_text() for file in store.rglob("*") if file.is_file()] == ["a: 2\n"]
    run_quietly(folder, "dvc", "exp", "apply", "two")
    assert "store" in run_quietly(folder, "dvc", "remote", "list")
