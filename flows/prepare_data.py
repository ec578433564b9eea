"""The data alone, up to the snapshot: `python -m flows.prepare_data --set data.path=my/photos`."""

from __future__ import annotations

from pathlib import Path

import typer
from prefect import flow

from flows.access import joined
from flows.artifacts import tell_failure
from flows.cli import Name, Overlay, Set, asked, quiet
from flows.flow_run import PREPARATION, begin
from flows.parameters import UNCHANGED, Changes, RunName
from flows.temporary_server import prefect_server
from tasks.errors import told_plainly


@flow(name="ingest-and-shard", log_prints=True, on_failure=[tell_failure], on_crashed=[tell_failure], on_cancellation=[tell_failure])
def ingest_and_shard(changes: Changes = UNCHANGED, name: RunName = None) -> bool:
    """Fetch, ingest, shard and snapshot, so that later runs find the data in DVC's cache; returns whether anything had to be done.

    Args:
      changes: what differs from params.yaml in this run only; without a configuration's results it is no experiment
      name: of the run's worktree; empty: the flow run's name, and the worktree goes at the end
    """
    with begin(changes, name) as run:
        ran = run.showing(len(PREPARATION)).chain(PREPARATION)
        run.leave()
    return ran


def command(set_: Set = None, overlay: Overlay = None, name: Name = None) -> None:
    """Bring the data up to date: fetch, ingest, shard, snapshot."""
    quiet()
    with told_plainly(), joined(Path.cwd()):
        changes = asked(set_, overlay, name)
        with prefect_server():
            ingest_and_shard(changes=changes, name=name)


if __name__ == "__main__":
    typer.run(command)
