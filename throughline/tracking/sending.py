"""Sends each kind of recorder call to MLflow's active run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
from mlflow.entities import LoggedModel, LoggedModelStatus, Metric, Param, Run
from mlflow.exceptions import MlflowException
from mlflow.models import ModelSignature
from mlflow.types import Schema, TensorSpec

from throughline.shared.progress import echo
from throughline.tracking.lineage import PARENT_TAG
from throughline.tracking.store import is_refusal, name_keys, reason

LONGEST_PARAM = 6000


def list_models(run: Run) -> list[LoggedModel]:
    logged = mlflow.MlflowClient().search_logged_models(
        [run.info.experiment_id], filter_string=f"source_run_id = '{run.info.run_id}'"
    )
    return [one for one in logged if one.status == LoggedModelStatus.READY]


def _send_model(path: str, objects: Mapping[str, str] | None = None) -> None:
    if not Path(path).exists():
        echo(f"{path} is gone and was left out")
        return
    import keras
    import tensorflow as tf

    from throughline.models.inference import describe_outputs
    from throughline.models.model_files import code_paths, imported, load_model

    try:
        own = imported(objects or {})
        model: Any = load_model(Path(path), objects or {})
    except Exception as error:  # noqa: BLE001 - user-defined layers make Keras raise anything
        echo(
            f"  MLflow gets the file of the model, not a model that it can serve ({reason(error)})"
        )
        mlflow.log_artifact(path)
        return
    several = len(model.inputs) > 1
    inputs = [
        TensorSpec(
            np.dtype(one.dtype),
            tuple(-1 if size is None else size for size in one.shape),
            name=one.name if several else None,
        )
        for one in model.inputs
    ]
    outputs = TensorSpec(np.dtype("float32"), (-1, *model.output_shape[1:]))
    signature = ModelSignature(inputs=Schema([*inputs]), outputs=Schema([outputs]))
    needs = [f"tensorflow=={tf.__version__}", f"keras=={keras.__version__}"]
    if own:
        needs.append(f"cloudpickle=={version('cloudpickle')}")
    mlflow.tensorflow.log_model(
        model,
        name="model",
        metadata=describe_outputs(Path(path)),
        signature=signature,
        pip_requirements=needs,
        custom_objects=own or None,
        code_paths=code_paths(objects or {}) or None,
    )


def _send_artifact(path: str, folder: str | None) -> None:
    if not Path(path).exists():
        echo(f"{path} is gone and was left out")
    elif Path(path).is_dir():
        mlflow.log_artifacts(path, folder)
    else:
        mlflow.log_artifact(path, folder)


def _send_children(children: Mapping[str, Mapping[str, Any]]) -> None:
    """Add the children that the active run lacks; raises the first refusal at the end."""
    client, parent = mlflow.MlflowClient(), mlflow.active_run()
    if parent is None:
        raise MlflowException("no run is active that children could be added to")
    run_id, experiment = parent.info.run_id, parent.info.experiment_id
    found = client.search_runs([experiment], f"tags.`{PARENT_TAG}` = '{run_id}'")
    there = {one.info.run_name for one in found if one.info.status == "FINISHED"}
    for one in found:  # left by an interrupted call
        if one.info.run_name in children.keys() - there:
            client.delete_run(one.info.run_id)
    refused: Exception | None = None
    for name, values in children.items():
        if name in there:
            continue
        tags = {**values["tags"], PARENT_TAG: run_id}
        child = client.create_run(experiment, run_name=name, tags=tags).info
        try:
            params, metrics = name_keys(values["params"]), values["metrics"]
            client.log_batch(
                child.run_id,
                [
                    Metric(key, float(value), child.start_time, 0)
                    for key, value in metrics.items()
                    if value is not None
                ],
                [Param(key, str(value)[:LONGEST_PARAM]) for key, value in params.items()],
            )
            client.set_terminated(child.run_id)
        except MlflowException as error:
            if not is_refusal(error):
                raise
            client.set_terminated(child.run_id, "FAILED")
            refused = refused or error
    if refused:
        raise refused


SENDERS: dict[str, Callable[..., Any]] = {
    "params": mlflow.log_params,
    "metrics": lambda values, step, moment: mlflow.log_metrics(values, step=step, timestamp=moment),
    "tags": mlflow.set_tags,
    "artifact": _send_artifact,
    "model": _send_model,
    "children": _send_children,
}
