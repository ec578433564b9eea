"""The tables of a comparison and of a search have the same columns and words wherever shown."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from rich.console import Console

from flows.orchestration.artifacts import to_markdown
from tests.support.made_up import made_up
from tests.support.rows import comparison, row
from throughline.reporting import tuning_table
from throughline.reporting.table import ABSENT, comparison_table, to_records, to_text
from throughline.results.tuning import TunedCandidate, TuningResult

ROWS = (
    row("naive", 50.0, 50, verdict="input-bound", test_metric=0.75),
    row(
        "optimized", 100.0, 4, wait_ms_mean=None, speedup_vs_naive=2.0,
        train_examples_per_s=12345.6,
        speedup_vs_naive_low=1.9, speedup_vs_naive_high=2.1, test_metric=0.8125,
    ),
)  # fmt: skip


@pytest.fixture
def table():
    return comparison_table(comparison(*ROWS))


def test_values_are_written_as_people_read_them(table):
    naive, optimized = to_records(table)
    assert optimized["its epochs [examples/s]"] == "12,346"
    assert optimized["training [examples/s]"] == "100 (98 to 102)"
    assert optimized["× naive"] == "2.00 (1.90 to 2.10)" and naive["× naive"] == "1.00"
    assert optimized["stall [%]"] == "4 (2 to 6)"
    assert optimized["wait [ms]"] == ABSENT
    assert optimized["accuracy [test]"] == "0.8125 (validation 0.9000)"


def test_on_a_terminal_columns_are_aligned_and_what_is_tied_with_the_fastest_is_marked(table):
    *_, units, naive, optimized = to_text(table).splitlines()
    assert optimized.startswith("optimized *") and naive.startswith("naive  ")
    ends = [match.end() for match in re.finditer(r"examples/s", units)]
    assert len(ends) == 4 and len(units) < 110
    shown = (("50", "100"), ("50", "12,346"), ("400", "400"), ("100", "100"))
    for end, texts in zip(ends, shown, strict=True):
        assert naive[:end].endswith(f" {texts[0]}") and optimized[:end].endswith(f" {texts[1]}")


def test_columns_follow_what_there_is():
    without = comparison_table(comparison(row("naive")))
    assert "× naive" not in [column.heading for column in without.columns], "compared with what?"
    assert "validation" in [column.unit for column in without.columns]
    assert "GPU busy" not in [column.heading for column in without.columns]
    machine = {"gpus": ["a GPU"]}
    busy = row("naive", gpu_utilization_pct_mean=87.4)
    (record,) = to_records(comparison_table(comparison(busy, machine=machine)))
    assert record["GPU busy [%]"] == "87"


def test_in_words_twenty_configurations_fit_into_a_note_of_mlflow():
    cause = "the input pipeline is slower than the model; decoding takes most of the time"
    found = {"cause": cause, "fix": "map: {parallel: 8}"}
    words = to_markdown(comparison(*[row(f"optimized_{number}", **found) for number in range(20)]))
    assert words.count(cause) == 20 and len(words) < 8000


SECONDS = {"seconds": 40.0, "seconds_low": 38.0, "seconds_high": 43.0}
ROW = replace(made_up(TunedCandidate), name="stream", examples_per_s=1000.0, dropped="", **SECONDS)
UNKNOWN = dict.fromkeys(["examples_per_s", "seconds", "ram_mib"])
UNRACED = replace(ROW, name="other", dropped=tuning_table.NOT_RACED, **UNKNOWN)
REFUSED = replace(UNRACED, name="arrays", dropped="needs 9.0 GiB of memory | 8.0 GiB are allowed")
FOUND = replace(
    made_up(TuningResult), candidates=[ROW, UNRACED, REFUSED], sentence="tuned: nothing beats it"
)


def test_a_search_has_every_column_in_records_and_who_raced_or_could_not_on_a_terminal():
    first, second, _ = tuning_table.to_records(FOUND)
    assert tuple(first) == tuning_table.COLUMNS
    assert (first["training [s]"], first["from, to [s]"]) == ("40.0", "38.0, 43.0")
    assert second["measured [examples/s]"] == second["RAM [MiB]"] == "–"
    console = Console(width=160)
    with console.capture() as shown:
        console.print(tuning_table.to_terminal(FOUND))
    for said in ("stream", "needs 9.0 GiB of memory", "and 1 form that was not raced"):
        assert said in shown.get()


def test_the_markdown_of_a_search_holds_the_sentence_and_a_line_for_each():
    lines = tuning_table.to_markdown(FOUND).splitlines()
    assert lines[0] == FOUND.sentence
    assert len(lines) == 2 + 2 + 2, "a form that was not needed is left out"
    bars = {line.replace("\\|", "").count("|") for line in lines[2:]}
    assert bars == {len(tuning_table.COLUMNS) + 1}
