"""Cheap projects, their git, and worktrees of runs with changes, for tests."""

import os
import time
from contextlib import AbstractContextManager
from pathlib import Path

from flows.run.parameters import Changes
from flows.run.resolution import resolve
from flows.run.workspace import SWEPT_AFTER_S, Workspace, open_workspace
from tests.support.project import SMALL, commit_all, write_params
from tests.support.project import git as git  # for those that import it with the rest

REPORT = "{cmd: echo made > made.txt, params: [batch_size], outs: [made.txt]}"
CHEAP = f"stages:\n  report: {REPORT}\n"


def cheap_project(folder: Path) -> Path:
    """A committed project with one stage that takes no time."""
    (folder / ".dvc").mkdir(parents=True)
    (folder / ".dvc" / "config").write_text("[core]\n    analytics = false\n")
    (folder / ".dvc" / ".gitignore").write_text("/config.local\n/tmp\n/cache\n")
    (folder / ".gitignore").write_text("/.throughline/\n/made.txt\n")
    (folder / "dvc.yaml").write_text(CHEAP)
    write_params(folder, SMALL)
    return commit_all(folder)


def opened(
    project: Path, name: str = "x", *, ephemeral: bool = False
) -> AbstractContextManager[Workspace]:
    """The workspace of a run with another batch size."""
    return open_workspace(resolve(project, Changes(batch_size=16)), name=name, ephemeral=ephemeral)


def leave(
    project: Path, name: str, *, ephemeral: bool = True, age_s: float = SWEPT_AFTER_S
) -> Path:
    """What a killed run leaves, nothing of which has changed for so long."""
    with opened(project, name, ephemeral=ephemeral) as workspace:
        (workspace.root / "runs" / "naive").mkdir(parents=True)
    age(workspace.root, age_s)
    return workspace.root


def age(path: Path, age_s: float) -> None:
    """Let a file, or a folder with all that is in it, be so many seconds old."""
    then = time.time() - age_s
    for found in (path, *path.rglob("*")):
        os.utime(found, (then, then), follow_symlinks=False)
