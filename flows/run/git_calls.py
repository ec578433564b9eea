"""Calls of git: in a folder's own repository, without hooks, and with an author if none is set."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from flows.run.locks import STATE_DIR
from flows.run.processes import run_supervised
from throughline.shared.errors import WorkspaceProblem

CHANGE_WORKTREES = ("checkout", "worktree")  # commands of git
DUBIOUS = "dubious ownership"  # git's words for a repository of another user
SUBMODULE = "160000 "  # git's mode of a submodule
# Variables with the author of commits that are on no branch.
NOBODY = {
    f"GIT_{role}_{key}": value
    for role in ("AUTHOR", "COMMITTER")
    for key, value in (("NAME", "throughline"), ("EMAIL", "throughline@localhost"))
}


def run_git(folder: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """Run git in a repository's top folder; return what it prints. WorkspaceProblem if it fails."""
    variables = {
        **_environment(),
        # Within a damaged worktree, git would find the project's repository further up.
        "GIT_CEILING_DIRECTORIES": str(folder.parent),
        "GIT_OPTIONAL_LOCKS": "0",
        "LC_ALL": "C.UTF-8",  # git's messages are compared
        **(environment or {}),
    }
    # Hooks, such as those of `dvc install`, would call DVC in an incomplete worktree.
    command = ["git", "-c", f"core.hooksPath={os.devnull}", *arguments]
    if arguments[0] in CHANGE_WORKTREES:  # takes time, and must end if the run is killed
        done = run_supervised(command, folder, variables)
    else:
        piped = {"capture_output": True, "text": True, "errors": "surrogateescape"}
        done = subprocess.run(command, cwd=folder, env=variables, check=False, **piped)
    if done.returncode != 0:
        raise WorkspaceProblem(
            f"a run with changes needs a git worktree, but `git {' '.join(arguments[:2])}` failed"
            f" in {folder}: {done.stderr.strip()}"
        )
    return done.stdout.removesuffix("\n")


def find_repository_problem(project: Path) -> str | None:
    """Return why git finds no commit in a project or refuses it, and the remedy, or None."""
    problem = "is not the top folder of a git repository"
    if (project / ".git").exists():
        problem = "is a git repository without a commit"
        try:
            run_git(project, "rev-parse", "--verify", "--quiet", "HEAD")
            return None
        except WorkspaceProblem as error:
            if DUBIOUS in str(error):
                remedy = f"`git config --global --add safe.directory {project}`"
                return f"{project} belongs to another user, so git refuses it: {remedy}"
    return (
        f"{project} {problem}: run `git init && git add --all && git commit -m start` there, even"
        " if it is inside another repository"
    )


def _environment() -> dict[str, str]:
    """Return our environment without variables that a git hook sets for another repository."""
    return {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("GIT_") or key.startswith("GIT_CONFIG_")
    }


def list_files(folder: Path, *arguments: str) -> list[str]:
    """List files by `git ls-files`, which runs no program of the repository; empty if git fails."""
    command = ["git", "-c", "core.fsmonitor=false", "ls-files", "-z", *arguments]
    done = subprocess.run(command, cwd=folder, env=_environment(), capture_output=True, check=False)
    return os.fsdecode(done.stdout).split("\0")[:-1] if done.returncode == 0 else []


def list_submodules(folder: Path) -> list[Path]:
    """List the git submodules in a folder; in a worktree their folders are empty."""
    entries = (entry.partition("\t") for entry in list_files(folder, "--stage"))
    return [Path(name) for entry, _, name in entries if entry.startswith(SUBMODULE)]


def find_committer(project: Path) -> dict[str, str]:
    """Return variables of a placeholder committer if git knows none: DVC needs one to commit."""
    with suppress(WorkspaceProblem):
        if run_git(project, "config", "user.name") and run_git(project, "config", "user.email"):
            return {}
    return dict(NOBODY)


def without_hooks() -> dict[str, str]:
    """Return the variables that keep DVC's own calls of git from running hooks."""
    number = int(os.environ.get("GIT_CONFIG_COUNT") or 0)
    return {
        "GIT_CONFIG_COUNT": str(number + 1),
        f"GIT_CONFIG_KEY_{number}": "core.hooksPath",
        f"GIT_CONFIG_VALUE_{number}": os.devnull,
    }


@contextmanager
def own_index(folder: Path) -> Iterator[dict[str, str]]:
    """Yield the environment in which git uses a private index in an empty folder."""
    own = folder / STATE_DIR / "index"
    shutil.rmtree(own, ignore_errors=True)
    own.mkdir(parents=True)
    yield {"GIT_INDEX_FILE": str(own / "index")}
    shutil.rmtree(own)
