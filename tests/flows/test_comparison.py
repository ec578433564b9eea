"""What a flow concludes from its results: MLflow has all of it before it counts as concluded, and
results are read while no other run in the folder changes them.
"""

from __future__ import annotations

import re
from pathlib import Path

import mlflow
import pytest
from project import experiment_of, run
from rows import comparison, row

from flows.comparison import CONCLUDED, conclude, is_concluded
from flows.servers.services import find_free_port
from throughline.shared.layout import Layout
from throughline.tracking.comparison_run import CHAMPION, open_comparison
from throughline.tracking.experiments import RunKey

KEY = RunKey(dataset="photos", pipeline="comparison", data_digest="0123456789")


@pytest.fixture
def layout(mlflow_store) -> Layout:
    """Where a report is."""
    (mlflow_store / "report").mkdir()
    comparison(row("fast")).write(mlflow_store / "report")
    return Layout(mlflow_store)


@pytest.mark.integration
def test_a_report_counts_as_concluded_once_mlflow_has_all_of_it(layout):
    assert not is_concluded(layout)
    tags = {"dvc.experiment": "tuned", "prefect.flow_run_id": "0-1"}
    with open_comparison(KEY, "comparison", tags) as parent:
        assert not is_concluded(layout), "it may be cut here"
        conclude(parent, KEY, comparison(row("fast")), layout, promotion="none")
    assert is_concluded(layout)
    found = mlflow.get_run(parent)
    assert found.info.status == "FINISHED" and found.data.tags[CHAMPION]
    assert tags.items() <= found.data.tags.items(), "they lead to what it is of"
    comparison(row("faster")).write(layout.report)
    assert not is_concluded(layout), "it is another one"
    (layout.report / "summary.json").unlink()
    assert not is_concluded(layout)


@pytest.mark.integration
def test_a_report_of_which_the_store_has_a_part_is_not_concluded(layout, monkeypatch, capsys):
    with open_comparison(KEY, "comparison") as parent:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{find_free_port()}")
        conclude(parent, KEY, comparison(row("fast")), layout, promotion="earned")
    assert not is_concluded(layout)
    assert "the same command does that later" in capsys.readouterr().out


@pytest.mark.slow
def test_a_comparison_that_was_cut_before_mlflow_had_it_is_concluded_by_the_next(first):
    """As one of which `dvc repro` by hand has made the report."""
    folder, _ = first
    concludes = []
    for mark in (None, None, "of an earlier report"):
        if mark:
            (folder / CONCLUDED).write_text(mark)
        said = run(folder, "python", "-m", "flows.comparison")
        assert "Running stage" not in said
        concludes.append(len(re.findall(r"^champion: ", said, re.MULTILINE)))
    assert concludes == [1, 0, 1]
    mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
    parents = mlflow.search_runs(
        experiment_names=[experiment_of(folder)],
        filter_string="tags.pipeline = 'comparison'",
        output_format="list",
    )
    assert len(parents) == 2
    for parent in parents:
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
