"""Two reports next to each other: `whowaits.compare`."""

from __future__ import annotations

import json

import pytest

from whowaits.cli import main
from whowaits.compare import compare


def report(path, **values):
    given = {
        "verdict": "input-bound", "stall_pct": 75.0, "step_ms": 40.0, "model_ms": 10.0,
        "examples": 32, **values,
    }  # fmt: skip
    path.write_text(json.dumps(given))
    return path


@pytest.mark.parametrize(
    ("after", "said"),
    [
        ({"step_ms": 20.0, "verdict": "undecided"}, "the second is 2.00 times as fast"),
        ({"step_ms": 39.0}, "their steps differ by less than two runs do (1.03 ×)"),
        ({"model_ms": 15.0}, "the model alone takes 1.50 times as long"),
        ({"model_ms": None}, "the model alone was not timed in both"),
        ({"examples": 64}, "their batches differ in size"),
    ],
)
def test_what_differs_is_said_only_where_the_machine_was_the_same(tmp_path, after, said):
    first, second = report(tmp_path / "a.json"), report(tmp_path / "b.json", **after)
    lines = compare(first, second)
    assert said in lines[-1]
    assert lines[0].split() == ["a.json", "b.json"] and "40.00 ms" in lines[3]


def test_what_is_no_report_is_refused(tmp_path, capsys):
    (tmp_path / "a.json").write_text("[]")
    first = str(report(tmp_path / "b.json"))
    for files in ([first], [first, str(tmp_path / "a.json")], [first, str(tmp_path / "c.json")]):
        assert main(["compare", *files]) == 2
        assert capsys.readouterr().err.startswith("whowaits: ")
    assert main(["compare", first, first]) == 0
