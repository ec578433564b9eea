"""A saved view of MLflow's run list for each comparison: its configurations, fastest first.

MLflow keeps saved views as tags of the experiment, in the form that its own UI writes (seen in
MLflow 3.17).
"""

from __future__ import annotations

import base64
import json
import time
import zlib
from urllib.parse import quote

import mlflow

FASTEST = "metrics.`throughput/speedup_vs_naive`"
# Few, because MLflow shows them in alphabetical order, whatever is asked for.
VIEW_METRICS = (
    "throughput/steady_examples_per_s",
    "throughput/train_examples_per_s",
    "throughput/input_examples_per_s",
    "throughput/model_examples_per_s",
    "input/stall_pct",
)
OF_RUNS = "workflowType=machine_learning"  # the part of MLflow that is not about language models
_TAG = "mlflow.sharedViewState."


def save_view(experiment: str, parent: str, name: str, *, metric: str) -> None:
    """Add a view of the comparison `parent` to `Views`; `metric` is that of the models' quality."""
    shown = (*VIEW_METRICS, f"test/{metric}", f"val/{metric}")
    state = {
        "searchFilter": f"tags.`mlflow.parentRunId` = '{parent}'",
        "orderByKey": FASTEST,
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": ["tags.`verdict`", FASTEST, *(f"metrics.`{each}`" for each in shown)],
    }
    packed = base64.b64encode(zlib.compress(json.dumps(state).encode())).decode()
    now = int(time.time() * 1000)
    view = {"name": name, "createdAt": now, "updatedAt": now, "state": f"deflate;{packed}"}
    mlflow.MlflowClient().set_experiment_tag(experiment, f"{_TAG}{parent}", json.dumps(view))


def view_url(server: str, experiment: str, parent: str) -> str:
    runs = f"{server}/#/experiments/{quote(experiment)}/runs"
    return f"{runs}?viewStateShareKey={quote(parent)}&{OF_RUNS}"


def run_url(server: str, experiment: str, run_id: str) -> str:
    return f"{server}/#/experiments/{quote(experiment)}/runs/{quote(run_id)}?{OF_RUNS}"
