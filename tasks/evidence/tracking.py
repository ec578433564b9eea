"""MLflow: one run per configuration, a child of its comparison. Nothing that trains depends on the server being there.

Every number is in the files of runs/NAME before it is sent. If the server goes away, one line says so, the rest of the
training goes on, `sent` is false in runs/NAME/run.json, and `python -m tasks.evidence.tracking sync` sends what is missing later.
"""

from __future__ import annotations

import argparse
import inspect
import logging
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import mlflow
import numpy as np
import requests
from mlflow.exceptions import MlflowException
from mlflow.models import ModelSignature
from mlflow.types import Schema, TensorSpec

from tasks.evidence.unsent import Unsent, discard, keep, kept
from tasks.files import read_json
from tasks.progress import say

PARENT_RUN = "THROUGHLINE_PARENT_RUN"
FLOW_RUN = "THROUGHLINE_FLOW_RUN"
STORE_HOME = "THROUGHLINE_HOME"
LONGEST_PARAM = 6000
AWAY = (MlflowException, requests.RequestException, OSError)  # how a store shows that it cannot be reached or written
UNSENT = Path(".throughline") / "unsent"


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What a run is about: becomes experiment, name and tags."""

    data_set: str
    pipeline: str
    data_digest: str


def use_store() -> None:
    """Send runs to MLFLOW_TRACKING_URI, or to an SQLite file in the project's folder."""
    if "MLFLOW_TRACKING_URI" not in os.environ:
        mlflow.set_tracking_uri(f"sqlite:///{_home() / 'mlflow.db'}")


def experiment_id(data_set: str) -> str:
    """The experiment `throughline/<data set>`, made if it does not exist yet."""
    name = f"throughline/{data_set}"
    found = mlflow.get_experiment_by_name(name)
    if found is not None:
        return found.experiment_id
    local = mlflow.get_tracking_uri().startswith("sqlite:")
    return mlflow.create_experiment(name, artifact_location=(_home() / "mlartifacts").as_uri() if local else None)


class Recorder:
    """A run that is being written; use it with `with`, again if it is to go on. With `run_id` it goes on with an earlier run.

    After the first failure to reach the store everything is kept in a file of .throughline/unsent/ instead, for `sync`.
    """

    def __init__(self, identity: Identity, *, run_id: str | None = None) -> None:
        self.run_id = run_id
        self.sent = True
        self._identity = identity
        self._unsent: list[list[Any]] = []

    def __enter__(self) -> Recorder:
        self._try(self._start)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        status = "FINISHED" if kind is None else "KILLED" if kind in (KeyboardInterrupt, SystemExit) else "FAILED"
        self._try(lambda: mlflow.end_run(status))
        if not self.sent:
            keep(_home() / UNSENT, Unsent(identity=asdict(self._identity), run_id=self.run_id, status=status, tags=lineage(), calls=self._unsent))

    def params(self, values: Mapping[str, Any]) -> None:
        """Log nested parameters, flattened with dots."""
        self._send("params", {key: str(value)[:LONGEST_PARAM] for key, value in flatten(values).items()})

    def metrics(self, values: Mapping[str, float | None], *, step: int | None = None) -> None:
        """Log metrics; absent ones (None) stay absent."""
        self._send("metrics", {key: float(value) for key, value in values.items() if value is not None}, step, time.time_ns() // 1_000_000)

    def tags(self, values: Mapping[str, str]) -> None:
        """Set tags."""
        self._send("tags", dict(values))

    def artifact(self, path: Path, *, folder: str | None = None) -> None:
        """Log a file or folder."""
        self._send("artifact", str(path.resolve()), folder)

    def model(self, path: Path) -> None:
        """Log a model from its .keras file, with a signature and requirements, so that it can be registered and served."""
        self._send("model", str(path.resolve()))

    def call(self, function: Callable[[], Any]) -> None:
        """Do anything else with the active run under the same protection; it is not kept for later."""
        self._try(function)

    def replay(self, calls: Sequence[Sequence[Any]]) -> None:
        """Send what could not be sent before."""
        for call in calls:
            self._send(*call)

    def _send(self, kind: str, *values: Any) -> None:
        self._try(lambda: SENDS[kind](*values))
        if not self.sent:
            self._unsent.append([kind, *values])

    def _start(self) -> None:
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        use_store()
        tags = {"pipeline": self._identity.pipeline, "data.digest": self._identity.data_digest, **lineage()}
        parent = os.environ.get(PARENT_RUN)
        if self.run_id is None and parent:
            tags["mlflow.parentRunId"] = parent
        run = mlflow.start_run(
            run_id=self.run_id,
            experiment_id=None if self.run_id else experiment_id(self._identity.data_set),
            run_name=None if self.run_id else self._identity.pipeline,
            tags=tags,
            log_system_metrics=self.run_id is None,
        )
        self.run_id = run.info.run_id

    def _try(self, function: Callable[[], Any]) -> None:
        if not self.sent:
            return
        try:
            function()
        except AWAY as error:
            self.sent = False
            reason = str(error).splitlines()[0][:200]
            say(f"MLflow at {mlflow.get_tracking_uri()} cannot be written ({reason}); kept for `python -m tasks.evidence.tracking sync`")


def _send_model(path: str) -> None:
    if not Path(path).exists():
        say(f"{path} is gone and was left out")
        return
    import keras
    import tensorflow as tf

    model: Any = keras.saving.load_model(path, compile=False, safe_mode=True)
    inputs = TensorSpec(np.dtype(model.inputs[0].dtype), (-1, *model.input_shape[1:]))
    outputs = TensorSpec(np.dtype("float32"), (-1, *model.output_shape[1:]))
    signature = ModelSignature(inputs=Schema([inputs]), outputs=Schema([outputs]))
    needs = [f"tensorflow=={tf.__version__}", f"keras=={keras.__version__}"]
    mlflow.tensorflow.log_model(model, name="model", signature=signature, pip_requirements=needs)


def _send_artifact(path: str, folder: str | None) -> None:
    if not Path(path).exists():
        say(f"{path} is gone and was left out")
    elif Path(path).is_dir():
        mlflow.log_artifacts(path, folder)
    else:
        mlflow.log_artifact(path, folder)


SENDS: dict[str, Callable[..., Any]] = {
    "params": mlflow.log_params,
    "metrics": lambda values, step, moment: mlflow.log_metrics(values, step=step, timestamp=moment),
    "tags": mlflow.set_tags,
    "artifact": _send_artifact,
    "model": _send_model,
}


def sync() -> tuple[int, int]:
    """Send what is kept in .throughline/unsent/; returns how many runs were sent, and how many are still to be."""
    sent = 0
    waiting = list(kept(_home() / UNSENT))
    for file, unsent in waiting:
        recorder = Recorder(Identity(**unsent.identity), run_id=unsent.run_id)
        with recorder:
            recorder.tags(unsent.tags)
            recorder.replay(unsent.calls)
        discard(file)
        if not recorder.sent or recorder.run_id is None:
            break  # it has kept everything anew, in a file of its own
        mlflow.MlflowClient().set_terminated(recorder.run_id, unsent.status)
        sent += 1
    return sent, len(waiting) - sent


def run_of(folder: Path) -> str | None:
    """The MLflow run of the results in runs/NAME; None where there is none."""
    file = folder / "run.json"
    return read_json(file)["mlflow_run_id"] if file.exists() else None


def lineage() -> dict[str, str]:
    """Tags that tie a run to its code, experiment and flow run."""
    tags = {}
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    if commit:
        dirty = subprocess.run(["git", "status", "--porcelain", "-uno"], capture_output=True, text=True, check=False).stdout.strip()
        tags |= {"git.commit": commit, "git.dirty": str(bool(dirty)).lower()}
    for tag, variable in (("dvc.experiment", "DVC_EXP_NAME"), ("prefect.flow_run_id", FLOW_RUN)):
        if os.environ.get(variable):
            tags[tag] = os.environ[variable]
    return tags


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings into dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        path = f"{prefix}.{key}" if prefix else str(key)
        flat |= flatten(value, path) if isinstance(value, Mapping) and value else {path: value}
    return flat


def main() -> None:
    """Send to MLflow what could not be sent while its server was away."""
    parser = argparse.ArgumentParser(prog="python -m tasks.evidence.tracking", description=inspect.getdoc(main))
    parser.add_argument("what", choices=["sync"], help="send everything in .throughline/unsent/")
    parser.parse_args()
    use_store()
    sent, left = sync()
    say(f"{sent} of {sent + left} kept runs sent to {mlflow.get_tracking_uri()}")
    if left:
        raise SystemExit(1)


def _home() -> Path:
    return Path(os.environ.get(STORE_HOME, ".")).resolve()


if __name__ == "__main__":
    main()
