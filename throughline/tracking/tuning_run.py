"""A search in MLflow: a parent run with the sentence and the result, and a child for every
candidate that was raced.
"""

from __future__ import annotations

from pathlib import Path

import mlflow
from mlflow.entities import Metric, Param, RunTag

from throughline.results.tuning import TunedCandidate, TuningResult
from throughline.tracking.experiments import RunKey, get_experiment_id
from throughline.tracking.lineage import PARENT_TAG, read_lineage
from throughline.tracking.recorder import LONGEST_PARAM, Recorder
from throughline.tracking.store import name_keys


def record_search(run_key: RunKey, result: TuningResult, folder: Path, *, note: str) -> str | None:
    """Write a search as a run with children; `note` (Markdown) is shown on its first page, and the
    result's file and picture in `folder` are kept with it. Returns the run's id; None where the
    store cannot be reached, which is said in a line.
    """
    with Recorder(run_key) as parent:
        parent.set_tags(
            {
                "headline": result.sentence,
                "outcome": result.outcome,
                "best": result.chosen,
                "mlflow.note.content": note,
            }
        )
        parent.log_params({"epochs": result.epochs, "chosen": result.config})
        parent.log_metrics(
            {
                "tuning/rounds": result.rounds,
                "tuning/searched_s": result.searched_s,
                "tuning/ceiling_examples_per_s": result.ceiling_examples_per_s,
            }
        )
        for path in (TuningResult.path(folder), folder / TuningResult.PICTURE):
            if path.exists():
                parent.log_artifact(path)
        parent.call(lambda: _add_children(run_key, str(parent.run_id), result))
    return parent.run_id if parent.sent else None


def _add_children(run_key: RunKey, parent: str, result: TuningResult) -> None:
    client, experiment = mlflow.MlflowClient(), get_experiment_id(run_key)
    lineage = read_lineage()
    for each in result.candidates:
        if each.examples_per_s is None:
            continue
        tags = {
            PARENT_TAG: parent,
            "pipeline": each.name,
            "family": each.family,
            "dropped": each.dropped,
            **lineage,
        }
        run = client.create_run(experiment, run_name=f"{run_key.pipeline}/{each.name}", tags=tags)
        client.log_batch(
            run.info.run_id,
            metrics=_metrics(each, run.info.start_time),
            params=[
                Param(key, str(value)[:LONGEST_PARAM])
                for key, value in name_keys(each.config).items()
            ],
            tags=[RunTag("chosen", str(each.name == result.chosen).lower())],
        )
        client.set_terminated(run.info.run_id)


def _metrics(each: TunedCandidate, moment: int) -> list[Metric]:
    values = {
        "predicted_examples_per_s": each.predicted_examples_per_s,
        "examples_per_s": each.examples_per_s,
        "seconds": each.seconds,
        "seconds_low": each.seconds_low,
        "seconds_high": each.seconds_high,
        "ram_mib": each.ram_mib,
        "disk_mib": each.disk_mib,
        "prepare_s": each.prepare_s,
    }
    return [
        Metric(f"tuning/{name}", float(value), moment, 0)
        for name, value in values.items()
        if value is not None
    ]
