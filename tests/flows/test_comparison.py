"""What a flow concludes from its results: MLflow has all of it before it counts as concluded, and
results are read while no other run in the folder changes them.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import mlflow
import pytest

from flows.servers.services import find_free_port
from tests.support.project import experiment_of, run
from tests.support.rows import comparison, row
from throughline.tracking.comparison_run import (
    CHAMPION,
    close_comparison,
    has_comparison,
    open_comparison,
)
from throughline.tracking.experiments import RunKey
from throughline.tracking.store import ADDRESS

KEY = RunKey(dataset="photos", pipeline="comparison", data_digest="0123456789")


@pytest.fixture
def report(mlflow_store) -> Path:
    """Where a report is."""
    (mlflow_store / "report").mkdir()
    comparison(row("fast")).write(mlflow_store / "report")
    return mlflow_store / "report"


def close(parent: str, report: Path, *rows) -> bool:
    found = comparison(*rows or (row("fast"),))
    return close_comparison(parent, KEY, found, report, note="", promotion="none")


@pytest.mark.integration
def test_mlflow_knows_of_which_report_it_has_all(report):
    assert not has_comparison(report)
    tags = {"dvc.experiment": "tuned", "prefect.flow_run_id": "0-1"}
    with open_comparison(KEY, "comparison", tags) as parent:
        assert not has_comparison(report), "it may be cut here"
        assert close(parent, report)
    assert has_comparison(report)
    found = mlflow.get_run(parent)
    assert found.info.status == "FINISHED" and found.data.tags[CHAMPION]
    assert tags.items() <= found.data.tags.items(), "they lead to what it is of"
    comparison(row("faster")).write(report)
    assert not has_comparison(report), "it is another one"


@pytest.mark.integration
def test_of_a_report_of_which_mlflow_has_a_part_it_does_not_say_so(report, monkeypatch):
    with open_comparison(KEY, "comparison") as parent:
        waiting = replace(row("fast"), mlflow_run_id=None, unsent="ab" * 16)
        assert not close(parent, report, waiting), "a run of a configuration is still to be sent"
        assert not has_comparison(report)
        monkeypatch.setenv(ADDRESS, f"http://127.0.0.1:{find_free_port()}")
        assert not close(parent, report)
    assert has_comparison(report), "a store that does not answer is not asked to conclude"
    monkeypatch.delenv(ADDRESS)
    assert not has_comparison(report)


@pytest.mark.slow
def test_a_comparison_that_was_cut_before_mlflow_had_it_is_concluded_by_the_next(first):
    """As one of which `dvc repro` by hand has made the report."""
    folder, _ = first
    mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")

    def find_parents():
        return mlflow.search_runs(
            experiment_names=[experiment_of(folder)],
            filter_string="tags.pipeline = 'comparison'",
            output_format="list",
        )

    concludes = []
    for gone in (False, False, True):
        for parent in find_parents() if gone else ():
            mlflow.MlflowClient().delete_run(parent.info.run_id)
        said = run(folder, "python", "-m", "flows.comparison")
        assert "Running stage" not in said
        concludes.append(len(re.findall(r"^champion: ", said, re.MULTILINE)))
    assert concludes == [1, 0, 1]
    for parent in find_parents():
        assert parent.data.tags["headline"] and parent.data.tags["prefect.flow_run_id"]
        assert "dvc.experiment" not in parent.data.tags, "it had no changes"


READING = """
import sys
from pathlib import Path
from flows.{flow} import command
from flows.run.locks import lock_path
from throughline.results.base import read_value
from throughline.shared.file_lock import hold_if_free

lock, free = lock_path(Path.cwd(), "project"), set()

def look(frame, event, argument):
    if event == "call" and frame.f_code is read_value.__code__:
        with hold_if_free(lock, "a test") as held:
            free.add(held is not None)

sys.setprofile(look)
command(pipeline={pipeline!r})
print("free", free)
"""  # of a flow that asks whether others could change each result while it is read


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flow", "pipeline"),
    [("training", "naive"), ("comparison", ["naive"]), ("comparison", ["naive", "optimized"])],
    ids=["a training", "a comparison of some", "a comparison"],
)
def test_results_are_read_while_no_other_run_changes_them(first, flow, pipeline):
    folder: Path = first[0]
    said = run(folder, "python", "-c", READING.format(flow=flow, pipeline=pipeline))
    assert "free {False}" in said
