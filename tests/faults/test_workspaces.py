"""Runs with changes: they work at any path, with hooks, and after git was killed at any instant;
which of their worktrees stay, what these share with their project, and whose they are.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from dvc.config import Config

from flows.run.dvc_calls import DVC, dvc_environment
from flows.run.git_calls import find_committer, find_repository_problem
from flows.run.parameters import Changes, check_name, derive_name
from flows.run.processes import run_supervised
from flows.run.resolution import resolve
from flows.run.source_check import check_code
from flows.run.workspace import (
    KEPT_REPORTS,
    SWEPT_AFTER_S,
    UNNAMED,
    is_saved,
    keep_worktree,
    open_workspace,
    remove_workspace,
    save_experiment,
    sweep_workspaces,
)
from tests.support.kills import kills_at_each_operation
from tests.support.lanes import slow_but_first
from tests.support.project import SMALL, write_params
from tests.support.skips import need
from tests.support.small_data import read_files, write_files
from tests.support.worktrees import CHEAP, age, cheap_project, git, leave, opened
from throughline.config.params_file import read_yaml
from throughline.shared.errors import WorkspaceProblem
from throughline.shared.layout import WORKSPACES

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


def commit_all(project: Path) -> None:
    git(project, "add", "--all")
    git(project, "commit", "-qm", "data")


def read_cache(root: Path) -> dict:
    return Config(str(root / ".dvc"))["cache"]


@pytest.mark.parametrize("name", slow_but_first(NAMES))
def test_a_worktree_uses_the_projects_cache_at_any_path(tmp_path, name):
    project = cheap_project(tmp_path / name)
    with opened(project) as workspace:
        assert Path(read_cache(workspace.root)["dir"]).samefile(project / ".dvc" / "cache")
        assert read_yaml(workspace.root / "params.yaml")["batch_size"] == 16
    elsewhere = tmp_path / "other disk, #1"
    settings = f'[cache]\ndir = "{elsewhere}"\ntype = "hardlink,copy"\nshared = group\n'
    (project / ".dvc" / "config.local").write_text(settings)
    with opened(project) as workspace:
        cache = read_cache(workspace.root)
    assert Path(cache["dir"]).samefile(elsewhere)
    assert (cache["type"], cache["shared"]) == (["hardlink", "copy"], "group")
    assert {*tmp_path.iterdir()} == {project, elsewhere}


@pytest.mark.slow
def test_a_stage_runs_and_an_experiment_is_kept_at_any_path_after_dvc_install(
    tmp_path, monkeypatch
):
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "t")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "t@example.org")
    project = cheap_project(tmp_path / "hash #1, 100% %(x)s 'größe' \"large\"")
    dvc(project, "install")
    write_files(project, {"dvc.yaml": CHANGED, "added.txt": "added"})
    git(project, "add", "added.txt")
    with opened(project) as workspace:
        dvc(workspace.root, "repro", **workspace.environment)
        assert not is_saved(workspace, "x")
        assert save_experiment(workspace, "x") is None
        assert is_saved(workspace, "x") and not is_saved(workspace, "y")
    assert list((project / ".dvc" / "cache").rglob("*")), "what it made is in the project's cache"
    listed = dvc(project, "exp", "list", "--name-only")
    assert listed.split() == ["x"], "below the commit, though it was not committed"
    git(project, "reset", "--quiet", "--hard")
    dvc(project, "exp", "apply", "x")
    assert (project / "dvc.yaml").read_text() == CHANGED
    assert (project / "added.txt").read_text() == "added"


def lose_the_folder(root: Path, admin: Path) -> None:
    shutil.rmtree(root)
    (admin / "locked").write_text("initializing")


# What a kill leaves of a worktree, and of what git keeps of it.
DAMAGES = {
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


def test_the_projects_hooks_do_not_run_and_its_locked_index_is_neither_waited_for_nor_changed(
    project,
):
    hooks = project / ".git" / "hooks"
    for name in ("post-checkout", "pre-commit", "post-index-change", "reference-transaction"):
        write_files(hooks, {name: "#!/bin/sh\nexit 1\n"})
        (hooks / name).chmod(0o755)
    (project / ".git" / "index.lock").touch()
    (project / "new.txt").write_text("new")
    (project / "dvc.yaml").write_text(CHANGED)
    before = (project / ".git" / "index").read_bytes()
    for _ in range(2):
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
def test_an_applied_experiment_keeps_other_configurations_and_has_not_seen_what_came_later(
    project, tracked_by
):
    """Of data that git does not track the worktree has a link."""
    own = {**SMALL, "data": {**SMALL["data"], "path": "source/mine"}}
    write_params(project, own)
    write_files(project, {"dvc.yaml": CHEAP_PROFILES, "source/mine/1.txt": "mine"})
    if tracked_by == "DVC":
        dvc(project, "add", "source/mine")
    if tracked_by == "nobody":
        (project / "source" / ".gitignore").write_text("/mine\n")
    dvc(project, "repro", "--quiet")
    pipelines = {**own["pipelines"], "new": {"read": "shards"}}
    write_params(project, {**own, "pipelines": pipelines})
    commit_all(project)
    resolved, stale = resolve(project, Changes(batch_size=16), ["naive"]), ["profile@optimized"]
    with open_workspace(resolved, name="x") as workspace:
        assert (workspace.root / "source/mine/1.txt").read_text() == "mine"
        assert (workspace.root / "source/mine").is_symlink() is (tracked_by != "git")
        assert [*read_yaml(workspace.root / "params.yaml")["pipelines"]] == ["naive"]
        dvc(workspace.root, "repro", "--quiet")
        ran = (workspace.root / "dvc.lock").read_text()
        if tracked_by == "nobody":
            (project / "source" / "mine" / "2.txt").write_text("2")
            stale.append("profile@naive")
        assert save_experiment(workspace, "x") is None
        assert (workspace.root / "dvc.lock").read_text() == ran
    dvc(project, "exp", "apply", "x")
    assert read_yaml(project / "params.yaml") == {**own, "batch_size": 16}, "new has no results"
    assert not (project / "source" / "mine").is_symlink()
    assert {*json.loads(dvc(project, "status", "--json"))} == {*stale}
    assert (project / "optimized.txt").read_text() == "optimized\n"


def test_worktrees_of_killed_runs_without_a_name_are_swept_after_a_day(project):
    swept, young = leave(project, "swept"), leave(project, "young", age_s=SWEPT_AFTER_S - 600)
    names = ("finished", "named-before", "named-since", "busy-lately")
    stay = [leave(project, name, ephemeral=name != "named-before") for name in names]
    with opened(project, "finished", ephemeral=True) as workspace:
        keep_worktree(workspace)  # of a run that could not be saved as an experiment
    with opened(project, "named-before", ephemeral=True) as workspace:  # as Prefect calls this one
        assert not workspace.ephemeral
    with opened(project, "named-since"):
        pass
    for root in stay:
        age(root, SWEPT_AFTER_S)
    (stay[-1] / "runs" / "naive" / "checkpoint").touch()
    with opened(project, "in-use", ephemeral=True) as workspace:
        age(workspace.root, SWEPT_AFTER_S)
        assert sweep_workspaces(project) == ["swept"]
        assert remove_workspace(workspace) is None, "it has no report"
    assert not swept.exists() and young.exists() and all(root.exists() for root in stay)
    assert "swept" not in git(project, "worktree", "list")
    assert not list((project / ".throughline" / "scratch").glob("*/*/swept"))


CALLED = {"proud-owl": "proud-owl", "../../größe": "gr-e-1f2e3d4c", "-": "1f2e3d4c"}
CALLED["x" * 65] = "x" * 55 + "-1f2e3d4c"


@pytest.mark.parametrize(("called", "name"), CALLED.items())
def test_a_run_without_a_name_has_one_that_it_can_have_whatever_prefect_calls_it(called, name):
    assert derive_name(called, "1f2e3d4c-5b6a-4988-8776-655443322110") == name
    check_name(name)


def test_a_name_that_git_knows_otherwise_is_refused(project):
    git(project, "tag", "v1")
    for name in ("v1", git(project, "rev-parse", "HEAD")[:9]):
        with pytest.raises(WorkspaceProblem, match="git knows it as commit"), opened(project, name):
            pass
    assert not list((project / WORKSPACES).glob("*"))


@pytest.mark.slow
def test_whenever_a_run_without_a_name_is_killed_its_worktree_is_swept(project):
    def work() -> None:
        with opened(project, "x", ephemeral=True) as workspace:
            (workspace.root / "report").mkdir()
            remove_workspace(workspace)

    root, left = project / WORKSPACES / "x", 0
    for _ in kills_at_each_operation(work):
        if root.exists():
            left += 1
            age(root, SWEPT_AFTER_S)
        sweep_workspaces(project)
        assert not root.exists() and not list((project / UNNAMED).glob("*"))
    assert left > 3


@pytest.mark.slow
def test_a_name_may_be_used_again_with_other_data(project):
    first, above, other = "my/photos/new", "my/photos", "my/texts"
    write_files(project, dict.fromkeys([f"{path}/1.txt" for path in (first, above, other)], "1"))
    for data in (first, above, other, first):
        changes = Changes(overrides=[f"data.path={data}"])
        with open_workspace(resolve(project, changes), name="x") as workspace:
            assert read_files(workspace.root / data) == read_files(project / data)
    (link,) = (path for path in (workspace.root / "my").rglob("*") if path.is_symlink())
    assert link == workspace.root / first, "it alone, and no empty folders"
    assert {*(workspace.root / "my").rglob("*")} <= {link, *link.parents}


def test_a_worktree_of_the_users_own_whose_disk_is_not_there_stays_known_to_git(project, tmp_path):
    own = tmp_path / "disk" / "x"
    git(project, "worktree", "add", "-q", "--detach", str(own))
    root = leave(project, "swept")
    own.parent.rename(tmp_path / "not mounted")
    with opened(project, "x") as workspace:  # of the same name, and new
        pass
    assert sweep_workspaces(project) == ["swept"] and not root.exists()
    (tmp_path / "not mounted").rename(own.parent)
    assert_of_one_repository(project, own)
    assert_of_one_repository(project, workspace.root)
    assert "swept" not in git(project, "worktree", "list")


def assert_of_one_repository(project: Path, root: Path) -> None:
    """A worktree works, and its project knows it."""
    assert git(root, "rev-parse", "HEAD") == git(project, "rev-parse", "HEAD")
    assert str(root) in git(project, "worktree", "list")


@pytest.mark.parametrize("copied", [False, True], ids=["moved", "copied"])
def test_a_worktree_goes_on_in_a_moved_project_and_in_a_copy_which_leaves_the_original_its_own(
    project, copied
):
    with opened(project) as workspace:
        write_files(workspace.root, {"data/half": ""})
    original, new = workspace.root, project.with_name("moved to")
    shutil.copytree(project, new, symlinks=True) if copied else project.rename(new)
    (new / "dvc.yaml").write_text(CHANGED)
    if copied:
        commit_all(new)
    with opened(new) as workspace:
        assert (workspace.root / "data" / "half").exists(), "what it has made"
        assert (workspace.root / "dvc.yaml").read_text() == CHANGED
        assert Path(read_cache(workspace.root)["dir"]).is_relative_to(new)
    git(new, "worktree", "prune")
    assert_of_one_repository(new, workspace.root)
    if copied:
        assert_of_one_repository(project, original)
        assert (original / "dvc.yaml").read_text() == CHEAP


def test_a_project_that_is_no_repository_with_a_commit_is_refused(project):
    within = project / "within"
    within.mkdir()
    write_params(within, SMALL)
    with pytest.raises(WorkspaceProblem, match="within is not the top folder of a git"):
        opened(within).__enter__()
    git(within, "init", "--quiet")
    with pytest.raises(WorkspaceProblem, match="within is a git repository without a com"):
        opened(within).__enter__()


def test_code_that_git_does_not_track_and_code_in_a_submodule_are_refused(project, tmp_path):
    add = ("submodule", "--quiet", "add", str(cheap_project(tmp_path / "other")), "sub")
    git(project, "-c", "protocol.file.allow=always", *add)
    write_files(project, {"sub/my_models.py": "", "größe.py": "", ".gitignore": "*.py\n"})
    with pytest.raises(WorkspaceProblem, match=r"needs sub/my_models\.py of .* submodule sub,"):
        check_code(project, ["größe.py", "sub/my_models.py"])
    with pytest.raises(WorkspaceProblem, match=r"`git add --force größe\.py`"):
        check_code(project, ["größe.py"])
    git(project, "add", "--force", "größe.py")
    check_code(project, ["größe.py"])


def test_the_latest_reports_of_runs_without_a_name_stay(project):
    reports = project / ".throughline" / "reports"
    for number in range(KEPT_REPORTS):
        (reports / f"earlier-{number}").mkdir(parents=True)
        os.utime(reports / f"earlier-{number}", (number, number))
    with opened(project, ephemeral=True) as workspace:
        write_files(workspace.root, {"report/index.html": "found"})
        kept = remove_workspace(workspace)
    assert kept is not None and (kept / "index.html").read_text() == "found"
    left = {path.name for path in reports.iterdir()}
    assert len(left) == KEPT_REPORTS and "earlier-0" not in left and "earlier-1" in left


def test_a_repository_of_another_user_is_named_with_the_command_that_helps(project, monkeypatch):
    need("root")
    monkeypatch.setenv("HOME", str(project.parent))
    os.chown(project, 4321, -1)
    os.chown(project / ".git", 4321, -1)
    problem = find_repository_problem(project) or ""
    assert "belongs to another user" in problem
    subprocess.run(problem.split("`")[1].split(), check=True)
    assert find_repository_problem(project) is None
