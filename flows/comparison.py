"""Run all configurations through all stages, then report: `python -m flows.comparison`."""

import itertools
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from prefect import flow, get_run_logger

from flows.orchestration import cli
from flows.orchestration.artifacts import REPORTED, link_to_report, show_comparison, to_markdown
from flows.orchestration.flow_run import Run, start_run
from flows.orchestration.stages import OF_EACH, PREPARATION, list_again
from flows.run.parameters import (
    NO_PIPELINES,
    OWN_PIPELINES,
    UNCHANGED,
    Changes,
    Pipeline,
    RunName,
    select_pipelines,
)
from throughline.reporting.comparing import compare_some
from throughline.results.comparison import Comparison
from throughline.shared.errors import InvalidParams
from throughline.shared.layout import Layout, from_here
from throughline.tracking import comparison_run
from throughline.tracking.experiments import RunKey, make_run_key


@dataclass(frozen=True, kw_only=True)
class ComparisonResult:
    """The result of a comparison, and the folder of its report; None if no report was written."""

    compared: Comparison
    report: Path | None


@flow(name="comparison", **REPORTED)
def comparison(
    pipelines: list[Pipeline] = OWN_PIPELINES,
    changes: Changes = UNCHANGED,
    name: RunName = "",
    promote: bool = False,
    measure_again: list[Pipeline] = NO_PIPELINES,
) -> ComparisonResult:
    """Run configurations through every stage and compare them.

    Args:
      pipelines: the configurations; if unchanged or empty, all, including those of a preset. A
        run without changes writes a report only if it has all configurations
      changes: changes to params.yaml for this run only, which then becomes a DVC experiment;
        unchanged fields have no effect
      name: the name of the run's worktree and DVC experiment; if empty, both are named after the
        flow run, and the worktree is removed once the experiment is saved
      promote: let a run with changes choose MLflow's `champion`, as runs without changes do, and
        let it replace a champion that was set by hand; never by a model of worse quality
      measure_again: configurations to race once more although nothing has changed, such as
        undecided ones; all race, and none is trained again
    """
    selected = select_pipelines(list(dict.fromkeys(pipelines)))
    with start_run(changes, name, only=selected) as run:
        chosen = selected or list(run.params.pipelines)
        complete = set(chosen) == set(run.params.pipelines)
        if promote and not complete:
            best = "a champion is the best of all configurations"
            raise InvalidParams([f"promote: {best}; leave out the selection"])
        each = [[f"{stage}@{pipeline}" for stage in OF_EACH] for pipeline in chosen]
        stages = [*PREPARATION, *itertools.chain(*each), "race", *(["report"] if complete else [])]
        run = run.with_progress_bar(len(stages))
        again = list_again(measure_again, chosen)
        run = run.with_forced(again)
        prepared = run.chain(PREPARATION)
        layout, data, window = Layout(run.workspace.root), run.params.data.path, run.params.window
        with run.hold_results():
            run_key = make_run_key(layout.manifest, data, pipeline="comparison", window=window)
        certain = prepared.changed or bool(again) or promote
        with open_parent(run, stages if complete else [], run_key, certain=certain) as parent:
            run = run.with_parent_run(parent)
            finished = run.chain(["race"], after=[run.chain(one, after=[prepared]) for one in each])
            if complete:
                finished = run.chain(["report"], after=[finished])
            run.check_up_to_date(stages, changed=finished.changed)
            with run.hold_results():
                if complete:
                    compared = Comparison.read(layout.report)
                else:
                    compared = compare_some(chosen, layout)
                if parent:
                    unasked = "none" if run.workspace.isolated else "earned"
                    comparison_run.close_comparison(
                        parent,
                        run_key,
                        compared,
                        layout.report,
                        note=to_markdown(compared),
                        promotion="asked for" if promote else unasked,
                    )
        if not complete:
            why = "it compares all configurations of params.yaml, but only some were selected"
            get_run_logger().info(f"skipping report: {why}")
            return ComparisonResult(compared=compared, report=None)
        with run.hold_results():  # the parent run has ended, even if this fails
            show_comparison(compared, layout.report, parent)
        report = run.save_experiment(changed=finished.changed) or layout.report
        link_to_report(report)
        return ComparisonResult(compared=compared, report=report)


def open_parent(
    run: Run, stages: list[str], run_key: RunKey, *, certain: bool
) -> AbstractContextManager[str | None]:
    """Open the comparison's MLflow run, the parent of the configurations' runs.

    Yields None if `stages` is empty. Also yields None if no stage is out of date and MLflow has
    the comparison, unless it is `certain` that the run is needed.
    """
    stale, report = run.stage_env.stale & {*stages}, Layout(run.workspace.root).report
    if not stages:
        return nullcontext()
    if not (certain or stale):
        with run.hold_results():
            if comparison_run.has_comparison(report):
                return nullcontext()
    return comparison_run.open_comparison(run_key, run.name, run.tags)


@cli.with_run_options
def command(
    options: cli.RunOptions,
    pipeline: Annotated[
        list[str] | None, typer.Option("--pipeline", help="only this configuration; repeatable")
    ] = None,
    promote: Annotated[
        bool, typer.Option("--promote", help="let a run with changes choose MLflow's champion, too")
    ] = False,
    measure_again: cli.MeasureAgainOption = None,
) -> None:
    """Run all configurations of params.yaml and write report/index.html, or run some of them."""
    selected = pipeline or []
    with cli.flow_command("comparison", selected, options) as changes:
        result = comparison(
            pipelines=selected,
            changes=changes,
            name=options.name or "",
            promote=promote,
            measure_again=measure_again or [],
        )
        compared = result.compared
        if result.report:
            where = [f"The page about it: {from_here(result.report / 'index.html')}"]
        else:  # a selection of the project's configurations
            where = [f"Their files: {', '.join(str(Layout().results(one)) for one in selected)}"]
        if compared.measure_again:
            undecided = compared.measure_again[0]
            where = [cli.compose_measure_again("comparison", sys.argv[1:], undecided), *where]
        cli.print_comparison(compared, where)


if __name__ == "__main__":
    cli.run_command(command)
