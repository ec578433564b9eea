"""Search for the best configuration: `python -m flows.tuning --ram 8GiB --epochs 30`."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE

from flows.orchestration import cli
from flows.orchestration.artifacts import REPORTED, show_search
from flows.orchestration.flow_run import Run, start_run
from flows.orchestration.stages import PREPARATION, StageEnvironment, run_command
from flows.run.parameters import UNCHANGED, Changes, RunName
from flows.run.resolution import resolve
from throughline.config.params_insert import write_yaml
from throughline.reporting.tuning_table import print_table
from throughline.results.tuning import TUNED, TuningResult
from throughline.shared.errors import StageFailed, Untunable
from throughline.shared.scratch import Scratch
from throughline.tuning.budgets import (
    Budgets,
    read_budgets,
    refuse_large_snapshot,
    refuse_several_hosts,
)

BUDGETS = Budgets()
TUNE = "tune"


@flow(name="tuning", **REPORTED)
def tuning(
    budgets: Budgets = BUDGETS,
    changes: Changes = UNCHANGED,
    name: RunName = "",
    apply: bool = False,
) -> TuningResult:
    """Prepare the data, then search for the configuration that trains in the least time.

    Args:
      budgets: memory, disk and time for the search, and for the training to optimize
      changes: changes to params.yaml for this run only
      name: the name of the run's worktree; if empty, the worktree is named after the flow run and
        removed at the end
      apply: add what is found to params.yaml as `pipelines.tuned`; not possible with `changes`

    Raises:
      Untunable: TF_CONFIG names several workers, or `apply` is set in a run with changes; nothing
        is prepared or searched.
      InvalidBudget: the snapshot would take more disk than is allowed.
    """
    refuse_several_hosts(os.environ)
    if apply and resolve(Path.cwd(), changes).changed:
        raise Untunable(
            "--apply (apply: true) is only for a search without --overlay and --set (changes),"
            " because it edits params.yaml: leave it out; the search then prints the lines of"
            f" `{TUNED}` to add by hand below `pipelines:`"
        )
    with start_run(changes, name) as run:
        run = run.with_progress_bar(len(PREPARATION) + 1)
        *earlier, snapshot = PREPARATION
        sharded = run.chain(earlier)
        if sharded.changed or snapshot in run.stage_env.stale:
            refuse_large_snapshot(run.params, run.workspace.root, budgets)
        run.chain([snapshot], after=[sharded])
        result = search(run, budgets, apply=apply)
        run.cleanup()
    return result


def search(run: Run, budgets: Budgets, *, apply: bool) -> TuningResult:
    """Run the search as a task, and show its result, even if that cannot be applied."""
    out = Scratch(run.workspace.root)
    arguments = [f"--out={out.folder}", *list_options(budgets)]
    arguments += ["--apply"] if apply else []
    try:
        run_search(arguments, run.stage_env)
    except StageFailed:
        if TuningResult.path(out.folder).exists():
            get_run_logger().info(show_result(out.folder).sentence)
        raise
    if run.progress:
        run.progress.advance(TUNE)
    return show_result(out.folder)


def show_result(folder: Path) -> TuningResult:
    result = TuningResult.read(folder)
    show_search(result, folder)
    return result


@task(task_run_name=TUNE, cache_policy=NO_CACHE)
def run_search(arguments: list[str], stage_env: StageEnvironment) -> None:
    """Run `python -m tasks.tune`, which waits for other measurements on this machine."""
    run_command(TUNE, arguments, stage_env)


def list_options(budgets: Budgets) -> list[str]:
    """Return the command-line options that give `tasks.tune` these budgets.

    >>> list_options(Budgets(ram="8GiB", epochs=30, allow=("unordered",)))
    ['--ram=8GiB', '--epochs=30', '--allow=unordered']
    """
    given = budgets.model_dump(exclude_defaults=True)
    allow = [f"--allow={word}" for word in given.pop("allow", ())]
    return [*(f"--{name}={value}" for name, value in given.items()), *allow]


def budget_option(name: str) -> Any:
    return typer.Option(help=str(Budgets.model_fields[name].description))


@cli.with_run_options
def command(  # noqa: PLR0913 - the options of a command line
    options: cli.RunOptions,
    ram: Annotated[str | None, budget_option("ram")] = None,
    disk: Annotated[str | None, budget_option("disk")] = None,
    prepare: Annotated[str | None, budget_option("prepare")] = None,
    epochs: Annotated[int | None, budget_option("epochs")] = None,
    time: Annotated[str | None, budget_option("time")] = None,
    allow: Annotated[list[str] | None, budget_option("allow")] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="add what is found to params.yaml, as pipelines.tuned")
    ] = False,
) -> None:
    """Prepare the data, then search for the configuration that trains in the least time."""
    with cli.flow_command("tuning", [], options) as changes:
        budgets = read_budgets(
            ram=ram, disk=disk, prepare=prepare, epochs=epochs, time=time, allow=allow
        )
        result = tuning(budgets=budgets, changes=changes, name=options.name or "", apply=apply)
        print_table(result)
        if result.outcome == "found":
            typer.echo(write_yaml(TUNED, result.config))
        typer.echo(result.sentence)


if __name__ == "__main__":
    cli.run_command(command)
