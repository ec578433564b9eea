"""Every configuration of params.yaml through all stages, then the report: `python -m flows.comparison`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer
from prefect import flow, get_run_logger
from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact
from prefect.runtime import flow_run

from flows.command import Name, Overlay, Set, quiet, read_overlay
from flows.stages import Workplace, run_stage, stale_stages
from flows.workspace import Workspace, open_workspace, overridden_params, save_experiment
from tasks.errors import InvalidParams, nearest, told_plainly
from tasks.evidence import tracking
from tasks.params import PARAMS_FILE, Params, load_params

PREPARATION = ("fetch", "ingest", "shard", "snapshot")
MEASURED = ("build", "train", "profile")


@flow(name="comparison", log_prints=True)
def comparison(
    pipelines: list[str] | None = None, overrides: list[str] | None = None, overlay: dict[str, Any] | None = None, name: str | None = None
) -> str:
    """Run the given configurations (all, if none are named) through every stage and compare them.

    Returns the headline of the report. With overrides the run has its own worktree and becomes a DVC experiment.
    """
    quiet()
    logger = get_run_logger()
    run_name = name or str(flow_run.name)
    workspace = open_workspace(Path.cwd(), name=run_name, overrides=overrides or [], overlay=overlay or {})
    params = load_params(workspace.root / PARAMS_FILE)
    chosen = known_pipelines(params, pipelines or list(params.pipelines))
    environment = run_environment(workspace, run_name)
    place = Workplace(workspace.root, stale_stages(workspace.root, environment), environment)
    parent = open_parent(params, run_name, place, chosen)
    if parent:
        place = Workplace(workspace.root, place.stale, {**environment, tracking.PARENT_RUN: parent})
    prepared = run_chain(PREPARATION, place)
    ran = [run_chain([f"{stage}@{pipeline}" for stage in MEASURED], place, upstream_ran=prepared) for pipeline in chosen]
    whole = set(chosen) == set(params.pipelines)
    if not whole:
        logger.info("report left out: it compares all configurations of params.yaml, and only some were asked for")
        return f"{len(chosen)} configurations are up to date"
    reported = run_chain(["report"], place, upstream_ran=prepared or any(ran))
    summary = json.loads((workspace.root / "report" / "summary.json").read_text())
    publish(summary, workspace)
    if parent:
        tracking.close_comparison(parent, params.data.source, summary, workspace.root / "report")
    if workspace.isolated and (prepared or any(ran) or reported):
        failure = save_experiment(workspace, run_name)
        logger.info(f"kept as DVC experiment {run_name}" if failure is None else f"not kept as an experiment: {failure}")
    return summary["headline"]


def known_pipelines(params: Params, names: list[str]) -> list[str]:
    """Return the names if all are configurations.

    Raises:
      InvalidParams: names those that are not, with the nearest that are.
    """
    unknown = [name for name in names if name not in params.pipelines]
    if unknown:
        raise InvalidParams([f"{PARAMS_FILE}: pipelines.{name} does not exist; {nearest(name, list(params.pipelines))}" for name in unknown])
    return names


def run_chain(stages: list[str] | tuple[str, ...], place: Workplace, *, upstream_ran: bool = False) -> bool:
    """Run stages one after another; once one has run, the later ones ask DVC. Returns whether any ran."""
    ran = upstream_ran
    for stage in stages:
        ran = bool(run_stage(stage, place, upstream_ran=ran)) or ran
    return ran


def open_parent(params: Params, run_name: str, place: Workplace, chosen: list[str]) -> str | None:
    """Open the MLflow run that the configurations' runs belong to, unless everything is up to date."""
    concerned = {*PREPARATION, "report", *(f"{stage}@{pipeline}" for stage in MEASURED for pipeline in chosen)}
    return tracking.open_comparison(params.data.source, run_name) if concerned & place.stale else None


def run_environment(workspace: Workspace, run_name: str) -> dict[str, str]:
    """What stages need to know of the run they are part of; MLflow's store stays the project's."""
    environment = {tracking.STORE_HOME: str(workspace.project), tracking.FLOW_RUN: str(flow_run.id or "")}
    if workspace.isolated:
        environment["DVC_EXP_NAME"] = run_name
    os.environ[tracking.STORE_HOME] = str(workspace.project)
    return environment


def publish(summary: dict[str, Any], workspace: Workspace) -> None:
    """Show the comparison in Prefect: a table, the same in words, and where the page is."""
    shown = (
        "pipeline",
        "train_examples_per_s",
        "input_examples_per_s",
        "model_examples_per_s",
        "speedup_vs_naive",
        "stall_pct",
        "val_accuracy",
        "verdict",
    )
    table = [{column: _rounded(row[column]) for column in shown} for row in summary["configurations"]]
    create_table_artifact(key="comparison", table=table, description=summary["headline"])
    lines = ["| " + " | ".join(shown) + " |", "|" + "---|" * len(shown)]
    lines += ["| " + " | ".join(str(value) for value in row.values()) + " |" for row in table]
    fixes = [f"- **{row['pipeline']}** ({row['verdict']}): {row['cause']}. Fix: `{row['fix']}`" for row in summary["configurations"]]
    create_markdown_artifact(
        key="comparison-report", markdown="\n".join([f"# {summary['headline']}", "", *lines, "", "## Cause and fix", "", *fixes])
    )
    create_link_artifact(key="comparison-page", link=(workspace.root / "report" / "index.html").resolve().as_uri(), link_text="report/index.html")


def _rounded(value: object) -> object:
    return round(value, 4 if abs(value) < 10 else 1) if isinstance(value, float) else value  # noqa: PLR2004


def command(
    pipeline: Annotated[list[str] | None, typer.Option("--pipeline", help="only this configuration; repeatable")] = None,
    set_: Set = None,
    overlay: Overlay = None,
    name: Name = None,
) -> None:
    """Run every configuration of params.yaml (or those given) through all stages, then write report/index.html."""
    quiet()
    with told_plainly():
        layer = read_overlay(overlay)
        known_pipelines(overridden_params(Path.cwd(), set_ or [], layer), pipeline or [])
        headline = comparison(pipelines=pipeline, overrides=set_, overlay=layer, name=name)
        typer.echo(headline)


if __name__ == "__main__":
    typer.run(command)
