"""Where a run happens: the project itself, or, for a run with overrides, a git worktree of its own
that shares DVC's cache.

The project's params.yaml, dvc.lock and outputs stay untouched by such a run; it is kept as a DVC
experiment. A worktree belongs to one run at a time: it is locked for the run's whole length.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.run.changed_params import drop_pipelines
from flows.run.dvc_calls import LOCK_FILE, OWN_SITE, SITE_VARIABLE
from flows.run.git_calls import run_git
from flows.run.locks import STATE_DIR, hold_briefly, lock_path
from flows.run.parameters import check_name
from flows.run.resolution import ResolvedParams
from flows.run.worktrees import check_out, forget_worktree
from throughline.config.params_checks import RAW
from throughline.config.params_file import PARAMS_FILE, parse_yaml
from throughline.shared.errors import WorkspaceProblem
from throughline.shared.file_lock import hold, hold_if_free
from throughline.shared.files import atomic_file
from throughline.shared.layout import WORKSPACES, Layout
from throughline.shared.scratch import Scratch

DATA_LINK = Path(STATE_DIR) / "data-link"  # in a worktree: where its link to data is
UNNAMED = Path(STATE_DIR) / "unnamed"  # a mark for each worktree of a run without a name
KEPT_REPORTS = 50  # of runs without a name
SWEPT_AFTER_S = 86_400.0  # until then a retry of the run goes on from its worktree


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """A folder in which stages run, the project it belongs to, and whether it is the project
    itself.

    `lock_fds`: file descriptors of the locks that the run holds for its whole length. `owner` is
    what others are shown. `params`: the experiment's params.yaml, where it is not that of the run.
    `ephemeral`: the worktree of a run that nobody gave a name to come back
    to; it goes when the run is kept.
    """

    root: Path
    project: Path
    params: str | None = None
    ephemeral: bool = False
    lock_fds: tuple[int, ...] = ()
    owner: str = "a run"

    @property
    def isolated(self) -> bool:
        """Whether this is a worktree of its own."""
        return self.root != self.project

    @property
    def environment(self) -> dict[str, str]:
        """What DVC is to know here: a worktree's databases go with it, instead of staying in
        /var/tmp.
        """
        return {SITE_VARIABLE: str(self._site)} if self.isolated else {}

    @property
    def is_new(self) -> bool:
        """Whether this is a worktree in which DVC has not looked at the data yet."""
        return self.isolated and not self._site.exists()

    @property
    def _site(self) -> Path:
        return self.root / OWN_SITE

    @property
    def lock(self) -> Path | None:
        """The file to lock around each call of DVC, in the project, which runs without changes
        share.
        """
        return None if self.isolated else lock_path(self.project, "project")


def _refuse_git_name(project: Path, name: str) -> None:
    """Refuse the name of a branch, a tag or a commit: `dvc exp apply` would take that."""
    commit = ""
    with suppress(WorkspaceProblem):  # git knows none, or there is no repository
        commit = run_git(project, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    if commit:
        raise WorkspaceProblem(
            f"{name!r} cannot be the name of a run: to git it is the commit {commit[:10]}, which"
            f" `dvc exp apply {name}` would apply in place of the run; choose another name"
        )


@contextmanager
def open_workspace(
    resolved: ResolvedParams,
    *,
    name: str,
    ephemeral: bool = False,
    on_wait: Callable[[str], object] = print,
) -> Iterator[Workspace]:
    """Yield the project itself where its parameters are unchanged, else a worktree named `name`
    with those of the run.

    Uncommitted changes of tracked files are part of the run; untracked files are not. An existing
    worktree of that name is brought up to date and used again, once no other run uses it; `on_wait`
    is called with its name. An `ephemeral` one is marked, and swept should its run be killed; one
    that a run has been given the name of stays, whatever Prefect calls a later run.

    Raises:
      WorkspaceProblem: the project is not the top folder of a git repository with a commit, or the
        name could lead out of it, or means something else to git.
    """
    project, owner = resolved.request.project, f"run {name}"
    if not resolved.changed:
        yield Workspace(root=project, project=project, owner=owner)
        return
    check_name(name)
    if not ephemeral:
        _refuse_git_name(project, name)
    root, mark = project / WORKSPACES / name, project / UNNAMED / name
    with hold(lock_path(project, f"workspace.{name}"), owner, on_wait) as lock_fd:
        ephemeral = ephemeral and (mark.exists() or not root.exists())
        if ephemeral:  # before the worktree is there, which no kill then leaves without its mark
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
        else:
            mark.unlink(missing_ok=True)
        with hold_briefly(project, "git", owner):
            check_out(project, root)
        _share_cache(project, root)
        _share_data(project, root, Path(resolved.params.data.path))
        with atomic_file(root / PARAMS_FILE) as temporary:
            temporary.write_text(resolved.text, encoding="utf-8")
        yield Workspace(
            root=root,
            project=project,
            params=_compose_params(resolved, root),
            ephemeral=ephemeral,
            lock_fds=(lock_fd,),
            owner=owner,
        )


def keep_worktree(workspace: Workspace) -> None:
    """Let the worktree of a run that nobody gave a name stay: it alone has what the run made."""
    (workspace.project / UNNAMED / workspace.root.name).unlink(missing_ok=True)


def sweep_workspaces(project: Path) -> list[str]:
    """Remove what killed runs without a name have left, a day after the last change there; returns
    the names of the worktrees. One that is in use stays.
    """
    swept, scratch = [], Scratch(project)
    for mark in sorted((project / UNNAMED).glob("*")):
        root = project / WORKSPACES / mark.name
        with hold_if_free(lock_path(project, f"workspace.{root.name}"), "a sweep") as held:
            if held is None or not mark.exists() or _idle_s(root) < SWEPT_AFTER_S:
                continue
            if root.exists():
                # At once: a run of that name would go on from what is half removed.
                root.rename(scratch.new_folder() / root.name)
                swept.append(root.name)
            with hold_briefly(project, "git", "a sweep"):
                forget_worktree(project, root)
            mark.unlink()
    return swept


def _idle_s(root: Path) -> float:
    """Seconds since a file was made or removed in a worktree, without end where it is not there."""
    changed_at = (Path(folder).stat().st_mtime for folder, _, _ in os.walk(root))
    return time.time() - max(changed_at, default=float("-inf"))


def remove_workspace(workspace: Workspace) -> Path | None:
    """Remove the worktree of a run that has been kept as an experiment; its report, if there is
    one, stays in .throughline/reports/, where the oldest go.

    What the run made is in DVC's cache. Returns where the report is.
    """
    report, kept = (
        Layout(workspace.root).report,
        workspace.project / STATE_DIR / "reports" / workspace.root.name,
    )
    if report.exists():
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(report, kept)
        kept.touch()
    with hold_briefly(workspace.project, "git", workspace.owner):
        reports = [*kept.parent.iterdir()] if kept.exists() else []
        for old in sorted(reports, key=lambda folder: folder.stat().st_mtime)[:-KEPT_REPORTS]:
            shutil.rmtree(old, ignore_errors=True)
        run_git(workspace.project, "worktree", "remove", "--force", str(workspace.root))
    keep_worktree(workspace)  # there is none to be swept
    return kept if report.exists() or kept.exists() else None


def _compose_params(resolved: ResolvedParams, root: Path) -> str | None:
    """The params.yaml of the experiment, where it is not that of the run: with other configurations
    as far as dvc.lock has results of them; of those without DVC could not apply it.
    """
    named = parse_yaml(resolved.complete, PARAMS_FILE.name)["pipelines"]
    others = [name for name in named if name not in resolved.params.pipelines]
    lock = root / LOCK_FILE
    # Not parsed: a damaged one is set aside later, by the first call of DVC.
    locked = lock.read_text(errors="replace").splitlines() if others and lock.is_file() else []
    without = [name for name in others if f"  profile@{name}:" not in locked]
    return drop_pipelines(resolved.complete, without) if len(without) < len(others) else None


def _share_data(project: Path, root: Path, path: Path) -> None:
    """Let the worktree have data of the project that git does not track, at the same path, so that
    its parameters and results name it as the project's do.
    """
    _remove_data_link(root)  # whose folder may be that of the present data
    link, target = root / path, project / path
    if path.is_absolute() or path.is_relative_to(RAW) or not target.exists():
        return
    if link.is_symlink():
        link.unlink()  # of an earlier version, which did not note it
    if not link.exists():
        note = root / DATA_LINK
        note.parent.mkdir(exist_ok=True)
        note.write_text(str(path), encoding="utf-8")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)


def _remove_data_link(root: Path) -> None:
    """Remove the link to its data that an earlier run of this name has made, and the folders that
    are empty without it.
    """
    note = root / DATA_LINK
    if not note.exists():
        return
    link = root / note.read_text(encoding="utf-8")
    if link.is_symlink():
        link.unlink()
        with suppress(OSError):  # there is more in it
            for folder in link.relative_to(root).parents[:-1]:
                (root / folder).rmdir()
    note.unlink()


def _share_cache(project: Path, root: Path) -> None:
    """Let the worktree use the project's cache.

    By a link, so that no path is in DVC's configuration: it knows no quoting for `%` and for what
    is not ASCII.
    """
    from dvc.config import Config  # imported here: half a second
    from dvc.exceptions import DvcException

    try:
        config = Config(str(project / ".dvc"))
        cache: Any = config.get("cache", {})
        local: Any = config.load_one("local")
    except DvcException as error:
        raise WorkspaceProblem(
            f"DVC's configuration in {project / '.dvc'} cannot be read: {error}"
        ) from None
    target = Path(cache.get("dir") or project / ".dvc" / "cache")
    target.mkdir(parents=True, exist_ok=True)
    link = root / ".dvc" / "cache"
    if not link.is_symlink() or link.readlink() != target:
        (
            shutil.rmtree(link)
            if link.is_dir() and not link.is_symlink()
            else link.unlink(missing_ok=True)
        )
        link.symlink_to(target, target_is_directory=True)
    with atomic_file(root / ".dvc" / "config.local") as temporary:
        own = {**local["cache"], "dir": "cache"}
        texts = {key: ",".join(one) if isinstance(one, list) else one for key, one in own.items()}
        lines = (f'    {key} = "{text}"\n' for key, text in texts.items())
        temporary.write_text(f"[cache]\n{''.join(lines)}")
