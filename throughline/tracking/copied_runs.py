"""Copies of MLflow runs, for configurations that were trained for another comparison or run.

The copy is shown and added to here; the original stays as it is.
"""

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
from throughline.tracking.store import STORE_ERRORS, search_runs, use_store

REUSED_TAG = "reused_run_id"  # the id of the original


def copy_run(run: Run, name: str, tags: Mapping[str, str]) -> str:
    """Copy a run, without artifacts but with these `tags`; return the id of the (running) copy."""
    client, moment = mlflow.MlflowClient(), time.time_ns() // 1_000_000
    kept = {
        key: value
        for key, value in run.data.tags.items()
        if not key.startswith("mlflow.") and key != UNSENT_TAG  # it names the original
    }
    all_tags = {**kept, **tags, REUSED_TAG: run.info.run_id}
    copy = client.create_run(run.info.experiment_id, run_name=name, tags=all_tags).info.run_id
    client.log_batch(  # in few requests
        copy,
        [Metric(key, value, moment, 0) for key, value in run.data.metrics.items()],
        [Param(key, value) for key, value in run.data.params.items()],
    )
    return copy


def find_copy(run: Run, tags: Mapping[str, str | None]) -> str | None:
    """Return the id of a run's copy with these tags, or None; a tag of None must be absent."""
    for copy in search_runs(f"tags.{REUSED_TAG} = '{run.info.run_id}'"):
        if all(copy.data.tags.get(key) == value for key, value in tags.items()):
            return copy.info.run_id
    return None


def record_measurement(run_key: RunKey, run_id: str | None, unsent: str | None) -> Recorder:
    """Make a recorder that adds measurements to the run of a training, whose tags stay.

    The training is given by the id of its run, or by the tag of a run that was kept for later. A
    run with changes that did not train it adds to a copy under its own name, if the store answers.
    """
    name = os.environ.get(EXPERIMENT)
    if name:
        with suppress(*STORE_ERRORS, UserError):
            use_store()
            trained = find_run(find_sent(unsent) if unsent else run_id)
            if trained and trained.data.tags.get(EXPERIMENT_TAG) != name:
                tags = read_lineage() | read_parent()
                same = {tag: tags.get(tag) for tag in (EXPERIMENT_TAG, PARENT_TAG)}
                copy = find_copy(trained, same)
                run_id = copy or copy_run(trained, f"{name}/{run_key.pipeline}", tags)
                unsent = None
    return Recorder(run_key, run_id=run_id, follows=unsent, tags={})
