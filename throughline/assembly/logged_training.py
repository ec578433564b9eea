"""Adds to the MLflow run of a configuration's training after the training has ended."""

from collections.abc import Iterator
from contextlib import contextmanager

from throughline.config.params import Params
from throughline.results.train import RunRecord
from throughline.shared.layout import Layout
from throughline.shared.progress import echo
from throughline.tracking.comparison_run import record_measurement
from throughline.tracking.experiments import make_run_key
from throughline.tracking.recorder import Recorder, is_gone
from throughline.tracking.store import show_address


@contextmanager
def add_to_training(
    params: Params, layout: Layout, name: str, *, data_digest: str, what: str
) -> Iterator[Recorder | None]:
    """Open the MLflow run of a configuration's training, to add `what` to it; None without one.

    A run that MLflow has lost is named. If a run with changes has not trained this configuration,
    a copy of the MLflow run is opened.
    """
    run = RunRecord.read(layout.results(name))
    run_key = make_run_key(
        layout.manifest,
        params.data.path,
        pipeline=name,
        window=params.window,
        data_digest=data_digest,
    )
    if run.mlflow_run_id is None and run.unsent is None:
        yield None
    elif is_gone(run.mlflow_run_id, run.unsent):
        echo(f"MLflow at {show_address()} has no run of {name}; {what} is not logged")
        yield None
    else:
        with record_measurement(run_key, run.mlflow_run_id, run.unsent) as recorder:
            yield recorder
