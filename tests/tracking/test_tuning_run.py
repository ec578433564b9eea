"""A search in MLflow: a run with a child for each candidate that raced."""

from __future__ import annotations

from dataclasses import replace

import mlflow
import pytest
from made_up import made_up

from throughline.reporting.tuning_plots import plot_search
from throughline.results.tuning import TunedCandidate, TuningResult
from throughline.tracking.experiments import RunKey
from throughline.tracking.tuning_run import record_search

RACED = replace(
    made_up(TunedCandidate),
    name="stream",
    config={"read": "shards", "map": {"parallel": 2}, "sampling": {"(m)": 5}},
    examples_per_s=900.0,
    predicted_examples_per_s=None,
    dropped="2.00 times as long",
)
RESULT = replace(
    made_up(TuningResult),
    sentence="tuned: nothing beats `optimized`",
    chosen="stream",
    candidates=[RACED, replace(RACED, name="unraced", examples_per_s=None)],
)


@pytest.mark.integration
def test_a_search_is_a_run_with_a_child_for_each_that_raced(mlflow_store, tmp_path):
    RESULT.write(tmp_path)
    plot_search(RESULT, tmp_path)
    run_key = RunKey(dataset="arrays", pipeline="tuning", data_digest="d")
    run_id = record_search(run_key, RESULT, tmp_path, note="a table")
    parent = mlflow.get_run(run_id)
    assert parent.data.tags["headline"] == RESULT.sentence
    assert parent.data.tags["mlflow.note.content"] == "a table"
    kept = [one.path for one in mlflow.MlflowClient().list_artifacts(run_id)]
    assert kept == ["tune.json", "tune.png"]
    (child,) = mlflow.MlflowClient().search_runs(
        [parent.info.experiment_id], f"tags.`mlflow.parentRunId` = '{run_id}'"
    )
    assert child.data.params == {
        "read": "shards",
        "map.parallel": "2",
        "sampling._m_": "5",
    }
    assert child.data.metrics["tuning/examples_per_s"] == 900.0
    assert "tuning/predicted_examples_per_s" not in child.data.metrics
    assert (child.data.tags["dropped"], child.data.tags["chosen"]) == (RACED.dropped, "true")
    assert child.info.status == "FINISHED"
