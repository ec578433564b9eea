"""The pod that puts a repository into the volume of the stack on Kubernetes: its command, run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.support.project import ROOT
from tests.support.worktrees import git

pytestmark = pytest.mark.integration  # runs git
CLONE = YAML(typ="safe").load((ROOT / "infra" / "kubernetes" / "clone.yaml").read_text())


def make_repository(folder: Path, content: str) -> None:
    folder.mkdir(exist_ok=True)
    git(folder, "init", "--quiet", "--initial-branch=trunk")
    (folder / "params.yaml").write_text(content)
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message=first")


def clone(origin: Path, volume: Path) -> bool:
    """Whether the pod's command ends well in a volume."""
    (container,) = CLONE["spec"]["containers"]
    pod = volume.with_name(f"pod-{volume.name}")
    pod.mkdir()
    words = [word.replace("/tmp", str(pod)) for word in container["args"]]
    words = [str(origin) if word == "URL" else word for word in words]
    return subprocess.run(words, cwd=volume, capture_output=True, check=False).returncode == 0


def test_a_repository_is_cloned_into_a_volume_unless_a_project_is_there(tmp_path):
    make_repository(tmp_path / "origin", "seed: 1\n")
    volume, other = tmp_path / "volume", tmp_path / "other"
    (volume / "lost+found").mkdir(parents=True)  # as in a new one
    assert clone(tmp_path / "origin", volume)
    assert (volume / "params.yaml").read_text() == "seed: 1\n"
    assert "trunk...origin/trunk" in git(volume, "status", "--short", "--branch")
    make_repository(other, "seed: 2\n")
    assert not clone(tmp_path / "origin", other)
    assert (other / "params.yaml").read_text() == "seed: 2\n"
    assert git(other, "status", "--porcelain") == ""
