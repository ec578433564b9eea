"""Sends a recorder's calls, by their kind, to MLflow's active run, or keeps them for later."""

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
from mlflow.entities import LoggedModel, LoggedModelStatus, Metric, Param, Run
from mlflow.exceptions import MlflowException
from mlflow.models import ModelSignature
from mlflow.types import Schema, TensorSpec

from throughline.results.base import parse
from throughline.shared.errors import DamagedFile
from throughline.shared.files import write_json
from throughline.shared.progress import echo
from throughline.tracking.experiments import RunKey
from throughline.tracking.lineage import PARENT_TAG
from throughline.tracking.store import is_refusal, name_keys, reason, search_runs

LONGEST_PARAM = 6000
CALLS_WITH_FILES = ("artifact", "model")  # their first value is a path


def list_models(run: Run) -> list[LoggedModel]:
    logged = mlflow.MlflowClient().search_logged_models(
        [run.info.experiment_id], filter_string=f"source_run_id = '{run.info.run_id}'"
    )
    return [one for one in logged if one.status == LoggedModelStatus.READY]


def _send_model(path: str, objects: Mapping[str, str] | None = None) -> None:
    import keras
    import tensorflow as tf

    from throughline.models.inference import describe_outputs
    from throughline.models.model_files import code_paths, imported, load_model

    try:
        own = imported(objects or {})
        model: Any = load_model(Path(path), objects or {})
    except Exception as error:  # noqa: BLE001 - user-defined layers make Keras raise anything
        echo(f"  MLflow gets only the model's file, since loading it failed ({reason(error)})")
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


def _send_children(children: Mapping[str, Mapping[str, Any]]) -> None:
    """Add the children that the active run lacks; raises the first refusal at the end."""
    client, parent = mlflow.MlflowClient(), mlflow.active_run()
    if parent is None:
        raise MlflowException("there is no active run to add children to")
    run_id, refused = parent.info.run_id, None
    found = search_runs(f"tags.`{PARENT_TAG}` = '{run_id}'")
    there = {one.info.run_name for one in found if one.info.status == "FINISHED"}
    for one in found:  # left by an interrupted call
        if one.info.run_name in children.keys() - there:
            client.delete_run(one.info.run_id)
    for name, values in children.items():
        if name in there:
            continue
        tags = {**values["tags"], PARENT_TAG: run_id}
        child = client.create_run(parent.info.experiment_id, run_name=name, tags=tags).info
        metrics = [
            Metric(key, float(value), child.start_time, 0)
            for key, value in values["metrics"].items()
            if value is not None
        ]
        params = name_params(values["params"])
        try:
            client.log_batch(
                child.run_id, metrics, [Param(key, value) for key, value in params.items()]
            )
            client.set_terminated(child.run_id)
        except MlflowException as error:
            if not is_refusal(error):
                raise
            client.set_terminated(child.run_id, "FAILED")
            refused = refused or error
    if refused:
        raise refused


def name_params(values: Mapping[str, Any]) -> dict[str, str]:
    """Flatten nested parameters with dots, and cut them to the length that MLflow takes."""
    return {key: str(value)[:LONGEST_PARAM] for key, value in name_keys(values).items()}


_SENDERS: dict[str, Callable[..., Any]] = {
    "params": mlflow.log_params,
    "metrics": lambda values, step, moment: mlflow.log_metrics(values, step=step, timestamp=moment),
    "tags": mlflow.set_tags,
    "artifact": lambda path, folder: (
        mlflow.log_artifacts if Path(path).is_dir() else mlflow.log_artifact
    )(path, folder),
    "model": _send_model,
    "children": _send_children,
}


def send(kind: str, *values: Any) -> None:
    """Send a call to MLflow's active run; a file that is gone is reported instead."""
    if kind in CALLS_WITH_FILES and not Path(values[0]).exists():
        echo(f"{values[0]} no longer exists and was not sent to MLflow")
    else:
        _SENDERS[kind](*values)


@dataclass(frozen=True, kw_only=True)
class PendingRun:
    """A run's calls that are kept for later, and its tags; `follows` tags the run to add to."""

    run_key: RunKey
    run_id: str | None
    status: str
    tags: Mapping[str, str]
    calls: Sequence[Sequence[Any]]
    follows: str | None = None


def enqueue(folder: Path, unsent: PendingRun) -> None:
    """Keep a run with copies of its files, as its worktree may go; an OSError leaves nothing."""
    file = folder / f"{time.time_ns()}-{unsent.run_key.pipeline}.json"
    calls: list[list[Any]] = []
    try:
        for kind, value, *more in unsent.calls:
            if kind in CALLS_WITH_FILES:
                value = _copy(Path(value), attachments_dir(file) / str(len(calls)))
            calls.append([kind, value, *more])
        write_json(file, asdict(replace(unsent, calls=calls)))
    except OSError:
        shutil.rmtree(attachments_dir(file), ignore_errors=True)
        raise


def list_pending(folder: Path) -> Iterator[tuple[Path, PendingRun]]:
    """Yield the kept runs with their files, the oldest first; raise DamagedFile at the end."""
    damaged = ""
    for file in sorted(folder.glob("*.json")):
        try:
            pending = parse(PendingRun, json.loads(file.read_bytes()))
        except (ValueError, TypeError) as error:
            damaged = damaged or (
                f"{file} is damaged, or was written by another version of the program ({error});"
                " the run's own files have the same content, so delete this file and"
                f" {attachments_dir(file).name}"
            )
            continue
        yield file, pending
    if damaged:
        raise DamagedFile(damaged)


def remove(file: Path) -> None:
    file.unlink()
    shutil.rmtree(attachments_dir(file), ignore_errors=True)


def attachments_dir(file: Path) -> Path:
    return file.with_suffix(".files")


def _copy(source: Path, folder: Path) -> str:
    folder.mkdir(parents=True)
    copy = folder / source.name
    if source.is_dir():
        shutil.copytree(source, copy)
    elif source.exists():
        shutil.copy2(source, copy)
    return str(copy)
