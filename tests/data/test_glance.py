"""The data at a glance, of each kind of data and target."""

import pytest

from tests.support.csv_tables import write
from throughline.data.glance import read_problems, tabulate, tabulate_columns, to_rows, to_text
from throughline.data.ingest import ingest
from throughline.settings import DataSettings

CLASSES, RANGE = ["class", "train", "validation", "test"], ["column", "lowest", "median", "highest"]
OF_TEXTS = [*CLASSES, "least bytes", "median bytes", "most bytes", "first"]
RANK = ["rank", "number", "0", "39.5", "79", "80", "0"]
TABLE = {"source": "table", "missing": {"size": "median"}}
TEXTS = {"source": "text_table", "text_column": "note"}
KINDS = {  # settings, heading and first row of the table of all, and rows of that of the columns
    "classes": (
        {**TABLE, "ignore": ["note", "rank"]},
        [*CLASSES, "first"],
        "even",
        [
            ["size", "number", "0.125", "5.375", "9.875", "70", "10"],
            ["town", "category", "", "", "", "3", "0"],
            ["kind", "label", "", "", "", "2", "0"],
            ["note", "ignored", "", "", "", "80", "0"],
        ],
    ),
    "numbers": (
        {**TABLE, "label_column": "rank", "label_kind": "number", "ignore": ["note"]},
        RANGE,
        "label 1",
        [["rank", "label", "", "", "", "80", "0"]],
    ),
    "series": (
        {"source": "time_series", "ignore": ["town", "kind", "note"], "numeric": ["rank"]},
        RANGE,
        "rank",
        [RANK],
    ),
    "texts with a column": ({**TEXTS, "numeric": ["rank"]}, OF_TEXTS, "even", [RANK]),
    "texts alone": (TEXTS, OF_TEXTS, "even", None),
}


@pytest.mark.parametrize(("settings", "heading", "first", "columns"), KINDS.values(), ids=KINDS)
def test_each_kind_of_data_is_tabled_with_its_columns(settings, heading, first, columns, tmp_path):
    rows = [
        [n / 8 if n % 8 else "", "abc"[n % 3], ("odd", "even")[n % 5 > 0], f"word {n}", n]
        for n in range(80)
    ]
    path = write(tmp_path, "size,town,kind,note,rank", rows)
    settings = {"path": str(path), "label_column": "kind", **settings}
    manifest = ingest(DataSettings(**settings), tmp_path / "manifest")
    table = tabulate(manifest)
    shown = to_rows(table)
    assert shown[0] == heading and shown[1][0] == first
    kept = (tmp_path / "manifest" / "glance.md").read_text().splitlines()
    assert kept[0].split(" | ") == [f"| {heading[0]}", *heading[1:-1], f"{heading[-1]} |"]
    problems = [f"- {problem}" for problem in read_problems(manifest.folder)]
    said = [f"| {' | '.join(row)} |" for row in shown[1:]] + (problems and ["", *problems])
    assert kept[2 : 2 + len(said)] == said
    assert to_text(table)[1].split()[0] == first.split()[0]
    if heading == RANGE:
        assert shown[1][1:] == ["0", "39.5", "79"]
    else:
        assert sum(map(int, shown[1][1:4])) == 64, "4 of 5 rows are even"
    of_columns = tabulate_columns(manifest)
    if columns is None:
        assert of_columns is None and not any("| column |" in line for line in kept)
        return
    assert of_columns is not None
    named, *shown = to_rows(of_columns)
    assert named == ["column", "kind", "lowest", "median", "highest", "distinct", "missing"]
    for row in columns:
        assert row in shown and f"| {' | '.join(row)} |" in kept
