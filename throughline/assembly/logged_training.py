"""Adds to the MLflow run of a configuration's training after the training has ended."""

from throughline.config.params import Params
from throughline.results.build import PlanSummary
from throughline.results.train import RunRecord
from throughline.shared.layout import Layout
from throughline.shared.progress import echo
from throughline.tracking.comparison_run import record_measurement
from throughline.tracking.experiments import make_run_key
from throughline.tracking.recorder import Recorder, is_gone
from throughline.tracking.store import show_address


def find_recorder(params: Params, layout: Layout, name: str, *, what: str) -> Recorder | None:
    """Return a recorder that adds `what` to the MLflow run of a training; None without a run.

    Prints a message if MLflow has lost the run. If a run with changes has not trained this
    configuration, the recorder adds to a copy of the training's MLflow run.
    """
    folder = layout.results(name)
    run = RunRecord.read(folder)
    if run.mlflow_run_id is None and run.unsent is None:
        return None
    run_key = make_run_key(
        layout.manifest,
        params.data.path,
        pipeline=name,
        window=params.window,
        data_digest=PlanSummary.read(folder).data_digest,
    )
    if is_gone(run.mlflow_run_id, run.unsent):
        echo(f"MLflow at {show_address()} has no run of {name}; {what} is not logged")
        return None
    return record_measurement(run_key, run.mlflow_run_id, run.unsent)
