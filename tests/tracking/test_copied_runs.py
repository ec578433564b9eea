"""What is measured or compared elsewhere leaves the run of a training as it is."""

from __future__ import annotations

import mlflow
import pytest

from tests.support.rows import comparison, row
from throughline.tracking.comparison_run import close_comparison, open_comparison
from throughline.tracking.copied_runs import copy_run, find_copy, record_measurement
from throughline.tracking.lineage import EXPERIMENT, FLOW_RUN, PARENT_RUN
from throughline.tracking.recorder import Recorder, RunKey
from throughline.tracking.sending import list_models

pytestmark = pytest.mark.integration

KEY = RunKey(dataset="photos", pipeline="fast", data_digest="d", sketch=("1f", "a0"))


@pytest.fixture
def trained(mlflow_store, monkeypatch):
    """The id of a training's run, of the project."""
    monkeypatch.setenv(FLOW_RUN, "the-training")
    with Recorder(KEY) as recorder:
        recorder.log_params({"model": {"width": 8}})
        recorder.log_metrics({"train/loss": 1.0}, step=0)
    return recorder.run_id


def measure(run_id, stall_pct):
    """Measure a training as profile does; returns the id of the run that this is in."""
    with record_measurement(KEY, run_id, None) as recorder:
        recorder.log_metrics({"input/stall_pct": stall_pct})
        recorder.set_tags({"verdict": f"stall of {stall_pct}"})
    return recorder.run_id


def test_what_the_project_measures_is_added_to_the_trainings_run_whose_lineage_stays(
    trained, monkeypatch
):
    monkeypatch.setenv(FLOW_RUN, "another")
    assert measure(trained, 5.0) == trained
    run = mlflow.get_run(trained)
    assert run.data.tags["prefect.flow_run_id"] == "the-training"
    assert run.data.metrics == {"train/loss": 1.0, "input/stall_pct": 5.0}
    assert run.info.status == "FINISHED" and not list_models(run)


def test_what_a_run_with_changes_measures_again_is_in_a_copy_of_its_own(trained, monkeypatch):
    before = mlflow.get_run(trained)
    monkeypatch.setenv(EXPERIMENT, "short")
    monkeypatch.setenv(FLOW_RUN, "another")
    copy = measure(trained, 7.0)
    assert mlflow.get_run(trained).data.to_dictionary() == before.data.to_dictionary()
    run = mlflow.get_run(copy)
    assert run.info.run_name == "short/fast" and run.info.status == "FINISHED"
    assert run.data.params == before.data.params
    assert run.data.metrics == {"train/loss": 1.0, "input/stall_pct": 7.0}
    tags = run.data.tags
    assert (tags["dvc.experiment"], tags["reused_run_id"]) == ("short", trained)
    assert (tags["prefect.flow_run_id"], tags["verdict"]) == ("another", "stall of 7.0")
    assert measure(trained, 8.0) == copy, "once more"
    monkeypatch.setenv(EXPERIMENT, "other")
    assert measure(trained, 9.0) not in (copy, trained)


def test_a_run_with_changes_adds_to_what_it_has_trained_itself(mlflow_store, monkeypatch):
    monkeypatch.setenv(EXPERIMENT, "short")
    with Recorder(KEY) as recorder:
        pass
    assert measure(recorder.run_id, 5.0) == recorder.run_id


def test_a_comparison_shows_the_copy_in_which_it_has_measured(trained, mlflow_store, monkeypatch):
    (report := mlflow_store / "report").mkdir()
    monkeypatch.setenv(EXPERIMENT, "short")
    with open_comparison(KEY, "comparison") as parent:
        monkeypatch.setenv(PARENT_RUN, parent)
        copy = measure(trained, 7.0)
        compared = comparison(row("fast", mlflow_run_id=trained))
        close_comparison(parent, KEY, compared, report, note="n", promotion="none")
    run = mlflow.get_run(trained)
    assert "throughput/speedup_vs_naive" not in run.data.metrics
    (child,) = mlflow.search_runs(
        [run.info.experiment_id], f"tags.`mlflow.parentRunId` = '{parent}'", output_format="list"
    )
    assert child.info.run_id == copy and child.info.status == "FINISHED"
    assert {"train/loss", "throughput/speedup_vs_naive"} <= {*child.data.metrics}
    assert child.data.metrics["input/stall_pct"] == 7


def test_a_copy_is_found_by_its_tags_and_is_no_copy_of_another_run(trained):
    run = mlflow.get_run(trained)
    assert find_copy(run, {}) is None
    copy = copy_run(run, "copy", {"kind": "one"})
    assert find_copy(run, {"kind": "one"}) == copy
    assert find_copy(run, {"kind": "other"}) is None and find_copy(run, {"kind": None}) is None
    assert find_copy(run, {"other": None}) == copy
    assert find_copy(mlflow.get_run(copy), {}) is None
