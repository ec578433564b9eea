"""MLflow: one run per configuration, a child of its comparison. Nothing that trains depends on the server being there.

Every number is in the files of runs/NAME before it is sent. If the server goes away, one line says so, the rest of the
training goes on, and `sent` is false in runs/NAME/run.json.
"""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import mlflow
import requests
from mlflow.exceptions import MlflowException

from tasks.progress import say

PARENT_RUN = "THROUGHLINE_PARENT_RUN"
FLOW_RUN = "THROUGHLINE_FLOW_RUN"
STORE_HOME = "THROUGHLINE_HOME"
LONGEST_PARAM = 6000


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
    """A run that is being written; use it with `with`. After the first failure to reach the store it stays silent.

    With `run_id` it goes on with an earlier run.
    """

    def __init__(self, identity: Identity, *, run_id: str | None = None, run_name: str | None = None, parent: bool = False) -> None:
        self.run_id = run_id
        self.sent = True
        self._identity = identity
        self._name = run_name or identity.pipeline
        self._is_parent = parent

    def __enter__(self) -> Recorder:
        self._try(self._start)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        status = "FINISHED" if kind is None else "KILLED" if kind in (KeyboardInterrupt, SystemExit) else "FAILED"
        self._try(lambda: mlflow.end_run(status))

    def params(self, values: Mapping[str, Any]) -> None:
        """Log nested parameters, flattened with dots."""
        flat = {key: str(value)[:LONGEST_PARAM] for key, value in flatten(values).items()}
        self._try(lambda: mlflow.log_params(flat))

    def metrics(self, values: Mapping[str, float | None], *, step: int | None = None) -> None:
        """Log metrics; absent ones (None) stay absent."""
        known = {key: float(value) for key, value in values.items() if value is not None}
        self._try(lambda: mlflow.log_metrics(known, step=step))

    def tags(self, values: Mapping[str, str]) -> None:
        """Set tags."""
        self._try(lambda: mlflow.set_tags(dict(values)))

    def artifact(self, path: Path, *, folder: str | None = None) -> None:
        """Log a file or folder."""
        log = mlflow.log_artifacts if path.is_dir() else mlflow.log_artifact
        self._try(lambda: log(str(path), folder))

    def call(self, function: Callable[[], Any]) -> None:
        """Do anything else with the active run under the same protection."""
        self._try(function)

    def _start(self) -> None:
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        use_store()
        tags = {"pipeline": self._identity.pipeline, "data.digest": self._identity.data_digest, **lineage()}
        parent = os.environ.get(PARENT_RUN)
        if self.run_id is None and parent and not self._is_parent:
            tags["mlflow.parentRunId"] = parent
        run = mlflow.start_run(
            run_id=self.run_id,
            experiment_id=None if self.run_id else experiment_id(self._identity.data_set),
            run_name=None if self.run_id else self._name,
            tags=tags,
            log_system_metrics=self.run_id is None and not self._is_parent,
        )
        self.run_id = run.info.run_id

    def _try(self, function: Callable[[], Any]) -> None:
        if not self.sent:
            return
        try:
            function()
        except (MlflowException, requests.RequestException, OSError) as error:
            self.sent = False
            say(f"MLflow at {mlflow.get_tracking_uri()} cannot be written ({str(error).splitlines()[0][:200]}); the results stay in runs/")


def open_comparison(data_set: str, name: str) -> str | None:
    """Start the parent run of a comparison and return its id, or None where the store cannot be reached."""
    recorder = Recorder(Identity(data_set=data_set, pipeline="comparison", data_digest=""), run_name=name, parent=True)
    with recorder:
        pass
    return recorder.run_id if recorder.sent else None


def close_comparison(run_id: str, data_set: str, summary: Mapping[str, Any], report: Path) -> None:
    """Give the parent run its result, and every configuration a child run.

    A configuration that was up to date has trained under an earlier comparison; it gets a child here with the same
    metrics, which names the earlier run in the tag `reused_run_id`.
    """
    rows = summary["configurations"]
    with Recorder(Identity(data_set=data_set, pipeline="comparison", data_digest=summary["data_digest"]), run_id=run_id) as parent:
        parent.metrics({f"speedup_vs_naive/{row['pipeline']}": row["speedup_vs_naive"] for row in rows})
        parent.tags({"headline": summary["headline"], "best": summary["best"], "data.digest": summary["data_digest"]})
        parent.artifact(report, folder="report")
        parent.call(lambda: _complete_children(run_id, rows))


def _complete_children(parent: str, rows: Sequence[Mapping[str, Any]]) -> None:
    client = mlflow.MlflowClient()
    for row in rows:
        run = client.get_run(row["mlflow_run_id"]) if row["mlflow_run_id"] else None
        if run is None:
            continue
        own = run.data.tags.get("mlflow.parentRunId") == parent
        target = run.info.run_id
        if not own:
            kept = {key: value for key, value in run.data.tags.items() if not key.startswith("mlflow.")}
            tags = {**kept, "mlflow.parentRunId": parent, "reused_run_id": run.info.run_id}
            target = client.create_run(run.info.experiment_id, run_name=row["pipeline"], tags=tags).info.run_id
            for key, value in run.data.metrics.items():
                client.log_metric(target, key, value)
            for key, value in run.data.params.items():
                client.log_param(target, key, value)
        client.log_metric(target, "throughput/speedup_vs_naive", row["speedup_vs_naive"])
        if not own:
            client.set_terminated(target)


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


def _home() -> Path:
    return Path(os.environ.get(STORE_HOME, ".")).resolve()
