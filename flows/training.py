"""One configuration through all stages: `python -m flows.training --pipeline NAME --set KEY=VALUE`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from prefect import flow, get_run_logger
from prefect.artifacts import create_table_artifact
from prefect.runtime import flow_run

from flows.command import Name, Overlay, Set, quiet, read_overlay
from flows.comparison import MEASURED, PREPARATION, known_pipelines, run_chain, run_environment
from flows.stages import Workplace, stale_stages
from flows.workspace import open_workspace, overridden_params, save_experiment
from tasks.errors import told_plainly
from tasks.params import PARAMS_FILE, load_params


@flow(name="training", log_prints=True)
def training(pipeline: str, overrides: list[str] | None = None, overlay: dict[str, Any] | None = None, name: str | None = None) -> dict[str, Any]:
    """Run one configuration through every stage and return its result. With overrides it becomes a DVC experiment."""
    quiet()
    logger = get_run_logger()
    run_name = name or str(flow_run.name)
    workspace = open_workspace(Path.cwd(), name=run_name, overrides=overrides or [], overlay=overlay or {})
    params = load_params(workspace.root / PARAMS_FILE)
    known_pipelines(params, [pipeline])
    environment = run_environment(workspace, run_name)
    place = Workplace(workspace.root, stale_stages(workspace.root, environment), environment)
    ran = run_chain([*PREPARATION, *(f"{stage}@{pipeline}" for stage in MEASURED)], place)
    folder = workspace.root / "runs" / pipeline
    trained, profiled = (json.loads((folder / name).read_text()) for name in ("train.json", "profile.json"))
    result = {**trained["throughput"], **trained["train"], **{f"test_{key}": value for key, value in trained.get("test", {}).items()}, **profiled}
    create_table_artifact(key="training", table=[{"pipeline": pipeline, **result}], description=f"{pipeline}: {profiled['verdict']}")
    if workspace.isolated and ran:
        failure = save_experiment(workspace, run_name)
        logger.info(f"kept as DVC experiment {run_name}" if failure is None else f"not kept as an experiment: {failure}")
    return result


def command(
    pipeline: Annotated[str, typer.Option("--pipeline", help="a key of `pipelines:` in params.yaml")],
    set_: Set = None,
    overlay: Overlay = None,
    name: Name = None,
) -> None:
    """Run one configuration through all stages."""
    quiet()
    with told_plainly():
        layer = read_overlay(overlay)
        known_pipelines(overridden_params(Path.cwd(), set_ or [], layer), [pipeline])
        result = training(pipeline=pipeline, overrides=set_, overlay=layer, name=name)
        typer.echo(json.dumps(result, indent=2))


if __name__ == "__main__":
    typer.run(command)
