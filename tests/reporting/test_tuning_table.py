"""The table of a search: every candidate, with why it was dropped."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console

from tests.support.made_up import made_up
from throughline.reporting.tuning_table import (
    COLUMNS,
    NOT_RACED,
    to_markdown,
    to_records,
    to_terminal,
)
from throughline.results.tuning import TunedCandidate, TuningResult

ROW = replace(
    made_up(TunedCandidate),
    name="stream",
    predicted_examples_per_s=1234.4,
    examples_per_s=1000.0,
    seconds=40.0,
    seconds_low=38.0,
    seconds_high=43.0,
    dropped="",
)
UNRACED = replace(
    ROW, name="other", examples_per_s=None, seconds=None, ram_mib=None, dropped=NOT_RACED
)
REFUSED = replace(UNRACED, name="arrays", dropped="needs 9.0 GiB of memory | 8.0 GiB are allowed")
FOUND = replace(
    made_up(TuningResult), candidates=[ROW, UNRACED, REFUSED], sentence="tuned: nothing beats it"
)


def test_a_record_has_every_column():
    first, second, _ = to_records(FOUND)
    assert tuple(first) == COLUMNS
    assert first["predicted [examples/s]"] == "1,234"
    assert (first["training [s]"], first["from, to [s]"]) == ("40.0", "38, 43")
    assert second["measured [examples/s]"] == second["RAM [MiB]"] == "–"


def test_a_terminal_shows_who_raced_and_why_others_could_not():
    console = Console(width=160)
    with console.capture() as shown:
        console.print(to_terminal(FOUND))
    assert "stream" in shown.get()
    assert "needs 9.0 GiB of memory" in shown.get()
    assert "and 1 form that was not raced" in shown.get()


def test_markdown_holds_the_sentence_and_a_line_for_each():
    lines = to_markdown(FOUND).splitlines()
    assert lines[0] == FOUND.sentence
    assert len(lines) == 2 + 2 + 2, "a form that was not needed is left out"
    assert {line.replace("\\|", "").count("|") for line in lines[2:]} == {len(COLUMNS) + 1}
