"""The data alone, up to the snapshot: `python -m flows.prepare_data --set data.path=my/photos`."""

from __future__ import annotations

from prefect import flow

from flows.orchestration.artifacts import report_failure
from flows.orchestration.cli import (
    DebugOption,
    NameOption,
    OverlayOption,
    RunOptions,
    SetOption,
    ShowOption,
    VerboseOption,
    flow_command,
    run_command,
)
from flows.orchestration.flow_run import start_run
from flows.orchestration.stages import PREPARATION
from flows.orchestration.terminal import Detail
from flows.run.parameters import UNCHANGED, Changes, RunName


@flow(
    name="prepare-data",
    log_prints=True,
    on_failure=[report_failure],
    on_crashed=[report_failure],
    on_cancellation=[report_failure],
)
def prepare_data(changes: Changes = UNCHANGED, name: RunName = "") -> bool:
    """Fetch, ingest, shard and snapshot, so that later runs find the data in DVC's cache; returns
    whether anything had to be done.

    Args:
      changes: what differs from params.yaml in this run only; without a configuration's results it
        is no experiment
      name: of the run's worktree; empty: the flow run's name, and the worktree goes at the end
    """
    with start_run(changes, name) as run:
        last = run.with_progress_bar(len(PREPARATION)).chain(PREPARATION)
        run.cleanup()
    return last.ran


def command(
    set_: SetOption = None,
    overlay: OverlayOption = None,
    show: ShowOption = False,
    name: NameOption = None,
    verbose: VerboseOption = False,
    debug: DebugOption = False,
) -> None:
    """Bring the data up to date: fetch, ingest, shard, snapshot."""
    detail = Detail.of(verbose=verbose, debug=debug)
    with flow_command(
        "prepare-data",
        [],
        RunOptions(set_=set_, overlay=overlay, name=name, detail=detail, show=show),
    ) as changes:
        prepare_data(changes=changes, name=name or "")


if __name__ == "__main__":
    run_command(command)
