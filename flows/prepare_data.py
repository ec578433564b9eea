"""Prepare the data up to the snapshot: `python -m flows.prepare_data --set data.path=my/photos`."""

from prefect import flow

from flows.orchestration import cli
from flows.orchestration.artifacts import REPORTED
from flows.orchestration.flow_run import start_run
from flows.orchestration.stages import PREPARATION
from flows.run.parameters import UNCHANGED, Changes, RunName


@flow(name="prepare-data", **REPORTED)
def prepare_data(changes: Changes = UNCHANGED, name: RunName = "") -> bool:
    """Run fetch, ingest, shard and snapshot; later runs find the data in DVC's cache.

    Args:
      changes: changes to params.yaml for this run only; it does not become a DVC experiment,
        because no configuration is trained
      name: the name of the run's worktree; if empty, the worktree is named after the flow run and
        removed at the end

    Returns:
      Whether any of the stages was out of date.
    """
    with start_run(changes, name) as run:
        last = run.with_progress_bar(len(PREPARATION)).chain(PREPARATION)
        run.cleanup()
    return last.changed


@cli.with_run_options
def command(options: cli.RunOptions) -> None:
    """Bring the data up to date: fetch, ingest, shard, snapshot."""
    with cli.flow_command("prepare-data", [], options) as changes:
        prepare_data(changes=changes, name=options.name or "")


if __name__ == "__main__":
    cli.run_command(command)
