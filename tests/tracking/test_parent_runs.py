"""Runs of MLflow with others below them, and copies of what a run with changes measures again."""

import signal
from dataclasses import replace
from urllib.parse import unquote

import mlflow
import pytest

from tasks.tune import record
from tests.support.made_up import made_up
from tests.support.project import run_python
from tests.support.rows import comparison, row
from throughline.reporting.tuning_table import to_markdown
from throughline.results.tuning import TunedCandidate, TuningResult
from throughline.tracking.calls import list_models
from throughline.tracking.comparison_run import (
    CHAMPION,
    OPEN,
    UI_URL,
    close_comparison,
    has_comparison,
    open_comparison,
    record_measurement,
    run_urls,
)
from throughline.tracking.lineage import EXPERIMENT, FLOW_RUN, PARENT_RUN
from throughline.tracking.recorder import Recorder, RunKey, sync
from throughline.tracking.store import ADDRESS, store_home

pytestmark = pytest.mark.integration

KEY = RunKey(dataset="photos", pipeline="fast", data_digest="d", sketch=("1f", "a0"))
RACED = replace(
    made_up(TunedCandidate),
    name="stream",
    config={"read": "shards", "map": {"parallel": 2}, "sampling": {"(m)": 5}},
    examples_per_s=900.0,
    dropped="2.00 times as long",
)
SEARCH = replace(
    made_up(TuningResult),
    sentence="tuned: nothing beats `optimized`",
    chosen="stream",
    candidates=[RACED, replace(RACED, name="unraced", examples_per_s=None)],
)
KILLED = """
import os, signal
from throughline.tracking.comparison_run import open_comparison
from throughline.tracking.experiments import RunKey
with open_comparison(RunKey(dataset='photos', pipeline='fast', data_digest='d'), 'c') as parent:
    print(parent, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def report(mlflow_store):
    (mlflow_store / "report").mkdir()
    comparison(row("fast")).write(mlflow_store / "report")
    return mlflow_store / "report"


@pytest.fixture
def trained(mlflow_store, monkeypatch):
    """The id of a training's run, of the project."""
    monkeypatch.setenv(FLOW_RUN, "the-training")
    with Recorder(KEY) as recorder:
        recorder.log_params({"model": {"width": 8}})
        recorder.log_metrics({"train/loss": 1.0}, step=0)
    return recorder.run_id


def close(parent, report, *rows, promotion="none"):
    found = comparison(*rows or (row("fast"),))
    return close_comparison(parent, KEY, found, report, note="n", promotion=promotion)


def find_runs(tags):
    return mlflow.search_runs(filter_string=tags, search_all_experiments=True, output_format="list")


def find_children(parent):
    return find_runs(f"tags.`mlflow.parentRunId` = '{parent}'")


def measure(run_id, stall_pct):
    """Measure a training as profile does; returns the id of the run that this is in."""
    with record_measurement(KEY, run_id, None) as recorder:
        recorder.log_metrics({"input/stall_pct": stall_pct})
        recorder.set_tags({"verdict": f"stall of {stall_pct}"})
    return recorder.run_id


def test_mlflow_knows_of_which_report_it_has_all(report, absent_server, monkeypatch):
    tags = {"dvc.experiment": "tuned", "prefect.flow_run_id": "0-1"}
    with open_comparison(KEY, "comparison", tags) as parent:
        waiting = replace(row("fast"), mlflow_run_id=None, unsent="ab" * 16)
        comparison(waiting).write(report)
        assert not close(parent, report, waiting), "a run of a configuration is still to be sent"
        assert not has_comparison(report)
        comparison(row("fast")).write(report)
        monkeypatch.setenv(ADDRESS, absent_server)
        assert not close(parent, report)
    assert has_comparison(report), "a store that does not answer is not asked to conclude"
    monkeypatch.delenv(ADDRESS)
    assert sync() == (1, 0) and mlflow.get_run(parent).data.tags["best"] == "fast"
    assert not has_comparison(report), "children and champion are not kept for later"
    assert close(parent, report) and has_comparison(report)
    found = mlflow.get_run(parent)
    assert found.info.status == "FINISHED" and found.data.tags[CHAMPION]
    assert tags.items() <= found.data.tags.items(), "they lead to what it is of"
    comparison(row("faster")).write(report)
    assert not has_comparison(report), "it is another one"


def test_a_comparison_that_does_not_come_to_its_end_is_no_running_one(mlflow_store):
    for error, status in ((ValueError, "FAILED"), (KeyboardInterrupt, "KILLED")):
        with pytest.raises(error), open_comparison(KEY, "comparison") as parent:
            raise error
        assert mlflow.get_run(parent).info.status == status


@pytest.mark.slow
def test_a_comparison_that_was_killed_is_no_running_one_when_the_next_begins(mlflow_store):
    killed = run_python(KILLED, ends_with=-signal.SIGKILL).stdout.split()[-1]
    assert mlflow.get_run(killed).info.status == "RUNNING"
    with open_comparison(KEY, "comparison") as first, open_comparison(KEY, "comparison"):
        assert mlflow.get_run(killed).info.status == "KILLED"
        assert mlflow.get_run(first).info.status == "RUNNING", "its process is alive"
    assert not list((store_home() / OPEN).iterdir())


@pytest.mark.slow
def test_a_configuration_whose_run_is_gone_keeps_nobody_else_from_being_a_child(
    trained, report, capsys
):
    with open_comparison(KEY, "comparison") as parent:
        rows = row("fast", mlflow_run_id=trained), row("gone", mlflow_run_id="0" * 32)
        close(parent, report, *rows, promotion="asked for")
    run, (child,) = mlflow.get_run(parent), find_children(parent)
    assert run.info.status == "FINISHED"
    assert "MLflow has no model of gone" in run.data.tags[CHAMPION]
    assert child.data.tags["reused_run_id"] == trained
    assert {"train/loss", "throughput/speedup_vs_naive"} <= {*child.data.metrics}
    assert "cannot be written" not in capsys.readouterr().out


def test_pages_are_linked_at_the_address_that_browsers_know(mlflow_store, monkeypatch):
    with open_comparison(KEY, "comparison") as parent:
        assert run_urls(parent) is None, "a file has no pages"
        run = mlflow.get_run(parent)
    monkeypatch.setattr(mlflow, "get_run", lambda _: run)
    monkeypatch.setattr(mlflow, "get_tracking_uri", lambda: "http://mlflow:5000")
    runs = f"http://mlflow:5000/#/experiments/{run.info.experiment_id}/runs"
    half = "workflowType=machine_learning"  # not traces
    page, listed = run_urls(parent)
    assert page == f"{runs}/{parent}?{half}"
    assert unquote(listed) == (
        f"{runs}?searchFilter=tags.`mlflow.parentRunId` = '{parent}'"
        f"&orderByKey=metrics.`throughput/speedup_vs_naive`&orderByAsc=false&{half}"
    )
    monkeypatch.setenv(UI_URL, "https://runs.example/mlflow/")
    assert all(page.startswith("https://runs.example/mlflow/#/") for page in run_urls(parent))


def test_what_the_project_measures_is_added_to_the_trainings_run_whose_lineage_stays(
    trained, absent_server, monkeypatch
):
    monkeypatch.setenv(FLOW_RUN, "another")
    monkeypatch.setenv(ADDRESS, absent_server)
    measure(trained, 80.0)
    monkeypatch.delenv(ADDRESS)
    assert measure(trained, 5.0) == trained
    assert sync() == (1, 0), "a measurement that was kept replaces none that was made later"
    run = mlflow.get_run(trained)
    assert run.data.tags["prefect.flow_run_id"] == "the-training"
    assert run.data.tags["verdict"] == "stall of 5.0"
    assert run.data.metrics == {"train/loss": 1.0, "input/stall_pct": 5.0}
    assert run.info.status == "FINISHED" and not list_models(run)
    history = mlflow.MlflowClient().get_metric_history(trained, "input/stall_pct")
    assert sorted(one.value for one in history) == [5.0, 80.0]


def test_what_a_run_with_changes_measures_again_is_in_a_copy_of_its_own(
    trained, report, monkeypatch
):
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
    other = measure(trained, 9.0)
    assert other not in (copy, trained)
    assert measure(other, 5.0) == other, "what it has made itself it adds to"
    with open_comparison(KEY, "comparison") as parent:
        monkeypatch.setenv(PARENT_RUN, parent)
        compared = measure(trained, 6.0)
        close(parent, report, row("fast", mlflow_run_id=trained))
    (child,) = find_children(parent)
    assert child.info.run_id == compared and child.info.status == "FINISHED"
    assert child.data.metrics["throughput/speedup_vs_naive"] == 1
    assert child.data.metrics["input/stall_pct"] == 6
    assert "throughput/speedup_vs_naive" not in mlflow.get_run(trained).data.metrics


@pytest.mark.slow
@pytest.mark.parametrize("away", [False, True])
def test_a_search_is_a_run_with_a_child_for_each_that_raced(
    mlflow_store, absent_server, tmp_path, monkeypatch, away
):
    SEARCH.write(tmp_path)
    if away:
        monkeypatch.setenv(ADDRESS, absent_server)
    run_id = record(replace(KEY, pipeline="tuning"), SEARCH, tmp_path)
    if away:
        monkeypatch.delenv(ADDRESS)
        assert run_id is None and sync() == (1, 0)
    (run,) = find_runs("tags.headline LIKE 'tuned%'")
    run_id, tags = run.info.run_id, run.data.tags
    assert (tags["headline"], tags["mlflow.note.content"]) == (SEARCH.sentence, to_markdown(SEARCH))
    kept = [one.path for one in mlflow.MlflowClient().list_artifacts(run_id)]
    assert kept == ["tune.json", "tune.png"]
    (child,) = find_children(run_id)
    assert child.info.run_name == "tuning/stream"
    assert child.data.params == {"read": "shards", "map.parallel": "2", "sampling._m_": "5"}
    assert child.data.metrics["tuning/examples_per_s"] == 900.0
    assert (child.data.tags["dropped"], child.data.tags["chosen"]) == (RACED.dropped, "true")
    assert child.info.status == "FINISHED"


def test_children_that_are_there_are_not_added_again_and_one_that_is_refused_stops_no_other(
    mlflow_store, capsys
):
    odd, child = ({"params": {}, "metrics": {it: 1.0}, "tags": {}} for it in ("no/name?", "a"))
    with Recorder(KEY) as recorder:
        recorder.add_children({"odd": odd, "first": child})
    assert "does not accept children odd, first" in capsys.readouterr().out
    with Recorder(KEY, run_id=recorder.run_id) as again:
        again.add_children({"first": child, "second": child})
    ended = sorted((one.info.run_name, one.info.status) for one in find_children(again.run_id))
    assert ended == [("first", "FINISHED"), ("odd", "FAILED"), ("second", "FINISHED")]
