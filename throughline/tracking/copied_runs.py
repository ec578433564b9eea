"""Copies of runs: a configuration that was trained elsewhere, for another comparison or run with
changes, has a run of its own where it is shown or measured again, and that of its training stays
as it is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress

import mlflow
from mlflow.entities import Metric, Param, Run

from throughline.shared.errors import UserError
from throughline.tracking.experiments import RunKey
from throughline.tracking.lineage import (
    EXPERIMENT,
    EXPERIMENT_TAG,
    PARENT_TAG,
    read_lineage,
    read_parent,
)
from throughline.tracking.recorder import UNSENT_TAG, Recorder, find_run, find_sent
from throughline.tracking.store import STORE_ERRORS, use_store

REUSED_TAG = "reused_run_id"  # the run that a copy is of


def copy_run(run: Run, name: str, tags: Mapping[str, str]) -> str:
    """Make a run with the parameters, metrics and tags of another one, but for these `tags`, which
    is still to be ended; returns its id.
    """
    client, moment = mlflow.MlflowClient(), time.time_ns() // 1_000_000
    kept = {
        key: value
        for key, value in run.data.tags.items()
        if not key.startswith("mlflow.") and key != UNSENT_TAG  # that names the run itself
    }
    copy = client.create_run(
        run.info.experiment_id,
        run_name=name,
        tags={**kept, **tags, REUSED_TAG: run.info.run_id},
    ).info.run_id
    client.log_batch(  # in few requests
        copy,
        [Metric(key, value, moment, 0) for key, value in run.data.metrics.items()],
        [Param(key, value) for key, value in run.data.params.items()],
    )
    return copy


def find_copy(run: Run, tags: Mapping[str, str | None]) -> str | None:
    """The id of the copy of a run that has these tags, and of None no such tag; None where there is
    no such copy.
    """
    copies = mlflow.search_runs(
        [run.info.experiment_id],
        f"tags.{REUSED_TAG} = '{run.info.run_id}'",
        output_format="list",
    )
    return next(
        (
            copy.info.run_id
            for copy in copies
            if all(copy.data.tags.get(key) == value for key, value in tags.items())
        ),
        None,
    )


def record_measurement(run_key: RunKey, run_id: str | None, unsent: str | None) -> Recorder:
    """A recorder of what is measured of a training, by the id of its run, or the tag of one that
    was kept for later: it adds to that run, whose tags stay what they are.

    In a run with changes that has not trained it, it adds to a copy of that run under its own name.
    Where the store does not say so now, to the run itself.
    """
    name = os.environ.get(EXPERIMENT)
    if name:
        with suppress(*STORE_ERRORS, UserError):
            use_store()
            trained = find_run(find_sent(run_key, unsent) if unsent else run_id)
            if trained and trained.data.tags.get(EXPERIMENT_TAG) != name:
                run_id, unsent = _copy_for(trained, f"{name}/{run_key.pipeline}"), None
    return Recorder(run_key, run_id=run_id, follows=unsent, tags={})


def _copy_for(run: Run, name: str) -> str:
    """The copy of a run for the comparison and the run with changes that are at work now."""
    tags = read_lineage() | read_parent()
    same = {tag: tags.get(tag) for tag in (EXPERIMENT_TAG, PARENT_TAG)}
    return find_copy(run, same) or copy_run(run, name, tags)
