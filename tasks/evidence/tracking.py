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
import requests
from mlflow.exceptions import MlflowException

from tasks.evidence.view import address_of, save_view
from tasks.files import read_json, write_json
from tasks.progress import say

PARENT_RUN = "THROUGHLINE_PARENT_RUN"
FLOW_RUN = "THROUGHLINE_FLOW_RUN"
STORE_HOME = "THROUGHLINE_HOME"
LONGEST_PARAM = 6000
CHAMPION = "champion"
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
            _keep(Unsent(identity=self._identity, run_id=self.run_id, status=status, tags=lineage(), calls=self._unsent))

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
        except (MlflowException, requests.RequestException, OSError) as error:
            self.sent = False
            reason = str(error).splitlines()[0][:200]
            say(f"MLflow at {mlflow.get_tracking_uri()} cannot be written ({reason}); kept for `python -m tasks.evidence.tracking sync`")


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
}


@dataclass(frozen=True, kw_only=True)
class Unsent:
    """What a run wanted to tell a store that was away. `tags` tie it to the code and the flow of that time."""

    identity: Identity
    run_id: str | None
    status: str
    tags: Mapping[str, str]
    calls: Sequence[Sequence[Any]]


def _keep(unsent: Unsent) -> None:
    write_json(_home() / UNSENT / f"{time.time_ns()}-{unsent.identity.pipeline}.json", asdict(unsent))


def sync() -> tuple[int, int]:
    """Send what is kept in .throughline/unsent/; returns how many runs were sent, and how many are still to be."""
    sent = 0
    files = sorted((_home() / UNSENT).glob("*.json"))
    for file in files:
        kept = read_json(file)
        recorder = Recorder(Identity(**kept["identity"]), run_id=kept["run_id"])
        with recorder:
            recorder.tags(kept["tags"])
            recorder.replay(kept["calls"])
        file.unlink()
        if not recorder.sent or recorder.run_id is None:
            break  # it has kept everything anew, in a file of its own
        mlflow.MlflowClient().set_terminated(recorder.run_id, kept["status"])
        sent += 1
    return sent, len(files) - sent


def run_of(folder: Path) -> str | None:
    """The MLflow run of the results in runs/NAME; None where there is none."""
    file = folder / "run.json"
    return read_json(file)["mlflow_run_id"] if file.exists() else None


def pages_of(run_id: str | None) -> tuple[str, str] | None:
    """Addresses in the server's UI of a run, and of the view of a comparison's configurations; None without a server that answers."""
    server = mlflow.get_tracking_uri()
    if run_id is None or not server.startswith("http"):
        return None
    try:
        experiment = mlflow.get_run(run_id).info.experiment_id
    except (MlflowException, requests.RequestException, OSError):
        return None
    return f"{server}/#/experiments/{experiment}/runs/{run_id}", address_of(server, experiment, run_id)


def open_comparison(data_set: str, name: str) -> str | None:
    """Start the parent run of a comparison and return its id, or None where the store cannot be reached."""
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    use_store()
    try:
        tags = {"pipeline": "comparison", **lineage()}
        return mlflow.MlflowClient().create_run(experiment_id(data_set), run_name=name, tags=tags).info.run_id
    except (MlflowException, requests.RequestException, OSError) as error:
        say(f"MLflow at {mlflow.get_tracking_uri()} cannot be written ({str(error).splitlines()[0][:200]}); the comparison has no run there")
        return None


def close_comparison(run_id: str, data_set: str, summary: Mapping[str, Any], report: Path, *, note: str) -> None:
    """Give the parent run its result, every configuration a child run, and the best one's model the alias `champion`.

    A configuration that was up to date has trained under an earlier comparison; it gets a child here with the same
    metrics, which names the earlier run in the tag `reused_run_id`. `note` (Markdown) stands on the run's first page.
    """
    rows = summary["configurations"]
    with Recorder(Identity(data_set=data_set, pipeline="comparison", data_digest=summary["data_digest"]), run_id=run_id) as parent:
        parent.metrics({f"speedup_vs_naive/{row['pipeline']}": row["speedup_vs_naive"] for row in rows})
        parent.tags({"headline": summary["headline"], "best": summary["best"], "data.digest": summary["data_digest"], "mlflow.note.content": note})
        parent.artifact(report, folder="report")
        parent.call(lambda: _complete_children(run_id, rows))
        parent.call(lambda: _save_view_of(run_id))
        parent.call(lambda: crown(data_set, next(row for row in rows if row["pipeline"] == summary["best"])))


def crown(data_set: str, best: Mapping[str, Any]) -> None:
    """Register the model of the best configuration as `throughline-DATA_SET` with the alias `champion`, unless it already is."""
    client, name, run_id = mlflow.MlflowClient(), f"throughline-{data_set}", best["mlflow_run_id"]
    if run_id is None:
        return
    experiment = client.get_run(run_id).info.experiment_id
    models = client.search_logged_models([experiment], filter_string=f"source_run_id = '{run_id}'")
    if not models:
        return
    try:
        if client.get_model_version_by_alias(name, CHAMPION).run_id == run_id:
            return
    except MlflowException:  # there is none yet
        pass
    version = mlflow.register_model(models[0].model_uri, name, tags={"pipeline": best["pipeline"], "plan": best["plan"]})
    client.set_registered_model_alias(name, CHAMPION, version.version)


def _save_view_of(parent: str) -> None:
    info = mlflow.get_run(parent).info
    save_view(info.experiment_id, parent, str(info.run_name))


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
