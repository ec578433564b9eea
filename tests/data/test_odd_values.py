"""Numbers that stand for missing ones, thousands, totals, leaks and groups of rows."""

import re

import pandas as pd
import pytest
from pydantic import ValidationError

from tests.support.csv_tables import scan, write
from tests.support.small_data import write_files
from throughline.data.class_names import find_unlabeled
from throughline.data.groups import find_crossing, find_name_groups, read_groups
from throughline.data.ingest import ingest
from throughline.data.tables.tabular import read_table
from throughline.settings import DataSettings
from throughline.shared.errors import UnreadableSource

SENTINEL = "repeats and is unlike all other numbers of x"
SENTINELS = "repeat and are unlike all other numbers of x"
SUM = "named as the sum or mean of other rows"
LEAK = "column x has one label for each of its values"


def noise(row):
    return "ab"[row * 7 % 3 % 2]


def shop(row):
    return f"s{row % 5}"


@pytest.mark.parametrize(
    ("cell", "warning"),
    [
        (lambda row: 999 if row % 5 == 0 else row % 13, f"999 {SENTINEL} (16 rows)"),
        (lambda row: "-200,0" if row % 5 == 0 else f"{row % 13},5", f"-200 {SENTINEL}"),
        (lambda row: -1 if row % 5 == 0 else row % 13, f"-1 {SENTINEL}"),
        (lambda row: (98, 99)[row % 2] if row % 9 < 4 else row % 10, f"98 and 99 {SENTINELS}"),
        (lambda row: (-8, -9)[row % 2] if row % 9 < 4 else 1 + row % 4, f"-9 and -8 {SENTINELS}"),
        (lambda row: (-9999, 9999)[row % 2] if row % 9 < 4 else row % 10, "-9999 and 9999 repeat"),
        (lambda row: -9999 if row in (7, 60) else 20.5 + row % 31, "data.missing_values: [-9999]"),
        (lambda row: "11,2" if row % 9 == 0 else f"0,{row % 13}", ""),
        (lambda row: 24 if row % 9 == 0 else row % 8, ""),  # no code, and not that far
        (lambda row: 3 + row % 7, ""),  # 7, 8 and 9 are next to others
        (lambda row: 500 if row == 7 else row % 13, ""),  # once: a value
        (lambda row: (-1, 0, 1)[row % 4 % 3], ""),
        (lambda row: ("no", "yes")[noise(row) == "b"], LEAK),
        (lambda row: 7 if noise(row) == "b" else row % 6, LEAK),
        (lambda row: ("no", "yes")[row % 2], ""),
        (lambda row: "SUBTOTAL:" if row in (9, 79) else shop(row), "(x: SUBTOTAL:), row 80 (x: "),
        (lambda row: "s1 Total" if row == 20 else shop(row), f"row 21 (x: s1 Total): {SUM}"),
        (lambda row: "Average" if row == 79 else shop(row), f"row 80 (x: Average): {SUM}"),
        (lambda row: "Average" if row == 20 else shop(row), ""),  # a grade, say
        (lambda row: "mean" if row > 77 else shop(row), ""),
        (lambda row: "Colgate Total" if row == 20 else shop(row), ""),
    ],
)
def test_numbers_and_columns_that_say_something_else_are_named(tmp_path, cell, warning):
    rows = [[cell(row), row % 17, noise(row)] for row in range(80)]
    said = " · ".join(scan(write(tmp_path, "x;y;label", rows, delimiter=";")).warnings)
    assert warning in said if warning else not said


def test_classes_in_a_column_each_are_not_learned_from_one_another(tmp_path):
    header = "path, size, a, b, c, hot, x, y, z"
    flags = [[int(row * 7 % 3 == place) for place in range(3)] for row in range(60)]
    rows = [[f"{row}.png", row % 17, *flags[row], row % 2, *flags[row // 2]] for row in range(60)]
    path = write(tmp_path, header, rows)
    for row in rows:
        (tmp_path / row[0]).touch()
    said = "one of the columns a, b, c is 1 in each row: .* names only a; .*ignore: .b, c."
    with pytest.raises(UnreadableSource, match=said):
        scan(path, label_column="a", ignore=["path"])
    assert not scan(path, label_column="a", ignore=["path", "b", "c"]).warnings
    for settings in ({"numeric": ["size", "c"], "ignore": ["path"]}, {"source": "image_table"}):
        found = scan(path, label_column="a", **settings)
        assert [one for one in found.warnings if re.match(said, one)]
    assert not scan(path, label_column="hot", ignore=["path"]).warnings


def test_numbers_to_predict_are_searched_for_marks_of_missing_ones(tmp_path):
    rows = [[-9999 if row in (9, 99, 999) else row % 50 / 8, row % 7] for row in range(4000)]
    found = scan(write(tmp_path, "price,x", rows), label_column="price", label_kind="number")
    assert "-9999 repeats and is unlike all other numbers of price (3 rows)" in found.warnings[0]


@pytest.mark.parametrize(
    ("header", "row", "said"),
    [
        ("fahrenheit,y", lambda n: [n * 7 % 23 * 1.8 + 32, n % 5, n * 7 % 23], "column fahrenheit"),
        ("casual,registered,y", lambda n: [n % 7, n * n % 11, n % 5, n % 7 + n * n % 11],
         "the label can be computed from columns casual and registered; if"),
        ("casual,y", lambda n: [n % 7, n % 5, n % 7 + n * n % 11], ""),
    ],
)  # fmt: skip
def test_columns_that_give_the_number_to_predict_are_named(header, row, said, tmp_path):
    path = write(tmp_path, f"{header},label", [row(number) for number in range(60)])
    warnings = [one for one in scan(path, label_kind="number").warnings if "label" in one]
    assert [one[: len(said)] for one in warnings] == [said] * bool(said)


@pytest.mark.parametrize(
    ("labels", "source", "warned"),
    [
        (["a", "b", "?"], "table", "column label: classes named as if there were no label: ? (20 "),
        (["a", "b", "None"], "arrays", "None (20 examples); data.leave_out: ['None']"),
        (["a", "b", "unknown"], "image_folder", ""),
        (["+", "-"], "table", ""),
        (["nano", "no", "n"], "table", ""),
    ],
)
def test_a_class_named_as_a_missing_label_is_said(labels, source, warned):
    balance = {split: dict.fromkeys(labels, 10) for split in ("train", "test")}
    said = " · ".join(find_unlabeled(balance, DataSettings(source=source, path="x")))
    assert warned in said if warned else not said


def test_a_class_named_as_a_missing_label_stays_one_with_a_warning(tmp_path):
    path = write(tmp_path, "x,label", [[n / 8, "ab?"[n % 3]] for n in range(300)])
    found = ingest(DataSettings(source="table", path=str(path)), tmp_path / "manifest")
    assert found.classes == ("?", "a", "b")
    assert any("no label: ? (100 examples)" in each for each in found.stats["warnings"])


@pytest.mark.parametrize(
    ("marks", "cell", "missing", "unused"),
    [
        (["-200"], "-200.0", 8, []),
        (["NA", "-2e2"], "-200", 8, ["NA"]),
        (["-20"], "-200", 0, ["-20"]),
        (["?"], "?", 8, []),
        (["true"], "1", 0, ["true"]),
        ([-99.9, "NA"], "-99.90", 8, ["NA"]),
        ({"x": ["-200", "?"], "label": ["c"]}, "-200", 8, ["?' is in no cell of x", "c' is"]),
    ],
)
def test_marks_are_compared_by_value_and_said_if_unused(marks, cell, missing, unused, tmp_path):
    rows = [[cell if row % 5 == 0 else row % 13 + 0.5, noise(row)] for row in range(40)]
    path = write(tmp_path, "x,label", rows)
    table = read_table(path, DataSettings(source="table", path=str(path), missing_values=marks))
    assert table.cells("x").count("") == missing
    said = table.describe_unread()
    assert len(said) == len(unused)
    for text, mark in zip(said, unused, strict=True):
        assert f"data.missing_values: '{mark}" in text and "is in no cell" in text


def test_marks_of_a_column_are_for_it_alone_and_name_one_that_is_read(tmp_path):
    path = write(tmp_path, "x,y,label", [[row % 3, row % 5, noise(row)] for row in range(60)])
    rejected = scan(path, missing_values={"x": [0]}).rejected
    assert {item.reason.split(" (")[0] for item in rejected} == {"x is missing"}
    with pytest.raises(UnreadableSource, match=r"data.missing_values: no column X; known: label"):
        scan(path, missing_values={"X": [0]})
    with pytest.raises(UnreadableSource, match=r"data.missing_values: no column y"):
        scan(path, "text_table", text_column="x", missing_values={"y": [0]})
    truths = write(tmp_path, "x,label", [[row % 2 > 0, noise(row)] for row in range(60)])
    assert not scan(truths, missing_values=[0]).rejected
    for wrong in ([None], [True], {"x": 0}):
        with pytest.raises(ValidationError):
            DataSettings(source="table", path="x", missing_values=wrong)


@pytest.mark.parametrize(
    ("cells", "settings", "numbers"),
    [
        (['"1,003.75"', '"998.20"', '"12,345"'], {}, [1003.75, 998.2, 12345]),
        (['"1,234,567"', '"2,003"', "15"], {}, [1234567, 2003, 15]),
        (["1 003.5", "2\u00a0004.5", "7\u202f000"], {}, [1003.5, 2004.5, 7000]),
        (["1'003.75", "2’004.5", "-7'000"], {}, [1003.75, 2004.5, -7000]),
        (['"1,234"', '"2,345"', "15"], {"thousands": ","}, [1234, 2345, 15]),
        (["1.234", "2.345", "15"], {"decimal": ","}, [1234, 2345, 15]),
        (['"1,234"', '"2,345"', "15"], {}, "data.thousands: ',' for a separator"),
        (['"1,234.5"', '"2,345.5"', "15"], {"thousands": "none"}, "a notation that cannot be read"),
        (["(12.5)", "(3)", "15"], {}, r"'\(12.5\)', .*brackets are not read as a minus; write -12"),
        (["\u22125", "\u22123", "15"], {}, r"the character U\+2212; write -5"),
    ],
)
def test_thousands_are_read_where_they_can_be_nothing_else(tmp_path, cells, settings, numbers):
    path = write(tmp_path, "x,label", [[cells[row % 3], noise(row)] for row in range(60)])
    if isinstance(numbers, str):
        with pytest.raises(UnreadableSource, match=numbers):
            scan(path, **settings)
    else:
        found = scan(path, **settings)
        assert found.values[:3, 0].tolist() == pytest.approx(numbers)
        assert ("thousands" in " ".join(found.dialect)) == (not settings)


TOTALS, UNITS = "holds sums or means of the rows above it", "holds units or a second header"


@pytest.mark.parametrize(
    ("place", "cells", "reason"),
    [
        (40, ["mean", 39, 3, 2.25], TOTALS),
        (40, ["s9", 1560, 115, 90.0], TOTALS),
        (40, ["Total", 12, 3, 1.5], ""),
        (40, ["s9", 1560, 3, 1.5], ""),
        (0, ["", "kWh", "m", "EUR"], UNITS),
        (0, ["a", "NA", "NA", "NA"], "label is not a number"),
        (0, ["a", "kWh", "m", 3], "x is not a number"),
    ],
)
def test_a_row_of_totals_or_of_units_is_no_example(tmp_path, place, cells, reason):
    rows = [[f"s{row % 5}", row * 2, row % 7, row * 37 % 10 / 2] for row in range(40)]
    rows.insert(place, cells)
    rejected = scan(write(tmp_path, "shop,x,y,label", rows), label_kind="number").rejected
    assert len(rejected) == bool(reason)
    assert all(item.reason.startswith(reason) for item in rejected)


@pytest.mark.parametrize(
    ("source", "suffix"),
    [("table", "csv"), ("text_table", "csv"), ("text_table", "parquet"), ("text_lines", "jsonl")],
)
def test_rows_of_one_person_are_in_one_split(tmp_path, source, suffix):
    people = [f"p{row % 40}" if row % 2 else "" for row in range(400)]
    rows = [(f"text {n}", n * 37 % 101 / 8, who, noise(n)) for n, who in enumerate(people)]
    frame = pd.DataFrame(rows, columns=["text", "x", "person", "label"])
    path, of_table = tmp_path / f"rows.{suffix}", source == "table"
    if suffix == "csv":
        frame.to_csv(path, index=False)
    elif suffix == "parquet":
        frame.to_parquet(path)
    else:
        frame.to_json(path, orient="records", lines=True)
    settings = DataSettings(source=source, path=str(path), ignore=["text"] * of_table)
    manifest = ingest(settings.model_copy(update={"group": "person"}), tmp_path / "manifest")
    of = [people[int(name[-8:]) - (not of_table)] for name in manifest.examples["id"]]
    splits = manifest.examples["split"].groupby(of).nunique()
    assert splits[""] == 3 and splits.drop("").max() == 1
    assert not manifest.stats["warnings"]
    if of_table:
        assert manifest.schema.input.columns.names == ("x",)
        (said,) = scan(path, ignore=["text"]).warnings
        assert said.endswith("data.group: person keeps them together")


@pytest.mark.parametrize(
    ("name", "cell", "count"),
    [
        ("lesion_id", lambda row: f"HAM_{row * 3 // 4}" if row < 300 else "", 225),
        ("patient", lambda row: row % 5, 5),
        ("clipId", lambda row: f"c{row // 8}", 50),
        ("scan_id", lambda row: row, 0),  # unique
        ("patient", lambda row: "", 0),
        ("breed_id", lambda row: row % 19, 0),
        ("paid", lambda row: row // 2, 0),
    ],
)
def test_a_list_of_images_with_several_of_one_thing_says_so(tmp_path, name, cell, count):
    rows = [[f"{row}.png", cell(row), noise(row)] for row in range(400)]
    write(write_files(tmp_path, {image: "" for image, *_ in rows}), f"path,{name},label", rows)
    said = f"column {name} has {count} different values in 400 rows: "
    warnings = scan(tmp_path, "image_table").warnings
    assert [one.startswith(said) for one in warnings] == [True] * bool(count)
    assert not scan(tmp_path, "image_table", group=name).warnings


@pytest.mark.parametrize(
    ("name", "noticed"),
    [
        ("run/v_run_g{0:02}_c{1:02}.avi", True),
        ("scan/P{0:03}_slice_{1}.jpg", True),
        ("cat/cat.{2}.jpg", False),
        ("n{3:08}/n{3:08}_{2}.JPEG", False),  # of its class alone
        ("a/img_{4}_{2}.png", False),
    ],
)
def test_names_of_several_files_of_one_person_or_video_are_noticed(name, noticed):
    names = [name.format(n % 9, n // 9, n, n % 2, n * 7919 % 1000) for n in range(45)]
    found = find_name_groups(names, classes=2)
    assert len(found) == noticed and all("data.group: '" in each for each in found)


@pytest.mark.parametrize(
    ("group", "words"),
    [
        ("(p[0-9)", "is not a regular expression: unterminated character set"),
        ("p[0-9]", r"names no column; a regular expression needs one group \(…\)"),
        ("(p[0-9])", r"matches 2 of 3 ids, but not a/q1_1\.png"),
    ],
)
def test_a_group_that_finds_none_is_refused(group, words):
    settings = DataSettings(source="image_folder", path="photos", group=group)
    with pytest.raises(UnreadableSource, match=words):
        read_groups(["a/p1_1.png", "a/p1_2.png", "a/q1_1.png"], {}, settings)


def test_groups_that_the_source_divides_are_named():
    assert find_crossing(["p1", "p1", "p2"], ["train", "test", "test"]) == [
        "the source puts 1 groups into several splits: p1"
    ]
    assert not find_crossing(["p1", "p1", "p2"], ["train", "train", "test"])
