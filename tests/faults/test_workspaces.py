"""A run with changes works at any path, with hooks, and after git was killed at any instant."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from dvc.config import Config

from flows.run.dvc_calls import DVC, dvc_environment
from flows.run.git_calls import find_committer, list_files
from flows.run.parameters import Changes
from flows.run.processes import run_supervised
from flows.run.resolution import resolve
from flows.run.workspace import is_saved, open_workspace, save_experiment
from tests.support.lanes import slow_but_first
from tests.support.project import SMALL, write_params
from tests.support.worktrees import CHEAP, cheap_project, git, opened
from throughline.config.params_file import read_yaml

pytestmark = pytest.mark.integration

CHANGED = CHEAP + "# changed\n"
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
# What DVC, its configuration and git each read in another way.
NAMES = ["comma #1; 100%(home)s 'größe'", '-n "x"', "new\nline"]


@pytest.fixture
def project(tmp_path) -> Path:
    return cheap_project(tmp_path / "project")


def dvc(folder: Path, *words: str, **variables: str) -> str:
    done = run_supervised([*DVC, *words], folder, dvc_environment(variables))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["größe\t.py", "ignored.py"])
def test_a_worktree_lacks_a_python_file_until_git_tracks_it(project, name):
    (project / ".gitignore").write_text("ignored.py\n")
    (project / name).touch()
    assert name not in list_files(project, "--", "*.py")
    git(project, "add", "--force", name)
    assert name in list_files(project, "--", "*.py")


@pytest.mark.parametrize("name", slow_but_first(NAMES))
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
    dvc(project, "install")
    (project / "dvc.yaml").write_text(CHANGED)
    (project / "added.txt").write_text("added")
    git(project, "add", "added.txt")
    head = git(project, "rev-parse", "HEAD")
    with opened(project) as workspace:
        assert git(workspace.root, "rev-parse", "HEAD") == head
        dvc(workspace.root, "repro", **workspace.environment)
        assert not is_saved(workspace, "x")
        assert save_experiment(workspace, "x") is None
        assert is_saved(workspace, "x") and not is_saved(workspace, "y")
    assert list((project / ".dvc" / "cache").rglob("*")), "what it made is in the project's cache"
    listed = dvc(project, "exp", "list", "--name-only")
    assert listed.split() == ["x"], "below the commit, though it was not committed"
    assert "\nx," in dvc(project, "exp", "show", "--csv")
    git(project, "reset", "--quiet", "--hard")
    dvc(project, "exp", "apply", "x")
    assert (project / "dvc.yaml").read_text() == CHANGED
    assert (project / "added.txt").read_text() == "added"
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]


def test_a_cache_elsewhere_is_shared_with_its_links_and_its_group(project, tmp_path):
    elsewhere = tmp_path / "other disk, #1"
    settings = f'[cache]\ndir = "{elsewhere}"\ntype = "hardlink,copy"\nshared = group\n'
    (project / ".dvc" / "config.local").write_text(settings)
    with opened(project) as workspace:
        cache = Config(str(workspace.root / ".dvc"))["cache"]
        assert Path(cache["dir"]).samefile(elsewhere)
        assert (cache["type"], cache["shared"]) == (["hardlink", "copy"], "group")


def test_hooks_of_the_project_do_not_run(project):
    for hook in ("post-checkout", "pre-commit", "post-index-change", "reference-transaction"):
        path = project / ".git" / "hooks" / hook
        path.parent.mkdir(exist_ok=True)
        path.write_text("#!/bin/sh\nexit 1\n")
        path.chmod(0o755)
    (project / "dvc.yaml").write_text(CHANGED)
    for _ in range(2):
        with opened(project) as workspace:
            assert (workspace.root / "dvc.yaml").read_text() == CHANGED


def lose_the_folder(root: Path, admin: Path) -> None:
    shutil.rmtree(root)
    (admin / "locked").write_text("initializing")


# What a kill leaves of a worktree, and of what git keeps of it.
DAMAGES: dict[str, Callable[[Path, Path], object]] = {
    "no folder": lose_the_folder,
    "no link": lambda root, admin: (root / ".git").unlink(),
    "a locked index": lambda root, admin: (admin / "index.lock").touch(),
    "a cut index": lambda root, admin: (admin / "index").write_bytes(b"DIRC"),
}


@pytest.mark.parametrize("damage", slow_but_first([*DAMAGES]))
def test_a_worktree_that_a_kill_has_left_half_made_is_made_whole(project, damage):
    with opened(project) as workspace:
        pass
    DAMAGES[damage](workspace.root, project / ".git" / "worktrees" / "x")
    (project / "dvc.yaml").write_text(CHANGED)
    before = git(project, "status", "--porcelain", "--branch")
    with opened(project) as workspace:
        assert read_yaml(workspace.root / "params.yaml")["batch_size"] == 16
        assert (workspace.root / "dvc.yaml").read_text() == CHANGED
        assert Path(git(workspace.root, "rev-parse", "--show-toplevel")).samefile(workspace.root)
    assert git(project, "status", "--porcelain", "--branch") == before


def test_a_locked_index_of_the_project_is_neither_waited_for_nor_changed(project):
    (project / ".git" / "index.lock").touch()
    (project / "new.txt").write_text("new")
    (project / "dvc.yaml").write_text(CHANGED)
    before = (project / ".git" / "index").read_bytes()
    with opened(project) as workspace:
        assert (workspace.root / "dvc.yaml").read_text() == CHANGED
        assert not (workspace.root / "new.txt").exists(), "git does not know it"
    assert (project / ".git" / "index").read_bytes() == before
    made = {path.name for path in (project / ".throughline").iterdir()}
    assert made == {"locks", "workspaces"}


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


def test_an_experiment_has_a_signature_where_git_knows_none(tmp_path):
    """DVC refuses to commit without; a new user's git has no name and no email."""
    git(tmp_path, "init", "--quiet")
    signatures = []
    for name in ("", "me"):  # whatever the machine's own configuration says
        git(tmp_path, "config", "user.name", name)
        git(tmp_path, "config", "user.email", name)
        signatures.append(find_committer(tmp_path))
    assert signatures[0]["GIT_COMMITTER_EMAIL"] and signatures[0]["GIT_AUTHOR_NAME"]
    assert signatures[1] == {}


@pytest.mark.slow
@pytest.mark.parametrize("tracked_by", ["DVC", "git", "nobody"])
def test_an_applied_experiment_keeps_other_configurations_and_the_path_as_written(
    project, tracked_by
):
    """Of data that git does not track the worktree has a link."""
    (project / "dvc.yaml").write_text(CHEAP_PROFILES)
    own = {**SMALL, "data": {**SMALL["data"], "path": "source/mine"}}
    write_params(project, own)
    data = project / "source" / "mine"
    data.mkdir(parents=True)
    (data / "1.txt").write_text("mine")
    if tracked_by == "DVC":
        dvc(project, "add", "source/mine")
    if tracked_by == "nobody":
        (project / "source" / ".gitignore").write_text("/mine\n")
    dvc(project, "repro", "--quiet")
    new = {"new": {"read": "shards"}}
    write_params(project, {**own, "pipelines": {**own["pipelines"], **new}})
    git(project, "add", "--all")
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
        dvc(workspace.root, "repro", "--quiet", **workspace.environment)
        ran = (workspace.root / "dvc.lock").read_text()
        (project / "mine" / "2.txt").write_text("2")
        assert save_experiment(workspace, "x") is None
        assert (workspace.root / "dvc.lock").read_text() == ran
    dvc(project, "exp", "apply", "x")
    assert {*json.loads(dvc(project, "status", "--json"))} == {"profile@naive", "profile@optimized"}
