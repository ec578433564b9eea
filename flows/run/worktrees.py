"""Brings the git worktree of a run to the project's present state, also after a kill or a move.

Does not use `git worktree prune`, which forgets the user's worktrees on disks not mounted now.
"""

import os
import shutil
from contextlib import suppress
from pathlib import Path

from flows.run.dvc_calls import LOCK_FILE
from flows.run.git_calls import NOBODY, find_repository_problem, own_index, run_git
from throughline.shared.errors import WorkspaceProblem
from throughline.shared.files import atomic_file
from throughline.shared.layout import WORKSPACES

# git's messages about a folder that is not a worktree, or that a kill has left half made.
NO_WORKTREE = ("not a git repository", "gitfile", "work tree")


def check_out(project: Path, root: Path) -> None:
    """Bring the worktree `root` to the project's present state, uncommitted changes included.

    The changes stay uncommitted, so that the experiment belongs to the project's commit. The
    worktree keeps its own dvc.lock, which records the state of its stages.
    """
    if problem := find_repository_problem(project):
        raise WorkspaceProblem(f"a run with changes needs a git worktree, but {problem}")
    head, own_lock = run_git(project, "rev-parse", "HEAD"), root / LOCK_FILE
    commit = _commit_changes(project, head)
    last_results = own_lock.read_bytes() if own_lock.is_file() else None
    if root.exists() and not _is_worktree(project, root):
        _relink(project, root)
        # A kill can leave a folder that is not a worktree; git would then use the project instead.
        if not _is_worktree(project, root):
            shutil.rmtree(root)
    if root.exists():
        # This run holds the worktree's lock, so any lock file of git is from a killed process.
        index = Path(run_git(root, "rev-parse", "--absolute-git-dir"), "index")
        index.with_name("index.lock").unlink(missing_ok=True)
        checkout = ("checkout", "--quiet", "--force", "--detach", commit)
        try:
            run_git(root, *checkout)
        except WorkspaceProblem:
            index.unlink(missing_ok=True)  # may be damaged; git makes it again from the commit
            run_git(root, *checkout)
        if last_results is not None:
            with atomic_file(own_lock) as temporary:
                temporary.write_bytes(last_results)
    else:
        # Forced twice, because a kill may have left a locked entry of this worktree.
        add = ("worktree", "add", "--quiet", "--force", "--force", "--detach")
        run_git(project, *add, str(root), commit)
    run_git(root, "reset", "--quiet", "--soft", head)


def forget_worktree(project: Path, root: Path) -> None:
    """Remove git's entry of the worktree `root`, whose folder is gone."""
    with suppress(WorkspaceProblem):
        run_git(project, "worktree", "remove", "--force", "--force", str(root))


def _is_worktree(project: Path, root: Path) -> bool:
    try:
        top = Path(run_git(root, "rev-parse", "--show-toplevel"))
        return top.samefile(root) and _find_git(root).samefile(_find_git(project))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except WorkspaceProblem as problem:
        # Other failures of git, such as a lack of memory, say nothing about the worktree.
        if any(words in str(problem) for words in NO_WORKTREE):
            return False
        raise


def _find_git(folder: Path) -> Path:
    return Path(folder, run_git(folder, "rev-parse", "--git-common-dir"))


def _relink(project: Path, root: Path) -> None:
    """Repair the absolute links between a moved or copied worktree and git's entry for it."""
    # In a copied project, `git worktree repair` would take the original's worktrees away.
    link = root / ".git"
    with suppress(WorkspaceProblem, OSError):
        entry = _find_git(project) / "worktrees" / _read_path(link).name
        back = entry / "gitdir"
        places = len((*WORKSPACES.parts, root.name, link.name))
        if _read_path(back).parts[-places:] == link.parts[-places:]:  # the entry of this worktree
            back.write_bytes(os.fsencode(link.absolute()) + b"\n")
            link.write_bytes(b"gitdir: " + os.fsencode(entry.absolute()) + b"\n")


def _read_path(file: Path) -> Path:
    return Path(os.fsdecode(file.read_bytes().removesuffix(b"\n")))


def _commit_changes(project: Path, head: str) -> str:
    """Commit uncommitted changes to no branch; return the commit, `head` if there are none."""
    if not run_git(project, "status", "--porcelain", "--untracked-files=no"):
        return head
    index = Path(project, run_git(project, "rev-parse", "--git-path", "index"))
    with own_index(project) as own:
        shutil.copy(index, own["GIT_INDEX_FILE"])
        run_git(project, "add", "--update", ":/", environment=own)
        tree = run_git(project, "write-tree", environment=own)
    commit = ("commit-tree", tree, "-p", head, "-m", "uncommitted changes")
    return run_git(project, *commit, environment=NOBODY)
