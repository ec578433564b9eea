"""What each kind of call to a recorder sends to the active run of MLflow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
from mlflow.entities import LoggedModel, LoggedModelStatus, Run
from mlflow.models import ModelSignature
from mlflow.types import Schema, TensorSpec

from throughline.shared.progress import echo
from throughline.tracking.store import reason


def list_models(run: Run) -> list[LoggedModel]:
    """The models of a run that MLflow can serve."""
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


SENDERS: dict[str, Callable[..., Any]] = {
    "params": mlflow.log_params,
    "metrics": lambda values, step, moment: mlflow.log_metrics(values, step=step, timestamp=moment),
    "tags": mlflow.set_tags,
    "artifact": _send_artifact,
    "model": _send_model,
}
