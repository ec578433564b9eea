"""The parent run of a comparison in MLflow: opened before its configurations run, closed with their table, view and champion."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mlflow
from mlflow.exceptions import MlflowException

from tasks.evidence.tracking import AWAY, Identity, Recorder, experiment_id, lineage, use_store
from tasks.evidence.view import address_of, save_view
from tasks.progress import say

CHAMPION = "champion"


def pages_of(run_id: str | None) -> tuple[str, str] | None:
    """Addresses in the server's UI of a run, and of the view of a comparison's configurations; None without a server that answers."""
    server = mlflow.get_tracking_uri()
    if run_id is None or not server.startswith("http"):
        return None
    try:
        experiment = mlflow.get_run(run_id).info.experiment_id
    except AWAY:
        return None
    return f"{server}/#/experiments/{experiment}/runs/{run_id}", address_of(server, experiment, run_id)


def open_comparison(data_set: str, name: str) -> str | None:
    """Start the parent run of a comparison and return its id, or None where the store cannot be reached."""
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    use_store()
    try:
        tags = {"pipeline": "comparison", **lineage()}
        return mlflow.MlflowClient().create_run(experiment_id(data_set), run_name=name, tags=tags).info.run_id
    except AWAY as error:
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
