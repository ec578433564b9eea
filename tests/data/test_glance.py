"""The data at a glance, of each kind of target."""

from __future__ import annotations

import pytest

from tests.support.csv_tables import write
from throughline.data.glance import read_problems, tabulate, tabulate_columns, to_rows, to_text
from throughline.data.ingest import ingest
from throughline.settings import DataSettings

RANGE = ["column", "lowest", "median", "highest"]
NO_WORDS = {"ignore": ["words"]}
LENGTHS = ["least bytes", "median bytes", "most bytes"]


@pytest.mark.parametrize(
    ("settings", "heading", "first"),
    [
        (
            {"source": "table", "label_column": "kind", **NO_WORDS},
            ["class", "train", "validation", "test", "first"],
            "odd",
        ),
        (
            {"source": "table", "label_column": "size", "label_kind": "number", **NO_WORDS},
            RANGE,
            "label 1",
        ),
        ({"source": "time_series", "ignore": ["kind", "words"]}, RANGE, "size"),
        (
            {"source": "text_table", "text_column": "words", "label_column": "kind"},
            ["class", "train", "validation", "test", *LENGTHS, "first"],
            "odd",
        ),
    ],
    ids=["classes", "numbers", "series", "texts"],
)
def test_each_kind_of_data_has_a_table_that_is_kept_with_what_was_left_out(
    tmp_path, settings, heading, first
):
    rows = [[row / 8, row % 7, f"word {row}", ("even", "odd")[row % 5 > 0]] for row in range(60)]
    path = write(tmp_path, "size,other,words,kind", rows)
    manifest = ingest(DataSettings(path=str(path), **settings), tmp_path / "manifest")
    table = tabulate(manifest)
    shown = to_rows(table)
    assert shown[0] == heading and shown[1][0] == first
    kept = (tmp_path / "manifest" / "glance.md").read_text().splitlines()
    assert kept[0].split(" | ") == [f"| {heading[0]}", *heading[1:-1], f"{heading[-1]} |"]
    problems = [f"- {problem}" for problem in read_problems(manifest.folder)]
    said = [f"| {' | '.join(row)} |" for row in shown[1:]] + (problems and ["", *problems])
    assert kept[2 : 2 + len(said)] == said
    assert to_text(table)[1].split()[0] == first.split()[0]
    if "highest" in heading:
        assert shown[1][1:] == ["0", "3.6875", "7.375"]
    else:
        counts = [int(number) for number in shown[1][1:4]]
        assert sum(counts) == 48, "4 of 5 rows are odd"


COLUMNS = {
    "a table": (
        {"source": "table", "missing": {"size": "median"}, "ignore": ["note", "rank"]},
        [
            ["size", "number", "0.125", "5.375", "9.875", "70", "10"],
            ["town", "category", "", "", "", "3", "0"],
            ["kind", "label", "", "", "", "2", "0"],
            ["note", "ignored", "", "", "", "80", "0"],
        ],
    ),
    "a series": (
        {"source": "time_series", "ignore": ["town", "kind", "note"], "numeric": ["rank"]},
        [["rank", "number", "0", "39.5", "79", "80", "0"]],
    ),
    "texts with a column": (
        {"source": "text_table", "text_column": "note", "numeric": ["rank"]},
        [["rank", "number", "0", "39.5", "79", "80", "0"]],
    ),
    "texts alone": ({"source": "text_table", "text_column": "note"}, None),
}


@pytest.mark.parametrize("case", COLUMNS)
def test_columns_are_shown_with_kind_range_and_missing_cells(case, tmp_path):
    settings, expected = COLUMNS[case]
    kinds = ("odd", "even")
    rows = [
        [row / 8 if row % 8 else "", "abc"[row % 3], kinds[row % 5 > 0], f"word {row}", row]
        for row in range(80)
    ]
    path = write(tmp_path, "size,town,kind,note,rank", rows)
    settings = {"label_column": "kind", **settings}
    manifest = ingest(DataSettings(path=str(path), **settings), tmp_path / "manifest")
    table = tabulate_columns(manifest)
    kept = (tmp_path / "manifest" / "glance.md").read_text()
    if expected is None:
        assert table is None and "| column |" not in kept
        return
    assert table is not None
    heading, *shown = to_rows(table)
    assert heading == ["column", "kind", "lowest", "median", "highest", "distinct", "missing"]
    by_name = {row[0]: row for row in shown}
    for row in expected:
        assert by_name[row[0]] == row
        assert f"| {' | '.join(row)} |" in kept
