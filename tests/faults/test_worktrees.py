"""Which worktrees of runs stay, what they share with their project, and whose they are."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from dvc.config import Config

from flows.run.git_calls import find_repository_problem
from flows.run.parameters import Changes, check_name, derive_name
from flows.run.resolution import resolve
from flows.run.source_check import check_code
from flows.run.workspace import (
    KEPT_REPORTS,
    SWEPT_AFTER_S,
    UNNAMED,
    keep_worktree,
    open_workspace,
    remove_workspace,
    sweep_workspaces,
)
from tests.support.kills import kills_at_each_operation
from tests.support.lanes import slow_but_first
from tests.support.project import SMALL, write_params
from tests.support.skips import need
from tests.support.small_data import read_files
from tests.support.worktrees import CHEAP, age, cheap_project, git, leave, opened
from throughline.config.params_file import read_yaml
from throughline.shared.errors import WorkspaceProblem
from throughline.shared.layout import WORKSPACES

pytestmark = pytest.mark.integration


@pytest.fixture
def project(tmp_path) -> Path:
    return cheap_project(tmp_path / "project")


@pytest.mark.slow
def test_worktrees_of_killed_runs_without_a_name_are_swept_after_a_day(project):
    swept = leave(project, "swept")
    stay = [leave(project, "young", age_s=SWEPT_AFTER_S - 600)]
    stay += [leave(project, name) for name in ("busy-lately", "finished", "named-since")]
    (stay[1] / "runs" / "naive" / "checkpoint").touch()
    with opened(project, "finished", ephemeral=True) as workspace:
        keep_worktree(workspace)  # of a run that could not be saved as an experiment
    with opened(project, "named-since"):
        pass
    for root in stay[2:]:
        age(root, SWEPT_AFTER_S)
    assert sweep_workspaces(project) == ["swept"]
    assert not swept.exists() and all(root.exists() for root in stay)
    assert "swept" not in git(project, "worktree", "list")
    assert not list((project / ".throughline" / "scratch").glob("*/*/swept"))
    assert sweep_workspaces(project) == []


def test_the_worktree_of_a_named_run_stays_whatever_prefect_calls_a_later_one(project):
    root = leave(project, "mine", ephemeral=False)
    with opened(project, "mine", ephemeral=True) as workspace:
        assert workspace.root == root and not workspace.ephemeral
    age(root, SWEPT_AFTER_S)
    assert sweep_workspaces(project) == [] and root.exists()
    leave(project, "tried-again")
    with opened(project, "tried-again", ephemeral=True) as workspace:
        assert workspace.ephemeral
        remove_workspace(workspace)
    assert not workspace.root.exists() and not list((project / UNNAMED).iterdir())


NAMES = {"proud-owl": "proud-owl", "../../größe": "gr-e-1f2e3d4c", "-": "1f2e3d4c"}
NAMES["x" * 65] = "x" * 55 + "-1f2e3d4c"


@pytest.mark.parametrize(("called", "name"), NAMES.items())
def test_a_run_without_a_name_has_one_that_it_can_have_whatever_prefect_calls_it(called, name):
    assert derive_name(called, "1f2e3d4c-5b6a-4988-8776-655443322110") == name
    check_name(name)


@pytest.mark.parametrize("name", ["main", "HEAD", "v1", "commit"])
def test_a_name_that_git_knows_otherwise_is_refused(project, name):
    git(project, "tag", "v1")
    name = git(project, "rev-parse", "HEAD")[:9] if name == "commit" else name
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


@pytest.mark.parametrize("kept", slow_but_first([".git", "dvc.yaml", None]))
def test_a_worktree_that_was_being_removed_is_swept_and_can_be_made_again(project, kept):
    """Git removes its files one after another, in any order."""
    root = leave(project, "x")
    for path in root.iterdir():
        if path.name != kept:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    age(root, SWEPT_AFTER_S)
    assert sweep_workspaces(project) == ["x"] and not root.exists()
    assert "workspaces/x" not in git(project, "worktree", "list")
    assert not list((project / UNNAMED).iterdir())
    with opened(project, "x") as workspace:
        assert read_yaml(workspace.root / "params.yaml")["batch_size"] == 16


@pytest.mark.slow
def test_a_name_may_be_used_again_with_other_data(project):
    first, above, other = "my/photos/new", "my/photos", "my/texts"
    for path in ("my/photos/1.txt", "my/photos/new/2.txt", "my/texts/3.txt"):
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_text(path)
    for data in (first, above, other, first):
        changes = Changes(overrides=[f"data.path={data}"])
        with open_workspace(resolve(project, changes), name="x") as workspace:
            files = read_files(workspace.root / data)
            assert files == read_files(project / data)
    assert len(read_files(project / "my")) == 3
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
    assert git(own, "rev-parse", "HEAD") == git(project, "rev-parse", "HEAD")
    listed = git(project, "worktree", "list")
    assert str(own) in listed and str(workspace.root) in listed and "swept" not in listed


def test_a_worktree_goes_on_after_the_project_was_moved(project):
    with opened(project) as workspace:
        (workspace.root / "data").mkdir()
        (workspace.root / "data" / "half").touch()
    moved = project.rename(project.with_name("moved to"))
    (moved / "dvc.yaml").write_text(CHEAP + "# changed\n")
    with opened(moved) as workspace:
        assert (workspace.root / "data" / "half").exists(), "what it has made"
        assert (workspace.root / "dvc.yaml").read_text().endswith("# changed\n")
        assert Path(Config(str(workspace.root / ".dvc"))["cache"]["dir"]).is_relative_to(moved)
    assert str(workspace.root) in git(moved, "worktree", "list")
    git(moved, "worktree", "prune")
    assert git(workspace.root, "rev-parse", "HEAD") == git(moved, "rev-parse", "HEAD")


def test_a_copy_of_the_project_leaves_the_original_its_worktree(project):
    with opened(project) as workspace:
        (workspace.root / "half").touch()
    original, copy = workspace.root, project.with_name("copy")
    shutil.copytree(project, copy, symlinks=True)
    (copy / "new.txt").touch()
    git(copy, "add", "new.txt")
    git(copy, "commit", "-qm", "new")
    with opened(copy) as workspace:
        assert (workspace.root / "half").exists() and (workspace.root / "new.txt").exists()
    for folder, root in ((project, original), (copy, workspace.root)):
        assert git(root, "rev-parse", "HEAD") == git(folder, "rev-parse", "HEAD")
        assert str(root) in git(folder, "worktree", "list")
    assert not (original / "new.txt").exists()


@pytest.mark.parametrize(
    ("folder", "problem"),
    [("within", "is not the top folder of a git"), ("empty", "is a git repository without a com")],
)
def test_a_project_that_is_no_repository_with_a_commit_is_refused(project, folder, problem):
    (project / folder).mkdir()
    write_params(project / folder, SMALL)
    if folder == "empty":
        git(project / folder, "init", "--quiet")
    with pytest.raises(WorkspaceProblem, match=f"{folder} {problem}"):
        opened(project / folder).__enter__()


def test_code_in_a_submodule_is_refused_with_the_submodule(project, tmp_path):
    git(cheap_project(tmp_path / "other"), "tag", "there")
    add = ("submodule", "--quiet", "add", str(tmp_path / "other"), "sub")
    git(project, "-c", "protocol.file.allow=always", *add)
    for name in ("sub/my_models.py", "my_ops.py"):
        (project / name).touch()
    with pytest.raises(WorkspaceProblem, match=r"needs sub/my_models\.py of .* submodule sub,"):
        check_code(project, ["my_ops.py", "sub/my_models.py"])
    with pytest.raises(WorkspaceProblem, match=r"`git add --force my_ops\.py`"):
        check_code(project, ["my_ops.py"])
    git(project, "add", "my_ops.py")
    check_code(project, ["my_ops.py"])


def test_a_worktree_in_use_is_not_swept_and_the_latest_reports_of_runs_without_a_name_stay(project):
    reports = project / ".throughline" / "reports"
    for number in range(KEPT_REPORTS):
        (reports / f"earlier-{number}").mkdir(parents=True)
        os.utime(reports / f"earlier-{number}", (number, number))
    with opened(project, ephemeral=True) as workspace:
        (workspace.root / "report").mkdir()
        (workspace.root / "report" / "index.html").write_text("found")
        age(workspace.root, 2 * SWEPT_AFTER_S)
        assert sweep_workspaces(project) == [], "it is in use"
        kept = remove_workspace(workspace)
    assert kept is not None and (kept / "index.html").read_text() == "found"
    left = {path.name for path in reports.iterdir()}
    assert len(left) == KEPT_REPORTS and "earlier-0" not in left and "earlier-1" in left


def test_a_repository_of_another_user_is_named_with_the_command_that_helps(tmp_path, monkeypatch):
    need("root")
    project = cheap_project(tmp_path / "project")
    monkeypatch.setenv("HOME", str(tmp_path))
    os.chown(project, 4321, -1)
    os.chown(project / ".git", 4321, -1)
    problem = find_repository_problem(project) or ""
    assert "belongs to another user" in problem
    subprocess.run(problem.split("`")[1].split(), check=True)
    assert find_repository_problem(project) is None
