"""A run with changes works at any path, with hooks, and after git was killed at any instant:
`flows.run.workspace`, `flows.run.worktrees`, `flows.run.git_calls`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from dvc.config import Config

from flows.run.dvc_calls import DVC, dvc_environment
from flows.run.experiments import is_saved, save_experiment
from flows.run.git_calls import find_committer, list_files
from flows.run.parameters import Changes
from flows.run.processes import run_supervised
from flows.run.resolution import resolve
from flows.run.workspace import SWEPT_AFTER_S, open_workspace, sweep_workspaces
from tests.support.project import SMALL, write_params
from throughline.config.params_file import read_yaml

pytestmark = pytest.mark.integration

CHEAP = (
    "stages:\n  report:\n    cmd: echo made > made.txt\n    params: [batch_size]\n    outs:"
    " [made.txt]\n"
)
CHEAP_PROFILES = """
stages:
  profile:
    foreach: ${pipelines}
    do:
      cmd: echo ${key} > ${key}.txt
      params: [batch_size]
      deps: ["${data.path}"]
      outs: ["${key}.txt"]
  report: {cmd: echo report > report.txt, params: [batch_size], outs: [report.txt]}
"""
NAMES = [
    "plain",
    "hash #1",
    "comma,semi;colon",
    "100%",
    "%(home)s",
    "$HOME ${x}",
    "it's",
    'say "yes"',
    "back\\slash",
    "[section]",
    "a=b",
    "~",
    " blank ",
    "-n",
    "größe 大",
    "new\nline",
]


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    return subprocess.run(
        ["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def cheap_project(folder: Path) -> Path:
    """A committed project with one stage that takes no time."""
    (folder / ".dvc").mkdir(parents=True)
    (folder / ".dvc" / "config").write_text("[core]\n    analytics = false\n")
    (folder / ".dvc" / ".gitignore").write_text("/config.local\n/tmp\n/cache\n")
    (folder / ".gitignore").write_text("/.throughline/\n/made.txt\n")
    (folder / "dvc.yaml").write_text(CHEAP)
    write_params(folder, SMALL)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "cheap")
    return folder


def opened(project: Path, name: str = "x", *, ephemeral: bool = False):
    return open_workspace(resolve(project, Changes(batch_size=16)), name=name, ephemeral=ephemeral)


@pytest.fixture
def project(tmp_path) -> Path:
    return cheap_project(tmp_path / "project")


def test_a_run_without_changes_may_have_any_name(project):
    with open_workspace(resolve(project, Changes()), name="Nightly #3") as workspace:
        assert workspace.root == project


@pytest.mark.parametrize("name", ["plain.py", "größe.py", "tab\t.py", "ignored.py"])
def test_a_worktree_lacks_a_python_file_until_git_tracks_it(project, name):
    (project / ".gitignore").write_text("ignored.py\n")
    (project / name).touch()
    assert name not in list_files(project, "--", "*.py")
    git(project, "add", "--force", name)
    assert name in list_files(project, "--", "*.py")


@pytest.mark.parametrize("name", NAMES)
def test_a_worktree_uses_the_projects_cache_at_any_path(tmp_path, name):
    project = cheap_project(tmp_path / name)
    with opened(project) as workspace:
        cache = Config(str(workspace.root / ".dvc"))["cache"]["dir"]
        assert Path(cache).samefile(project / ".dvc" / "cache")
        assert read_yaml(workspace.root / "params.yaml")["batch_size"] == 16
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.slow
def test_a_stage_runs_and_an_experiment_is_kept_at_any_path_after_dvc_install(
    tmp_path, monkeypatch
):
    name = "hash #1, 100% %(x)s 'größe' \"大\""
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "t")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "t@example.org")
    project = cheap_project(tmp_path / name)
    subprocess.run([*DVC, "install"], cwd=project, check=True, capture_output=True)
    (project / "dvc.yaml").write_text(CHEAP + "# changed\n")
    (project / "added.txt").write_text("added")
    git(project, "add", "added.txt")
    head = git(project, "rev-parse", "HEAD")
    with opened(project) as workspace:
        assert git(workspace.root, "rev-parse", "HEAD") == head
        done = run_supervised(
            [*DVC, "repro"], workspace.root, dvc_environment(workspace.environment)
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert not is_saved(workspace, "x")
        assert save_experiment(workspace, "x") is None
        assert is_saved(workspace, "x") and not is_saved(workspace, "y")
    assert list((project / ".dvc" / "cache").rglob("*")), "what it made is in the project's cache"
    said = [
        subprocess.run([*DVC, *words], cwd=project, check=True, capture_output=True, text=True)
        for words in (["exp", "list", "--name-only"], ["exp", "show", "--csv"])
    ]
    assert said[0].stdout.split() == ["x"], "below the commit, though it was not committed"
    assert "\nx," in said[1].stdout
    git(project, "reset", "--quiet", "--hard")
    subprocess.run([*DVC, "exp", "apply", "x"], cwd=project, check=True, capture_output=True)
    assert (project / "dvc.yaml").read_text().endswith("# changed\n")
    assert (project / "added.txt").read_text() == "added"
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]


def test_a_cache_elsewhere_is_shared_with_its_kind_of_links(project, tmp_path):
    elsewhere = tmp_path / "other disk, #1"
    (project / ".dvc" / "config.local").write_text(
        f'[cache]\n    dir = "{elsewhere}"\n    type = "hardlink,copy"\n'
    )
    with opened(project) as workspace:
        cache = Config(str(workspace.root / ".dvc"))["cache"]
        assert Path(cache["dir"]).samefile(elsewhere) and cache["type"] == ["hardlink", "copy"]


@pytest.mark.parametrize(
    "hook", ["post-checkout", "pre-commit", "post-index-change", "reference-transaction"]
)
def test_hooks_of_the_project_do_not_run(project, hook):
    path = project / ".git" / "hooks" / hook
    path.parent.mkdir(exist_ok=True)
    path.write_text("#!/bin/sh\nexit 1\n")
    path.chmod(0o755)
    (project / "dvc.yaml").write_text(CHEAP + "# changed\n")
    for _ in range(2):
        with opened(project) as workspace:
            assert (workspace.root / "dvc.yaml").read_text().endswith("# changed\n")


def lose_the_folder(root: Path, admin: Path) -> None:
    shutil.rmtree(root)
    (admin / "locked").write_text("initializing")


# What a kill leaves of a worktree, and of what git keeps of it.
DAMAGES: dict[str, Callable[[Path, Path], object]] = {
    "no link": lambda root, admin: (root / ".git").unlink(),
    "no entry of git": lambda root, admin: shutil.rmtree(admin),
    "no folder": lose_the_folder,
    "a locked index": lambda root, admin: (admin / "index.lock").touch(),
    "a cut index": lambda root, admin: (admin / "index").write_bytes(b"DIRC"),
    "an empty head": lambda root, admin: (admin / "HEAD").write_text(""),
    "cut parameters": lambda root, admin: (root / "params.yaml").write_text("batch_size: ["),
    "a cut configuration": lambda root, admin: (root / ".dvc/config.local").write_text("[cache"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_worktree_that_a_kill_has_left_half_made_is_made_whole(project, damage):
    with opened(project) as workspace:
        pass
    DAMAGES[damage](workspace.root, project / ".git" / "worktrees" / "x")
    (project / "dvc.yaml").write_text(CHEAP + "# changed\n")
    before = (
        git(project, "rev-parse", "--abbrev-ref", "HEAD"),
        git(project, "status", "--porcelain"),
    )
    with opened(project) as workspace:
        assert read_yaml(workspace.root / "params.yaml")["batch_size"] == 16
        assert (workspace.root / "dvc.yaml").read_text().endswith("# changed\n")
        assert Path(git(workspace.root, "rev-parse", "--show-toplevel")).samefile(workspace.root)
    assert (
        git(project, "rev-parse", "--abbrev-ref", "HEAD"),
        git(project, "status", "--porcelain"),
    ) == before


def test_what_a_worktree_has_made_survives_its_being_opened_again(project):
    with opened(project) as workspace:
        (workspace.root / "data").mkdir()
        (workspace.root / "data" / "half").touch()
    with opened(project) as workspace:
        assert (workspace.root / "data" / "half").exists()


def test_a_locked_index_of_the_project_is_neither_waited_for_nor_changed(project):
    (project / ".git" / "index.lock").touch()
    (project / "new.txt").write_text("new")
    (project / "dvc.yaml").write_text(CHEAP + "# changed\n")
    before = (project / ".git" / "index").read_bytes()
    with opened(project) as workspace:
        assert (workspace.root / "dvc.yaml").read_text().endswith("# changed\n")
        assert not (workspace.root / "new.txt").exists(), "git does not know it"
    assert (project / ".git" / "index").read_bytes() == before
    assert sorted(path.name for path in (project / ".throughline").iterdir()) == [
        "locks",
        "workspaces",
    ]


def test_a_workspace_belongs_to_one_run_at_a_time(project):
    said = []

    def on_wait(who: str) -> None:
        said.append(who)
        raise InterruptedError

    with opened(project, "x"), opened(project, "y"):
        second = open_workspace(resolve(project, Changes(batch_size=8)), name="x", on_wait=on_wait)
        with pytest.raises(InterruptedError), second:
            pytest.fail("it is in use")
    assert said[0].startswith(f"run x (process {os.getpid()}, since ")


def leave(
    project: Path, name: str, *, ephemeral: bool = True, age_s: float = SWEPT_AFTER_S
) -> Path:
    """What a killed run leaves, nothing of which has changed for so long."""
    with opened(project, name, ephemeral=ephemeral) as workspace:
        (workspace.root / "runs" / "naive").mkdir(parents=True)
    age(workspace.root, age_s)
    return workspace.root


def age(root: Path, age_s: float) -> None:
    for folder, _, files in os.walk(root):
        for path in (Path(folder), *(Path(folder, name) for name in files)):
            os.utime(path, (time.time() - age_s,) * 2, follow_symlinks=False)


def test_worktrees_of_killed_runs_without_a_name_are_swept_after_a_day(project):
    swept = leave(project, "swept")
    stay = [
        leave(project, "named", ephemeral=False),
        leave(project, "young", age_s=SWEPT_AFTER_S - 600),
        leave(project, "busy-lately"),
    ]
    (stay[-1] / "runs" / "naive" / "checkpoint").touch()
    assert sweep_workspaces(project) == ["swept"]
    assert not swept.exists() and all(root.exists() for root in stay)
    assert "swept" not in git(project, "worktree", "list")
    assert not list((project / ".throughline" / "scratch").glob("*/*/swept"))
    assert sweep_workspaces(project) == []


def test_a_worktree_in_use_is_not_swept(project):
    with opened(project, ephemeral=True) as workspace:
        age(workspace.root, 2 * SWEPT_AFTER_S)
        assert sweep_workspaces(project) == []
        assert workspace.root.exists()


def test_a_worktree_that_has_been_given_a_name_since_is_not_swept(project):
    root = leave(project, "x")
    with opened(project, "x"):
        pass
    age(root, SWEPT_AFTER_S)
    assert sweep_workspaces(project) == [] and root.exists()


@pytest.mark.parametrize("damage", ["no link", "no entry of git"])
def test_a_damaged_worktree_is_swept_and_can_be_made_again(project, damage):
    root = leave(project, "x")
    DAMAGES[damage](root, project / ".git" / "worktrees" / "x")
    age(root, SWEPT_AFTER_S)
    assert sweep_workspaces(project) == ["x"] and not root.exists()
    with opened(project, "x") as workspace:
        assert read_yaml(workspace.root / "params.yaml")["batch_size"] == 16


def test_an_experiment_has_a_signature_where_git_knows_none(tmp_path, monkeypatch):
    """DVC refuses to commit without; a new user's git has no name and no email."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    for key in ("user.name", "user.email"):  # whatever the machine's own configuration says
        subprocess.run(["git", "-C", str(tmp_path), "config", key, ""], check=True)
    signature = find_committer(tmp_path)
    assert signature["GIT_COMMITTER_EMAIL"] and signature["GIT_AUTHOR_NAME"]
    for key in ("user.name", "user.email"):
        subprocess.run(["git", "-C", str(tmp_path), "config", key, "me"], check=True)
    assert find_committer(tmp_path) == {}


@pytest.mark.slow
@pytest.mark.parametrize("tracked_by", ["DVC", "git", "nobody, ignored", "nobody"])
def test_an_applied_experiment_keeps_other_configurations_and_the_path_as_written(
    project, tracked_by
):
    """Of data that git does not track the worktree has a link."""

    def dvc(folder: Path, *words: str) -> str:
        done = run_supervised([*DVC, *words], folder, dvc_environment({}))
        assert done.returncode == 0, done.stderr
        return done.stdout

    (project / "dvc.yaml").write_text(CHEAP_PROFILES)
    own = {**SMALL, "data": {**SMALL["data"], "path": "source/mine"}}
    write_params(project, own)
    data = project / "source" / "mine"
    data.mkdir(parents=True)
    (data / "1.txt").write_text("mine")
    if tracked_by == "DVC":
        dvc(project, "add", "source/mine")
    if "ignored" in tracked_by:
        (project / "source" / ".gitignore").write_text("/mine\n")
    dvc(project, "repro", "--quiet")
    new = {"new": {"read": "shards"}}
    write_params(project, {**own, "pipelines": {**own["pipelines"], **new}})
    git(project, "add", "--all", *([":!source/mine"] if tracked_by == "nobody" else []))
    git(project, "commit", "-qm", "data")
    resolved = resolve(project, Changes(batch_size=16), ["naive"])
    with open_workspace(resolved, name="x") as workspace:
        assert (workspace.root / "source/mine/1.txt").read_text() == "mine"
        assert (workspace.root / "source/mine").is_symlink() is (tracked_by != "git")
        assert [*read_yaml(workspace.root / "params.yaml")["pipelines"]] == ["naive"]
        dvc(workspace.root, "repro", "--quiet")
        assert save_experiment(workspace, "x") is None
    dvc(project, "exp", "apply", "x")
    assert read_yaml(project / "params.yaml") == {**own, "batch_size": 16}, "new has no results"
    assert (data / "1.txt").read_text() == "mine" and not data.is_symlink()
    assert [*json.loads(dvc(project, "status", "--json"))] == ["profile@optimized"]
    assert (project / "optimized.txt").read_text() == "optimized\n"


@pytest.mark.slow
def test_an_experiment_says_of_no_stage_that_it_has_seen_what_came_later(project):
    (project / "dvc.yaml").write_text(CHEAP_PROFILES)
    write_params(project, {**SMALL, "data": {**SMALL["data"], "path": "mine"}})
    (project / "mine").mkdir()
    (project / "mine" / "1.txt").write_text("1")
    (project / ".gitignore").write_text("/.throughline/\n/mine\n/*.txt\n")
    git(project, "add", "--all")
    git(project, "commit", "-qm", "data")
    with opened(project) as workspace:
        done = run_supervised(
            [*DVC, "repro", "--quiet"], workspace.root, dvc_environment(workspace.environment)
        )
        assert done.returncode == 0, done.stdout + done.stderr
        ran = (workspace.root / "dvc.lock").read_text()
        (project / "mine" / "2.txt").write_text("2")
        assert save_experiment(workspace, "x") is None
        assert (workspace.root / "dvc.lock").read_text() == ran
    subprocess.run([*DVC, "exp", "apply", "x"], cwd=project, check=True, capture_output=True)
    done = run_supervised([*DVC, "status", "--json"], project, dvc_environment({}))
    assert {*json.loads(done.stdout)} == {"profile@naive", "profile@optimized"}
