"""The git worktree of a run with changes: brought to the project's present state, whatever a kill
or a move has left of it, and forgotten by git.

The user's own worktrees are let alone, also those whose disk is not there at the moment: git's
`worktree prune` would forget them.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from flows.run.dvc_calls import LOCK_FILE
from flows.run.git_calls import find_repository_problem, own_index, run_git, sign_as_nobody
from throughline.shared.errors import WorkspaceProblem
from throughline.shared.files import atomic_file
from throughline.shared.layout import WORKSPACES

# What git says of a folder that is none, or of one that a kill has left half made.
NO_WORKTREE = ("not a git repository", "gitfile", "work tree")


def check_out(project: Path, root: Path) -> None:
    """Bring the worktree `root` to the project's present state, uncommitted changes included. They
    are uncommitted there, too, so that the experiment stands below the project's own commit.

    It keeps the dvc.lock of its own last run, which knows what of its results is up to date.
    """
    if problem := find_repository_problem(project):
        raise WorkspaceProblem(f"a run with changes happens in a git worktree, and {problem}")
    head, own_lock = run_git(project, "rev-parse", "HEAD"), root / LOCK_FILE
    commit = _commit_changes(project, head)
    last_results = own_lock.read_bytes() if own_lock.is_file() else None
    if root.exists() and not _is_worktree(project, root):
        _relink(project, root)
        # A kill can leave a folder that is no worktree; git would then take the project for what is
        # meant.
        if not _is_worktree(project, root):
            shutil.rmtree(root)
    if root.exists():
        # Nobody else uses this worktree while its lock is held, so what a killed git has left is
        # nobody's.
        index = Path(run_git(root, "rev-parse", "--absolute-git-dir"), "index")
        index.with_name("index.lock").unlink(missing_ok=True)
        checkout = ("checkout", "--quiet", "--force", "--detach", commit)
        try:
            run_git(root, *checkout)
        except WorkspaceProblem:
            index.unlink(missing_ok=True)  # damaged, perhaps; it can be made from the commit
            run_git(root, *checkout)
        if last_results is not None:
            with atomic_file(own_lock) as temporary:
                temporary.write_bytes(last_results)
    else:
        # Forced twice: also where git has an entry of a worktree there, which a kill may have left
        # locked.
        add = ("worktree", "add", "--quiet", "--force", "--force", "--detach")
        run_git(project, *add, str(root), commit)
    run_git(root, "reset", "--quiet", "--soft", head)


def forget_worktree(project: Path, root: Path) -> None:
    """Let git forget the worktree `root`, whose folder is gone, if it knows it."""
    with suppress(WorkspaceProblem):
        run_git(project, "worktree", "remove", "--force", "--force", str(root))


def _is_worktree(project: Path, root: Path) -> bool:
    """Whether a folder is the top of a worktree of the project."""
    try:
        top = Path(run_git(root, "rev-parse", "--show-toplevel"))
        return top.samefile(root) and _find_git(root).samefile(_find_git(project))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except WorkspaceProblem as problem:
        # Whatever else ends git, such as that the machine has no memory, says nothing of it.
        if any(words in str(problem) for words in NO_WORKTREE):
            return False
        raise


def _find_git(folder: Path) -> Path:
    """The folder of git that all worktrees of a repository share."""
    return Path(folder, run_git(folder, "rev-parse", "--git-common-dir"))


def _relink(project: Path, root: Path) -> None:
    """Let a worktree that was moved or copied with the project be the project's again: the links
    between its folder and git's entry of it are absolute.

    Not by `git worktree repair`, which in a copy takes the worktrees of the original from it.
    """
    link = root / ".git"
    with suppress(WorkspaceProblem, OSError):
        entry = _find_git(project) / "worktrees" / _read_path(link).name
        back = entry / "gitdir"
        places = len((*WORKSPACES.parts, root.name, link.name))
        if _read_path(back).parts[-places:] == link.parts[-places:]:  # it is the entry of this one
            back.write_bytes(os.fsencode(link.absolute()) + b"\n")
            link.write_bytes(b"gitdir: " + os.fsencode(entry.absolute()) + b"\n")


def _read_path(file: Path) -> Path:
    """The path that a file of git's holds."""
    return Path(os.fsdecode(file.read_bytes().removesuffix(b"\n")))


def _commit_changes(project: Path, head: str) -> str:
    """A commit, on no branch, of the project with its uncommitted changes; `head`, the project's
    own, where there are none.

    Made with an index of its own: the project's is neither locked nor changed.
    """
    if not run_git(project, "status", "--porcelain", "--untracked-files=no"):
        return head
    index = Path(project, run_git(project, "rev-parse", "--git-path", "index"))
    with own_index(project) as own:
        shutil.copy(index, own["GIT_INDEX_FILE"])
        run_git(project, "add", "--update", ":/", environment=own)
        tree = run_git(project, "write-tree", environment=own)
    return run_git(
        project,
        "commit-tree",
        tree,
        "-p",
        head,
        "-m",
        "uncommitted changes",
        environment=sign_as_nobody(),
    )
