"""One configuration through all stages: `python -m flows.training --pipeline NAME --set KEY=VALUE`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from prefect import flow
from prefect.artifacts import create_table_artifact

from flows.command import Name, Overlay, Set, quiet, read_overlay
from flows.run import MEASURED, PREPARATION, begin, known_pipelines
from flows.workspace import overridden_params
from tasks.errors import told_plainly


@flow(name="training", log_prints=True)
def training(pipeline: str, overrides: list[str] | None = None, overlay: dict[str, Any] | None = None, name: str | None = None) -> dict[str, Any]:
    """Run one configuration through every stage and return its result. With overrides it becomes a DVC experiment."""
    run = begin(overrides=overrides, overlay=overlay, name=name)
    known_pipelines(run.params, [pipeline])
    ran = run.chain([*PREPARATION, *(f"{stage}@{pipeline}" for stage in MEASURED)])
    folder = run.workspace.root / "runs" / pipeline
    trained, profiled = (json.loads((folder / file).read_text()) for file in ("train.json", "profile.json"))
    test = {f"test_{key}": value for key, value in trained.get("test", {}).items()}
    result = {**trained["throughput"], **trained["train"], **test, **profiled}
    create_table_artifact(key="training", table=[{"pipeline": pipeline, **result}], description=f"{pipeline}: {profiled['verdict']}")
    if ran:
        run.keep()
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
