"""The flow of a search: it prepares the data, searches in the run's workspace, and says in one
paragraph what it cannot do.
"""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest
from answers import ANSWER
from project import SMALL, run

from flows.tuning import list_options, tuning
from throughline.config.params import load_params
from throughline.shared.errors import Untunable
from throughline.shared.layout import Layout
from throughline.tuning.budgets import Budgets, read_budgets
from throughline.tuning.key import FOLDER, as_written, digest_question

pytestmark = pytest.mark.timeout(900)


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


def test_several_hosts_are_refused_before_anything_is_prepared(monkeypatch):
    cluster = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    with pytest.raises(Untunable, match="TF_CONFIG names several workers"):
        tuning.fn()


@pytest.mark.slow
def test_a_search_with_changes_leaves_params_yaml_and_one_with_short_epochs_is_refused(first):
    folder, _ = first
    before = (folder / "params.yaml").read_bytes()
    refused = run(folder, "python", "-m", "flows.tuning", "--time", "1min", code=2)
    assert "an epoch has 4 steps, and at least 20 are needed" in refused
    assert "Traceback" not in refused
    command = ["python", "-m", "flows.tuning", "--time", "1min", "--epochs", "3", "--apply"]
    # A model that takes all the time ends a search after its first heat.
    changes = ["--set", "batch_size=4", "--set", "model={name: emulated, options: {step_ms: 30}}"]
    refused = run(folder, *command, *changes, code=2)
    assert "leave --apply out" in refused and "fetch" not in refused, "nothing has started"
    output = run(folder, *command[:-1], *changes)
    assert "Traceback" not in output
    assert re.search(r"^✓ tune ", output, re.MULTILINE)
    assert re.search(r"^ ?naive +", output, re.MULTILINE), "a line of the table"
    assert output.splitlines()[-1].startswith("tuned: ")
    assert (folder / "params.yaml").read_bytes() == before


@pytest.mark.slow
def test_what_is_found_is_shown_and_added_also_where_it_cannot_be_added(first):
    folder, _ = first
    path = folder / "params.yaml"
    answer = replace(ANSWER, mlflow_run_id=None)
    asked = as_written(load_params(path), SMALL)
    key = digest_question(asked, Layout(folder), read_budgets(), own_files=[])
    answer.write(folder / FOLDER / key)
    output = run(folder, "python", "-m", "flows.tuning", "--apply", own_prefect=True)
    assert output.splitlines()[-1] == answer.sentence
    assert load_params(path).pipelines["tuned"].prefetch == 7
    assert "train@tuned" in run(folder, "dvc", "status")
    shown = {"tuning": "table", "tuning-report": "markdown", "tuning-picture": "image"}
    assert shown.items() <= dict(list_artifacts(folder)).items()
    path.write_text(path.read_text().replace("prefetch: 7", "prefetch: 8"))
    refused = run(folder, "python", "-m", "flows.tuning", "--apply", code=2, own_prefect=True)
    assert answer.sentence in refused
    assert "pipelines.tuned is there and says something else" in " ".join(refused.split())
    assert list_artifacts(folder).count(("tuning", "table")) == 2


def list_artifacts(folder):
    """Keys and kinds of what the runs of a project have shown in Prefect."""
    with closing(sqlite3.connect(folder.parent / "home" / "prefect" / "prefect.db")) as database:
        return database.execute("SELECT key, type FROM artifact").fetchall()
