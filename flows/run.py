"""What every flow does around its stages: open a workspace, know the stages' order and environment, keep the experiment."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from prefect import get_run_logger
from prefect.runtime import deployment, flow_run

from flows.artifacts import Progress
from flows.command import known_pipelines, quiet
from flows.form import Changes
from flows.reach import check_reach
from flows.stages import Workplace, run_stage, stale_stages
from flows.workspace import Workspace, open_workspace, overridden, remove_workspace, save_experiment, unknown_code
from tasks.errors import WorkspaceProblem
from tasks.evidence import tracking
from tasks.params import PARAMS_FILE, Params, check, load_params, read_document

PREPARATION = ("fetch", "ingest", "shard", "snapshot")


@dataclass(frozen=True, kw_only=True)
class Run:
    """One flow run: its name, where it happens, its checked parameters, and where and how its stages run."""

    name: str
    workspace: Workspace
    params: Params
    place: Workplace
    progress: Progress | None = None
    passing: bool  # nobody gave it a name to come back to, so its worktree goes when it is kept as an experiment

    def below(self, parent: str | None) -> Run:
        """The same run with its configurations' MLflow runs below the run `parent`."""
        if parent is None:
            return self
        environment = {**self.place.environment, tracking.PARENT_RUN: parent}
        return replace(self, place=replace(self.place, environment=environment))

    def showing(self, stages: int) -> Run:
        """The same run with a bar on its page that is full after so many stages."""
        return replace(self, progress=Progress(stages))

    def chain(self, stages: Sequence[str], *, upstream_ran: bool = False) -> bool:
        """Run stages one after another; once one has run, the later ones ask DVC. Returns whether any ran."""
        ran = upstream_ran
        for stage in stages:
            outcome = run_stage(stage, self.place, upstream_ran=ran, return_state=True)
            ran = bool(outcome.result()) or ran  # raises what the stage raised
            if self.progress:
                self.progress.advance(stage)
        return ran

    def keep(self, stages: Sequence[str]) -> Path | None:
        """Keep an isolated run as a DVC experiment of its name; a run that nobody named leaves nothing else behind but its report.

        `stages` are those it was to bring up to date. Returns where the report has moved to, if it has.

        Raises:
          WorkspaceProblem: something in the worktree is out of date, so that dvc.lock would tell an untruth; nothing is saved.
        """
        if not self.workspace.isolated:
            return None
        stale = stale_stages(self.workspace.root, self.place.environment) & set(stages)
        if stale:
            raise WorkspaceProblem(f"{self.name} is not kept as an experiment, since {', '.join(sorted(stale))} would not be what dvc.lock says")
        failure = save_experiment(self.workspace, self.name)
        if failure is not None:
            raise WorkspaceProblem(f"{self.name} could not be kept as an experiment: {failure}; its worktree {self.workspace.root} stays")
        get_run_logger().info(f"kept as DVC experiment {self.name}: `dvc exp show`, `dvc exp apply {self.name}`")
        return self.leave()

    def leave(self) -> Path | None:
        """Remove the worktree of a run that nobody named. Returns where the report has moved to, if it has."""
        return remove_workspace(self.workspace) if self.workspace.isolated and self.passing else None


def begin(changes: Changes, name: str | None, *, only: Sequence[str] = ()) -> Run:
    """Open the workspace of the current flow run and ask DVC once what is out of date there.

    `only` are the configurations that the run is about; none: all. In a workspace of its own there are no others, since an
    experiment would hold results for them that nobody has made.

    Raises:
      InvalidParams: a changed parameter is wrong, a configuration does not exist, or a run from the UI reaches out of the project.
    """
    quiet()
    project, overlays, overrides = Path.cwd(), changes.overlays(), changes.settings()
    document = overridden(project, overrides, overlays)
    asked = check(document)
    chosen = known_pipelines(asked, list(only))
    if deployment.id:
        check_reach(document, read_document(project / PARAMS_FILE), project)
    run_name = name or str(flow_run.name)
    workspace = open_workspace(project, name=run_name, overrides=overrides, overlays=overlays, only=chosen)
    # MLflow's store stays the project's, for the stages and for this process.
    os.environ[tracking.STORE_HOME] = str(workspace.project)
    environment = {tracking.STORE_HOME: str(workspace.project), tracking.FLOW_RUN: str(flow_run.id or "")}
    if workspace.isolated:
        environment["DVC_EXP_NAME"] = run_name
        if unknown := unknown_code(project):
            get_run_logger().warning(f"this run has a git worktree of its own, which lacks what git does not know: `git add {' '.join(unknown)}`")
    params = load_params(workspace.root / PARAMS_FILE)
    place = Workplace(workspace.root, stale_stages(workspace.root, environment), environment)
    return Run(name=run_name, workspace=workspace, params=params, place=place, passing=name is None)
