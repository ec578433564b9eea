"""A search in MLflow: a run with a child for each candidate that raced."""

from __future__ import annotations

from dataclasses import replace

import mlflow
import pytest

from flows.servers.services import find_free_port
from tests.support.made_up import made_up
from throughline.reporting.tuning_plots import plot_search
from throughline.results.tuning import TunedCandidate, TuningResult
from throughline.tracking.experiments import RunKey
from throughline.tracking.recorder import Recorder, sync
from throughline.tracking.store import ADDRESS
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


@pytest.mark.integration
def test_a_search_that_ends_while_mlflow_is_away_is_sent_with_its_children(
    mlflow_store, tmp_path, monkeypatch
):
    RESULT.write(tmp_path)
    run_key = RunKey(dataset="arrays", pipeline="tuning", data_digest="away")
    monkeypatch.setenv(ADDRESS, f"http://127.0.0.1:{find_free_port()}")
    assert record_search(run_key, RESULT, tmp_path, note="a table") is None
    monkeypatch.delenv(ADDRESS)
    assert sync() == (1, 0)
    (parent,) = mlflow.search_runs(
        search_all_experiments=True,
        filter_string="tags.`data.digest` = 'away'",
        output_format="list",
    )
    (child,) = mlflow.MlflowClient().search_runs(
        [parent.info.experiment_id], f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'"
    )
    assert (child.info.run_name, child.info.status) == ("tuning/stream", "FINISHED")
    assert child.data.metrics["tuning/examples_per_s"] == 900.0


@pytest.mark.integration
def test_children_that_are_there_are_not_added_again_and_one_that_is_refused_stops_no_other(
    mlflow_store, capsys
):
    run_key = RunKey(dataset="arrays", pipeline="tuning", data_digest="twice")
    odd = {"params": {}, "metrics": {"no/name?": 1.0}, "tags": {}}
    child = {"params": {}, "metrics": {"a": 1.0}, "tags": {}}
    with Recorder(run_key) as recorder:
        recorder.add_children({"odd": odd, "first": child})
    assert "does not take children odd, first" in capsys.readouterr().out
    with Recorder(run_key, run_id=recorder.run_id) as again:
        again.add_children({"first": child, "second": child})
    found = mlflow.MlflowClient().search_runs(
        [mlflow.get_run(again.run_id).info.experiment_id],
        f"tags.`mlflow.parentRunId` = '{again.run_id}'",
    )
    ended = sorted((one.info.run_name, one.info.status) for one in found)
    assert ended == [("first", "FINISHED"), ("odd", "FAILED"), ("second", "FINISHED")]
