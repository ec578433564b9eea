"""Where a run happens: the project itself, or, for a run with overrides, a git worktree of its own beside DVC's shared cache.

The project's params.yaml, dvc.lock and outputs stay untouched by such a run; it is kept as a DVC experiment.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock
from ruamel.yaml import YAML

from tasks.errors import WorkspaceProblem
from tasks.params import PARAMS_FILE, Params, apply_overrides, check, read_document

HOME = ".throughline"
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"  # of a run: it becomes a folder and a git reference


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """A folder in which stages run, the project it belongs to, and whether it is the project itself."""

    root: Path
    project: Path

    @property
    def isolated(self) -> bool:
        """Whether this is a worktree of its own."""
        return self.root != self.project


def open_workspace(project: Path, *, name: str, overrides: list[str], overlays: Sequence[Mapping[str, Any]], only: Sequence[str] = ()) -> Workspace:
    """Return the project itself where nothing is overridden, else a worktree named `name` with the overridden parameters.

    Parameters are checked before anything is created. Uncommitted changes of tracked files are part of the run; untracked
    files are not. An existing worktree of that name is brought up to date and used again. `only`: the configurations that are to be there.

    Raises:
      InvalidParams: all problems of the overridden parameters.
      WorkspaceProblem: the project is no git repository with a commit, or the name could lead out of it.
    """
    check_name(name)
    overridden_params(project, overrides, overlays)
    if not overrides and not overlays:
        return Workspace(root=project, project=project)
    root = project / HOME / "workspaces" / name
    with _lock(project, "git"):
        head = _git(project, "rev-parse", "HEAD")
        # A commit of the uncommitted changes that is on no branch; git says nothing, and fails, where there are none.
        changed = _git(project, "status", "--porcelain", "--untracked-files=no")
        commit = _git(project, "stash", "create") if changed else head
        if root.exists():
            _git(root, "checkout", "--quiet", "--force", "--detach", commit)
        else:
            _git(project, "worktree", "prune")
            _git(project, "worktree", "add", "--quiet", "--detach", str(root), commit)
    _share_cache(project, root)
    _write_params(project, root, overrides, overlays, only)
    return Workspace(root=root, project=project)


def unknown_code(project: Path) -> list[str]:
    """Python files of the project that git does not know, and that a worktree therefore lacks."""
    return _git(project, "ls-files", "--others", "--exclude-standard", "--", "*.py").splitlines()


def check_name(name: str) -> None:
    """Refuse a run's name that is no plain word.

    Raises:
      WorkspaceProblem: it could lead out of the workspaces, or is no git reference.
    """
    if not re.fullmatch(NAME_PATTERN, name):
        raise WorkspaceProblem(f"{name!r} cannot be the name of a run: letters, digits, - and _ only, 64 at most")


def overridden_params(project: Path, overrides: list[str], overlays: Sequence[Mapping[str, Any]]) -> Params:
    """The project's parameters with overlays and overrides applied, in this order, checked.

    Raises:
      InvalidParams: all problems at once.
    """
    return check(overridden(project, overrides, overlays))


def overridden(project: Path, overrides: list[str], overlays: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The project's params.yaml with overlays and overrides applied, in this order, not checked yet."""
    return _laid_over(read_document(project / PARAMS_FILE), overrides, overlays)


def _laid_over(document: dict[str, Any], overrides: list[str], overlays: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    for overlay in overlays:
        merge(document, overlay)
    apply_overrides(document, overrides)
    return document


def save_experiment(workspace: Workspace, name: str) -> str | None:
    """Keep an isolated run as the DVC experiment `name`; returns why it could not be saved, or None.

    Saving is serialised: several at once clash in shared git references.
    """
    with _lock(workspace.project, "experiments"):
        done = subprocess.run(
            [sys.executable, "-m", "dvc", "exp", "save", "--force", "--name", name], cwd=workspace.root, capture_output=True, text=True, check=False
        )
    return None if done.returncode == 0 else done.stderr.strip()


def remove_workspace(workspace: Workspace) -> Path | None:
    """Remove the worktree of a run that has been kept as an experiment; its report, if there is one, stays in .throughline/reports/.

    What the run made is in DVC's cache. Returns where the report is.
    """
    report, kept = workspace.root / "report", workspace.project / HOME / "reports" / workspace.root.name
    if report.exists():
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(report, kept)
    with _lock(workspace.project, "git"):
        _git(workspace.project, "worktree", "remove", "--force", str(workspace.root))
    return kept if report.exists() or kept.exists() else None


def _write_params(project: Path, root: Path, overrides: list[str], overlays: Sequence[Mapping[str, Any]], only: Sequence[str]) -> None:
    """Write the overridden parameters, keeping order and comments; of the configurations `only` those, if any are given.

    Data outside the repository is named absolutely.
    """
    yaml = YAML()
    yaml.width = 160
    document = _laid_over(yaml.load((project / PARAMS_FILE).read_text()), overrides, overlays)
    for other in [key for key in document["pipelines"] if only and key not in only]:
        del document["pipelines"][other]
    source = Path(document["data"]["path"])
    if not source.is_absolute() and (project / source).exists() and not source.is_relative_to("data/raw"):
        document["data"]["path"] = str((project / source).resolve())
    with (root / PARAMS_FILE).open("w") as file:
        yaml.dump(document, file)


def merge(document: dict[str, Any], overlay: Mapping[str, Any]) -> None:
    """Lay nested mappings over a document; everything but mappings is replaced, and so is a mapping that ends in `!`."""
    for key, value in overlay.items():
        if key.endswith("!"):
            document[key.removesuffix("!")] = value
        elif isinstance(value, Mapping) and isinstance(document.get(key), dict):
            merge(document[key], value)
        else:
            document[key] = value


def _share_cache(project: Path, root: Path) -> None:
    cache = subprocess.run([sys.executable, "-m", "dvc", "cache", "dir"], cwd=project, capture_output=True, text=True, check=False).stdout.strip()
    local = root / ".dvc" / "config.local"
    local.write_text(f"[cache]\n    dir = {cache or project / '.dvc' / 'cache'}\n")


def _git(folder: Path, *arguments: str) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        raise WorkspaceProblem(
            f"a run with overrides happens in a git worktree, but `git {' '.join(arguments[:2])}` failed in {folder}: {done.stderr.strip()}"
        )
    return done.stdout.strip()


def _lock(project: Path, name: str) -> FileLock:
    folder = project / HOME
    folder.mkdir(exist_ok=True)
    return FileLock(folder / f"{name}.lock")
