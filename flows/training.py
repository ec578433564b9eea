"""One configuration through all stages: `python -m flows.training --pipeline NAME`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer
from prefect import flow

from flows.artifacts import report_failure, show_training
from flows.cli import (
    DebugOption,
    NameOption,
    OverlayOption,
    SetOption,
    VerboseOption,
    flow_command,
    run_command,
)
from flows.flow_run import start_run
from flows.parameters import DEFAULT_PIPELINE, UNCHANGED, Changes, Pipeline, RunName
from flows.stages import MEASURED, PREPARATION
from flows.terminal import Detail
from tasks.layout import Layout
from tasks.results.profiling import ProfileResult
from tasks.results.train import TrainResult


@flow(
    name="training",
    log_prints=True,
    on_failure=[report_failure],
    on_crashed=[report_failure],
    on_cancellation=[report_failure],
)
def training(
    pipeline: Pipeline = DEFAULT_PIPELINE, changes: Changes = UNCHANGED, name: RunName = ""
) -> dict[str, Any]:
    """Run one configuration through every stage and return its result.

    Args:
      pipeline: the configuration, a key of `pipelines:` in params.yaml
      changes: what differs from params.yaml in this run only, which then becomes a DVC experiment;
        fields that are left as they are change nothing
      name: of the run's worktree and DVC experiment; empty: the flow run's name, and the worktree
        goes when the run is kept
    """
    with start_run(changes, name, only=[pipeline]) as run:
        # An experiment is complete with the report, which is then about this configuration alone.
        stages = [
            *PREPARATION,
            *(f"{stage}@{pipeline}" for stage in MEASURED),
            *(["report"] if run.workspace.isolated else []),
        ]
        last = run.with_progress_bar(len(stages)).chain(stages)
        folder = Layout(run.workspace.root).results(pipeline)
        trained, profiled = TrainResult.read(folder), ProfileResult.read(folder)
        result = {
            **(asdict(trained.throughput) if trained.throughput else {}),
            **trained.last_epoch,
            **{f"test_{name}": value for name, value in trained.test.items()},
            **asdict(profiled),
        }
        show_training(pipeline, result, folder)
        if last.ran:
            run.save_experiment(stages)
    return result


def command(
    pipeline: Annotated[
        str, typer.Option("--pipeline", help="a key of `pipelines:` in params.yaml")
    ],
    set_: SetOption = None,
    overlay: OverlayOption = None,
    name: NameOption = None,
    verbose: VerboseOption = False,
    debug: DebugOption = False,
) -> None:
    """Run one configuration through all stages."""
    detail = Detail.of(verbose=verbose, debug=debug)
    with flow_command(
        "training", [pipeline], set_=set_, overlay=overlay, name=name, detail=detail
    ) as changes:
        result = training(pipeline=pipeline, changes=changes, name=name or "")
        typer.echo(json.dumps(result, indent=2))


if __name__ == "__main__":
    run_command(command)
