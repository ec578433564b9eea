"""The view of a comparison shows its configurations alone, fastest first, at its own address."""

from __future__ import annotations

import base64
import json
import zlib

import mlflow
import pytest

from throughline.tracking.saved_view import run_url, save_view, view_url


def test_addresses_lead_to_runs_and_not_to_traces():
    server, half = "http://127.0.0.1:5000", "workflowType=machine_learning"
    assert (
        view_url(server, "7", "ab 1")
        == f"{server}/#/experiments/7/runs?viewStateShareKey=ab%201&{half}"
    )
    assert run_url(server, "7", "ab1") == f"{server}/#/experiments/7/runs/ab1?{half}"


@pytest.mark.slow
def test_a_view_is_kept_with_its_experiment_in_the_form_that_the_ui_reads(mlflow_store):
    experiment = mlflow.create_experiment("photos", artifact_location=str(mlflow_store))
    save_view(experiment, "ab1", "compared", metric="accuracy")
    tags = mlflow.get_experiment(experiment).tags
    view = json.loads(tags["mlflow.sharedViewState.ab1"])
    form, packed = view["state"].split(";")
    state = json.loads(zlib.decompress(base64.b64decode(packed)))
    assert (view["name"], form) == ("compared", "deflate")
    assert state["searchFilter"] == "tags.`mlflow.parentRunId` = 'ab1'"
    assert (state["orderByKey"], state["orderByAsc"]) == (
        "metrics.`throughput/speedup_vs_naive`",
        False,
    )
    assert state["selectedColumns"][-2:] == ["metrics.`test/accuracy`", "metrics.`val/accuracy`"]
