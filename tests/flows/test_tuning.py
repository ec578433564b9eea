"""The flow of a search: it prepares the data, searches in the run's workspace, and says in one
paragraph what it cannot do.
"""

from __future__ import annotations

import re

import pytest
from project import run

from flows.tuning import list_options, tuning
from throughline.tuning.budgets import Budgets, read_budgets

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
