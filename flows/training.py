"""Run one configuration through all stages: `python -m flows.training --pipeline NAME`."""

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from prefect import flow

from flows.orchestration import cli
from flows.orchestration.artifacts import REPORTED, show_training
from flows.orchestration.flow_run import start_run
from flows.orchestration.stages import OF_EACH, PREPARATION, list_again
from flows.run.parameters import (
    DEFAULT_PIPELINE,
    NO_PIPELINES,
    UNCHANGED,
    Changes,
    Pipeline,
    RunName,
)
from flows.run.workspace import keep_worktree
from throughline.reporting.comparing import compare_some
from throughline.results.comparison import Comparison
from throughline.results.race import RaceResult
from throughline.results.train import TrainResult
from throughline.shared.errors import InvalidParams
from throughline.shared.files import dump_json
from throughline.shared.layout import Layout, from_here
from whowaits.timing.verdict import COMPUTE_BOUND, UNDECIDED


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """A training's figures by name, its verdict if it was measured, the folder of its files, and
    the folder of its report, which only a measured run with changes has.
    """

    figures: Mapping[str, Any]
    compared: Comparison | None
    folder: Path
    report: Path | None


@flow(name="training", **REPORTED)
def training(
    pipeline: Pipeline = DEFAULT_PIPELINE,
    changes: Changes = UNCHANGED,
    name: RunName = "",
    measure_again: list[Pipeline] = NO_PIPELINES,
    measure: bool = True,
) -> TrainingResult:
    """Run one configuration through every stage and return its result.

    Args:
      pipeline: the configuration, a key of `pipelines:` in params.yaml
      changes: changes to params.yaml for this run only, which then becomes a DVC experiment;
        unchanged fields have no effect
      name: the name of the run's worktree and DVC experiment; if empty, both are named after the
        flow run, and the worktree is removed once the experiment is saved
      measure_again: the configuration, to race it once more although nothing has changed; it is not
        trained again
      measure: measure where time goes; otherwise the run ends after the training, does not wait for
        runs that measure, and does not become an experiment yet
    """
    if measure_again and not measure:
        raise InvalidParams(["--measure-again and --no-measure are both given; leave one out"])
    with start_run(changes, name, only=[pipeline], measures=measure) as run:
        run = run.with_forced(list_again(measure_again, [pipeline]))
        each = OF_EACH if measure else [stage for stage in OF_EACH if stage != "profile"]
        # An experiment is complete with the report, which here is about this configuration only.
        stages = [
            *PREPARATION,
            *(f"{stage}@{pipeline}" for stage in each),
            *(["race"] if measure else []),
            *(["report"] if measure and run.workspace.isolated else []),
        ]
        last = run.with_progress_bar(len(stages)).chain(stages)
        run.check_up_to_date(stages, changed=last.changed, saves=measure)
        layout = Layout(run.workspace.root)
        folder = layout.results(pipeline)
        with run.hold_results():
            compared = compare_some([pipeline], layout) if measure else None
            trained, raced = TrainResult.read(folder), {}
            if measure:
                raced = RaceResult.read(layout.race).configurations[pipeline].figures
            figures = {
                **(asdict(trained.throughput) if trained.throughput else {}),
                **trained.last_epoch,
                **{f"test_{name}": value for name, value in trained.test.items()},
                **raced,
            }
            show_training(pipeline, figures, folder, compared)
        report = None
        if not measure:
            keep_worktree(run.workspace)
        elif run.workspace.isolated:
            report = run.save_experiment(changed=last.changed) or layout.report
    return TrainingResult(figures=figures, compared=compared, folder=folder, report=report)


@cli.with_run_options
def command(
    options: cli.RunOptions,
    pipeline: Annotated[
        str, typer.Option("--pipeline", help="a key of `pipelines:` in params.yaml")
    ],
    measure_again: cli.MeasureAgainOption = None,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure/--no-measure",
            help="measure where time goes; or only train, without waiting for other runs",
        ),
    ] = True,
    json: Annotated[
        bool, typer.Option(help="print the result as JSON on standard output, for scripts")
    ] = False,
) -> None:
    """Run one configuration through all stages."""
    with cli.flow_command("training", [pipeline], options) as changes:
        result = training(
            pipeline=pipeline,
            changes=changes,
            name=options.name or "",
            measure_again=measure_again or [],
            measure=measure,
        )
        if json:
            typer.echo(dump_json({**result.figures}))
        elif not result.compared:
            typer.echo(
                f"\n`{pipeline}` is trained, not measured. Its files: {from_here(result.folder)}\n"
                "The same command without --no-measure measures it, and keeps a run with changes as"
                " a DVC experiment."
            )
        else:
            (row,) = result.compared.configurations
            decided = row.verdict not in (COMPUTE_BOUND, UNDECIDED)
            gain = f" ({row.gain:.2f}× as fast, tried)" if row.gain else ""
            advice = "To change first" if row.gain else "What helps"
            where = [f"{advice}: {row.fix}{gain}"] if decided else []
            if row.verdict == UNDECIDED:
                where += [cli.compose_measure_again("training", sys.argv[1:], pipeline)]
            where += [
                f"The page about it: {from_here(result.report / 'index.html')}"
                if result.report
                else f"Its files: {from_here(result.folder)}"
            ]
            cli.print_comparison(result.compared, where)


if __name__ == "__main__":
    cli.run_command(command)
