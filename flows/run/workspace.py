"""The folder of a run: the project itself, or for a run with changes a git worktree of its own,
which shares DVC's cache and leaves the project's files alone. One run at a time holds a worktree,
and its results become a DVC experiment on top of the project's current commit.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.run.changed_params import drop_pipelines
from flows.run.dvc_calls import DVC, LOCK_FILE, OWN_SITE, SITE_VARIABLE, dvc_environment
from flows.run.git_calls import NOBODY, find_committer, own_index, run_git, without_hooks
from flows.run.locks import STATE_DIR, hold_briefly, lock_path
from flows.run.parameters import check_name
from flows.run.processes import run_supervised
from flows.run.resolution import ResolvedParams
from flows.run.worktrees import check_out, forget_worktree
from throughline.config.params_checks import RAW
from throughline.config.params_file import PARAMS_FILE, parse_yaml
from throughline.shared.errors import WorkspaceProblem
from throughline.shared.file_lock import hold, hold_if_free
from throughline.shared.files import atomic_file
from throughline.shared.layout import WORKSPACES, Layout
from throughline.shared.scratch import Scratch

DATA_LINK = Path(STATE_DIR) / "data-link"  # in a worktree: names its link to data
UNNAMED = Path(STATE_DIR) / "unnamed"  # marks worktrees of runs without a name
KEPT_REPORTS = 50  # the latest ones in .throughline/reports, of runs without a name
LAST_STAGE = "report"
SWEPT_AFTER_S = 86_400.0  # until then, a retry of the run reuses its worktree


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """A folder in which stages run: the project itself, or a worktree of it."""

    root: Path
    project: Path
    params: str | None = None  # the experiment's params.yaml, if it differs from the run's
    ephemeral: bool = False  # the run has no name, so that its worktree is removed at the end
    lock_fds: tuple[int, ...] = ()  # descriptors of the locks that are held for the whole run
    owner: str = "a run"  # shown to runs that wait for it

    @property
    def isolated(self) -> bool:
        return self.root != self.project

    @property
    def environment(self) -> dict[str, str]:
        """Variables that keep a worktree's DVC databases inside it, not in /var/tmp."""
        return {SITE_VARIABLE: str(self._site)} if self.isolated else {}

    @property
    def is_new(self) -> bool:
        """Whether DVC has not looked at the data in this worktree yet."""
        return self.isolated and not self._site.exists()

    @property
    def _site(self) -> Path:
        return self.root / OWN_SITE

    @property
    def lock(self) -> Path:
        """The lock that the runs of a folder take in turn around each call of DVC."""
        return lock_path(self.root, "project")


def hold_folder(
    workspace: Workspace, on_wait: Callable[[str], object]
) -> AbstractContextManager[int]:
    """Prevent other runs in the same folder from changing its results during the block."""
    return hold(workspace.lock, workspace.owner, lambda who: on_wait(f"{who} is running here"))


def _refuse_git_name(project: Path, name: str) -> None:
    commit = ""
    with suppress(WorkspaceProblem):  # git knows no such name, or there is no repository
        commit = run_git(project, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    if commit:
        raise WorkspaceProblem(
            f"{name!r} cannot be the name of a run: git knows it as commit {commit[:10]}, which"
            f" `dvc exp apply {name}` would apply instead of the run; choose another name"
        )


@contextmanager
def open_workspace(
    resolved: ResolvedParams,
    *,
    name: str,
    ephemeral: bool = False,
    on_wait: Callable[[str], object] = print,
) -> Iterator[Workspace]:
    """Yield the project itself if its parameters are unchanged, else a worktree called `name`.

    A worktree has the uncommitted changes of tracked files, but no untracked files. An existing one
    is updated and reused; if another run uses it, this waits and calls `on_wait` with that run's
    name. An `ephemeral` worktree is swept if its run is killed, unless a user has named it.

    Raises WorkspaceProblem if the project is not the top folder of a git repository with a commit,
    git or DVC's configuration fails, or the name is not valid or is known to git.
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
        if ephemeral:  # mark first, so that a kill leaves no worktree without a mark
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
    """Keep an unnamed run's worktree from being swept, because it alone has the run's results."""
    (workspace.project / UNNAMED / workspace.root.name).unlink(missing_ok=True)


def sweep_workspaces(project: Path) -> list[str]:
    """Remove worktrees of killed runs without a name, unused for a day; return their names."""
    swept, scratch = [], Scratch(project)
    for mark in sorted((project / UNNAMED).glob("*")):
        root = project / WORKSPACES / mark.name
        with hold_if_free(lock_path(project, f"workspace.{root.name}"), "a sweep") as held:
            if held is None or not mark.exists() or _idle_s(root) < SWEPT_AFTER_S:
                continue
            if root.exists():
                # Rename first: a run of that name must not reuse a half-removed worktree.
                root.rename(scratch.new_folder() / root.name)
                swept.append(root.name)
            with hold_briefly(project, "git", "a sweep"):
                forget_worktree(project, root)
            mark.unlink()
    return swept


def _idle_s(root: Path) -> float:
    """Return the seconds since files were made or removed in a worktree; infinite if it is gone."""
    changed_at = (Path(folder).stat().st_mtime for folder, _, _ in os.walk(root))
    return time.time() - max(changed_at, default=float("-inf"))


def remove_workspace(workspace: Workspace) -> Path | None:
    """Remove a worktree whose results are kept; return the new folder of its report, or None."""
    report = Layout(workspace.root).report
    kept = workspace.project / STATE_DIR / "reports" / workspace.root.name
    if report.exists():
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(report, kept)
        kept.touch()
    with hold_briefly(workspace.project, "git", workspace.owner):
        reports = sorted(kept.parent.glob("*"), key=lambda folder: folder.stat().st_mtime)
        for old in reports[:-KEPT_REPORTS]:
            shutil.rmtree(old, ignore_errors=True)
        run_git(workspace.project, "worktree", "remove", "--force", str(workspace.root))
    keep_worktree(workspace)  # removes the mark
    return kept if report.exists() or kept.exists() else None


def _compose_params(resolved: ResolvedParams, root: Path) -> str | None:
    """Return the experiment's params.yaml, with all configurations that have results in dvc.lock.

    DVC could not apply it with other configurations. None if it would be the run's params.yaml.
    """
    named = parse_yaml(resolved.complete, PARAMS_FILE.name)["pipelines"]
    others = [name for name in named if name not in resolved.params.pipelines]
    lock = root / LOCK_FILE
    # not parsed: the first call of DVC sets a damaged file aside
    locked = lock.read_text(errors="replace").splitlines() if others and lock.is_file() else []
    without = [name for name in others if f"  profile@{name}:" not in locked]
    return drop_pipelines(resolved.complete, without) if len(without) < len(others) else None


def _share_data(project: Path, root: Path, path: Path) -> None:
    """Link untracked data into the worktree, at the path that parameters and results name."""
    note = root / DATA_LINK
    if note.exists():  # remove an earlier run's link, which may be a parent of the present path
        earlier = root / note.read_text(encoding="utf-8")
        if earlier.is_symlink():
            earlier.unlink()
            with suppress(OSError):  # a folder is not empty
                for folder in earlier.relative_to(root).parents[:-1]:
                    (root / folder).rmdir()
        note.unlink()
    link, target = root / path, project / path
    if path.is_absolute() or path.is_relative_to(RAW) or not target.exists():
        return
    if link.is_symlink():
        link.unlink()  # an earlier version made the link without a note
    if not link.exists():
        note.parent.mkdir(exist_ok=True)
        note.write_text(str(path), encoding="utf-8")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)


def _share_cache(project: Path, root: Path) -> None:
    """Link the worktree to the project's cache: DVC's configuration cannot quote every path."""
    from dvc.config import Config  # here, because it takes half a second
    from dvc.exceptions import DvcException

    folder, link = project / ".dvc", root / ".dvc" / "cache"
    try:
        config = Config(str(folder))
        cache: Any = config.get("cache", {})
        local: Any = config.load_one("local")
    except DvcException as error:
        raise WorkspaceProblem(f"DVC's configuration in {folder} cannot be read: {error}") from None
    target = Path(cache.get("dir") or folder / "cache")
    target.mkdir(parents=True, exist_ok=True)
    if link.is_dir() and not link.is_symlink():
        shutil.rmtree(link)
    link.unlink(missing_ok=True)
    link.symlink_to(target, target_is_directory=True)
    with atomic_file(root / ".dvc" / "config.local") as temporary:
        own = {**local["cache"], "dir": "cache"}
        texts = {key: ",".join(one) if isinstance(one, list) else one for key, one in own.items()}
        lines = (f'    {key} = "{text}"\n' for key, text in texts.items())
        temporary.write_text(f"[cache]\n{''.join(lines)}")


def is_saved(workspace: Workspace, name: str) -> bool:
    """Return whether the experiment `name` has exactly the workspace's results and parameters."""
    root, experiment = workspace.root, _experiment(workspace.root, name)
    params = workspace.params or (root / PARAMS_FILE).read_text(encoding="utf-8")
    present = {LOCK_FILE: (root / LOCK_FILE).read_text(encoding="utf-8"), PARAMS_FILE: params}
    with suppress(WorkspaceProblem):  # no experiment, or one without such a file
        return all(
            run_git(root, "show", f"{experiment}:{file}") == text.removesuffix("\n")
            for file, text in present.items()
        )
    return False


def _experiment(root: Path, name: str) -> str:
    """Return the git reference of experiment `name` on the commit that is checked out in `root`."""
    head = run_git(root, "rev-parse", "HEAD")
    return f"refs/exps/{head[:2]}/{head[2:]}/{name}"


def find_experiment(workspace: Workspace, name: str) -> str:
    """Return the git commit of the experiment `name`, or an empty string."""
    with suppress(WorkspaceProblem):
        return run_git(workspace.root, "rev-parse", "--verify", _experiment(workspace.root, name))
    return ""


def save_experiment(workspace: Workspace, name: str) -> str | None:
    """Save an isolated run as the DVC experiment `name`; return why that failed, or None.

    Runs take turns, because saving at once clashes in shared git references.
    """
    # For each stage that ran, by default all, DVC would record the present files, including those
    # added to `data.path` since ingest.
    command = [*DVC, "exp", "save", "--force", "--name", name, LAST_STAGE]
    environment = (
        find_committer(workspace.project) | dvc_environment(workspace.environment) | without_hooks()
    )
    with hold_briefly(workspace.project, "experiments", workspace.owner) as held:
        done = run_supervised(command, workspace.root, environment, (*workspace.lock_fds, held))
        if done.returncode == 0 and workspace.params is not None:
            _replace_params(workspace.root, name, workspace.params)
    return None if done.returncode == 0 else done.stderr.strip()


def _replace_params(root: Path, name: str, params: str) -> None:
    """Replace params.yaml in a worktree's experiment, so that it also has other configurations.

    With these in the worktree, DVC would save results that the run has not made.
    """
    experiment = _experiment(root, name)
    with own_index(root) as own:
        file = Path(own["GIT_INDEX_FILE"]).with_name(PARAMS_FILE.name)
        file.write_text(params, encoding="utf-8")
        content = run_git(root, "hash-object", "-w", "--no-filters", str(file))
        run_git(root, "read-tree", experiment, environment=own)
        entry = f"100644,{content},{PARAMS_FILE}"
        run_git(root, "update-index", "--cacheinfo", entry, environment=own)
        tree = run_git(root, "write-tree", environment=own)
    message = run_git(root, "log", "-1", "--format=%B", experiment)
    commit = ("commit-tree", tree, "-p", f"{experiment}^", "-m", message)
    run_git(root, "update-ref", experiment, run_git(root, *commit, environment=NOBODY))
