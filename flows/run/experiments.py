"""Keeps a run with changes as a DVC experiment on top of the project's current commit."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from flows.run.dvc_calls import DVC, LOCK_FILE, dvc_environment
from flows.run.git_calls import find_committer, own_index, run_git, sign_as_nobody, without_hooks
from flows.run.locks import hold_briefly
from flows.run.processes import run_supervised
from flows.run.workspace import Workspace
from throughline.config.params_file import PARAMS_FILE
from throughline.shared.errors import WorkspaceProblem

LAST_STAGE = "report"


def is_saved(workspace: Workspace, name: str) -> bool:
    """Return whether an experiment `name` has exactly the workspace's results and parameters."""
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
    # DVC commits the stages that it is given, by default all. For each that it has run it would
    # record today's files, including those that came into `data.path` since ingest.
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

    If the worktree's own had them, DVC would save results for them, which the run has not made.
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
    run_git(root, "update-ref", experiment, run_git(root, *commit, environment=sign_as_nobody()))
