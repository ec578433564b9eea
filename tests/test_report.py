"""The report ranks only what differs by more than the machine's own drift, and compares nothing unlike."""

from __future__ import annotations

import pytest

from tasks.errors import MissingInput, UnequalConfigurations
from tasks.report import _check_equal, drift_pct, headline, report, tied
from tasks.stage import Layout


def row(name, train, model, verdict="compute-bound", stall=5.0):
    return {"pipeline": name, "train_examples_per_s": train, "model_examples_per_s": model, "verdict": verdict, "stall_pct": stall}


def test_what_differs_by_less_than_the_drift_is_tied():
    rows = [row("naive", 50, 100, "input-bound", 50), row("a", 95, 105), row("b", 99, 100), row("c", 80, 101)]
    assert drift_pct(rows) == pytest.approx(100 * 5 / 100.5)
    assert tied(rows) == ["a", "b"]
    assert headline(rows) == "a and b (tied) train up to 2.0× as fast as naive; training is compute-bound, nothing more to gain from input."


def test_a_clear_winner_stands_alone():
    rows = [row("naive", 50, 100, "input-bound", 50), row("best", 99, 101, "slightly input-bound", 12)]
    assert headline(rows) == "best trains 2.0× as fast as naive; training is slightly input-bound, 12 % of a step is still lost to input."


def test_unlike_work_is_not_compared():
    results = {name: {"input": {"equality": {"digest": digest}}} for name, digest in (("a", "00aa"), ("b", "00bb"))}
    with pytest.raises(UnequalConfigurations, match="a: 00aa; b: 00bb"):
        _check_equal(results)


def test_a_configuration_without_results_is_named(tmp_path):
    with pytest.raises(MissingInput, match=r"plan\.json.*run `dvc repro`"):
        report(["naive"], Layout(tmp_path), tmp_path / "report")
