"""What every flow does around its stages: open a workspace, know the stages' order and environment, keep the experiment."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prefect import get_run_logger
from prefect.runtime import flow_run

from flows.command import quiet
from flows.stages import Workplace, run_stage, stale_stages
from flows.workspace import Workspace, open_workspace, save_experiment
from tasks.errors import InvalidParams, nearest
from tasks.evidence import tracking
from tasks.params import PARAMS_FILE, Params, load_params

PREPARATION = ("fetch", "ingest", "shard", "snapshot")
MEASURED = ("build", "train", "profile")


@dataclass(frozen=True, kw_only=True)
class Run:
    """One flow run: its name, where it happens, its checked parameters, and where and how its stages run."""

    name: str
    workspace: Workspace
    params: Params
    place: Workplace

    def below(self, parent: str | None) -> Run:
        """The same run with its configurations' MLflow runs below the run `parent`."""
        if parent is None:
            return self
        environment = {**self.place.environment, tracking.PARENT_RUN: parent}
        return replace(self, place=replace(self.place, environment=environment))

    def chain(self, stages: Sequence[str], *, upstream_ran: bool = False) -> bool:
        """Run stages one after another; once one has run, the later ones ask DVC. Returns whether any ran."""
        ran = upstream_ran
        for stage in stages:
            outcome = run_stage(stage, self.place, upstream_ran=ran, return_state=True)
            ran = bool(outcome.result()) or ran  # raises what the stage raised
        return ran

    def keep(self) -> None:
        """Keep an isolated run as a DVC experiment of its name."""
        if self.workspace.isolated:
            failure = save_experiment(self.workspace, self.name)
            get_run_logger().info(f"kept as DVC experiment {self.name}" if failure is None else f"not kept as an experiment: {failure}")


def begin(*, overrides: list[str] | None, overlay: Mapping[str, Any] | None, name: str | None) -> Run:
    """Open the workspace of the current flow run and ask DVC once what is out of date there."""
    quiet()
    run_name = name or str(flow_run.name)
    workspace = open_workspace(Path.cwd(), name=run_name, overrides=overrides or [], overlay=overlay or {})
    # MLflow's store stays the project's, for the stages and for this process.
    os.environ[tracking.STORE_HOME] = str(workspace.project)
    environment = {tracking.STORE_HOME: str(workspace.project), tracking.FLOW_RUN: str(flow_run.id or "")}
    if workspace.isolated:
        environment["DVC_EXP_NAME"] = run_name
    params = load_params(workspace.root / PARAMS_FILE)
    place = Workplace(workspace.root, stale_stages(workspace.root, environment), environment)
    return Run(name=run_name, workspace=workspace, params=params, place=place)


def known_pipelines(params: Params, names: list[str]) -> list[str]:
    """Return the names if all are configurations.

    Raises:
      InvalidParams: names those that are not, with the nearest that are.
    """
    unknown = [name for name in names if name not in params.pipelines]
    if unknown:
        raise InvalidParams([f"{PARAMS_FILE}: pipelines.{name} does not exist; {nearest(name, list(params.pipelines))}" for name in unknown])
    return names
