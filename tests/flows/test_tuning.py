"""The flow of a search prepares the data and searches in the run's workspace, or says why not."""

import json
import re
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from flows.run.parameters import Changes
from flows.tuning import list_options, tuning
from tasks.tune import find_key
from tests.support.answers import ANSWER
from tests.support.project import SMALL, run, write_params
from tests.support.shared_servers import shared_prefect
from throughline.config.params import load_params
from throughline.shared.errors import Untunable
from throughline.shared.layout import Layout
from throughline.tuning.budgets import Budgets, read_budgets
from throughline.tuning.key import FOLDER

pytestmark = pytest.mark.timeout(900)
# A model that takes all the time ends a search after its first phase, of few processes.
SHORT_SEARCH = """
batch_size: 4
model!: {name: emulated, options: {step_ms: 60}}
pipelines!: {naive: {read: shards}}
"""


def test_a_flow_hands_its_budgets_to_the_command():
    budgets = Budgets(ram="8GiB", epochs=30, allow=("approximate", "unordered"))
    options = list_options(budgets)
    assert options == ["--ram=8GiB", "--epochs=30", "--allow=approximate", "--allow=unordered"]
    assert list_options(read_budgets()) == []


def test_the_form_has_a_field_for_each_budget():
    schema = tuning.parameters.model_dump()
    budgets = schema["definitions"]["Budgets"]["properties"]
    assert budgets.keys() == Budgets.model_fields.keys()
    assert budgets["time"]["default"] == "5min"
    assert all(field["description"] for field in budgets.values())


def test_what_cannot_be_searched_or_applied_is_refused_before_anything_is_prepared(
    tmp_path, monkeypatch
):
    write_params(tmp_path, SMALL)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Untunable, match=r"because it edits params\.yaml: leave it out"):
        tuning.fn(changes=Changes(batch_size=4), apply=True)
    cluster = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    with pytest.raises(Untunable, match="TF_CONFIG"):
        tuning.fn()


@pytest.mark.slow
def test_a_search_with_changes_shows_what_it_finds_and_leaves_params_yaml(first):
    folder, _ = first
    before = (folder / "params.yaml").read_bytes()
    (folder / "changes.yaml").write_text(SHORT_SEARCH)
    command = ["python", "-m", "flows.tuning", "--time", "1min", "--epochs", "3"]
    output = run(folder, *command, "--overlay", "changes.yaml")
    assert "Traceback" not in output
    assert re.search(r"^✓ tune ", output, re.MULTILINE)
    assert re.search(r"^ ?naive +", output, re.MULTILINE), "a line of the table"
    assert output.splitlines()[-1].startswith("tuned: ")
    assert (folder / "params.yaml").read_bytes() == before


@pytest.mark.slow
def test_what_is_found_is_shown_and_added_also_where_it_cannot_be_added(first):
    folder, _ = first
    path, before = folder / "params.yaml", list_artifacts()
    answer = replace(ANSWER, mlflow_run_id=None)
    key = find_key(load_params(path), Layout(folder), read_budgets())
    answer.write(folder / FOLDER / key)
    output = run(folder, "python", "-m", "flows.tuning", "--apply")
    assert output.splitlines()[-1] == answer.sentence
    assert load_params(path).pipelines["tuned"].prefetch == 7
    assert "train@tuned" in run(folder, "dvc", "status")
    shown = {("tuning", "table"), ("tuning-report", "markdown"), ("tuning-picture", "image")}
    assert shown <= {*list_artifacts()[len(before) :]}
    path.write_text(path.read_text().replace("prefetch: 7", "prefetch: 8"))
    refused = run(folder, "python", "-m", "flows.tuning", "--apply", code=2)
    assert answer.sentence in refused
    assert "pipelines.tuned exists with other settings" in " ".join(refused.split())
    assert list_artifacts()[len(before) :].count(("tuning", "table")) == 2


def list_artifacts():
    """Keys and kinds of what flows have shown in the Prefect that tests share, in their order."""
    file = shared_prefect.folder / "home" / "prefect.db"
    if not file.exists():
        return []
    with closing(sqlite3.connect(file)) as database:
        return database.execute("SELECT key, type FROM artifact ORDER BY created").fetchall()
