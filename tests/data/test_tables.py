"""Columns of a table are learned from as they are meant, or refused."""

import numpy as np
import pandas as pd
import pytest
from ruamel.yaml import YAML

from tests.support.csv_tables import scan, write
from throughline.data.glance import find_rare_classes
from throughline.data.ingest import ingest
from throughline.data.manifest import read_manifest
from throughline.settings import DataSettings
from throughline.shared.errors import UnreadableSource


@pytest.mark.integration
def test_labels_and_categories_are_the_text_of_their_cells(tmp_path):
    """Over more rows than one block of any reader."""
    rows = [[f"{row % 100 / 8:.90f}", f"{row % 4:03}", f"{row % 8:03}"] for row in range(12_000)]
    rows[-1][2] = " 001 "
    found = scan(write(tmp_path, "size,code,label", rows), categorical=["code"])
    assert found.classes == [f"{label:03}" for label in range(8)]
    assert found.schema.input.columns.categories == (("000", "001", "002", "003"),)
    assert found.labels[-1] == "001"
    rows = [[row / 8, f"{row % 3:.18e}"] for row in range(60)]  # as NumPy's savetxt writes
    assert scan(write(tmp_path, "size,label", rows)).classes == ["0", "1", "2"]


def test_one_cell_that_is_no_number_neither_makes_categories_nor_drops_the_column(tmp_path):
    rows = [[row / 8, row % 7, "xy"[row % 2]] for row in range(300)]
    rows[40][0] = "?"
    path = write(tmp_path, "size,age,label", rows)
    found = scan(path)
    columns = found.schema.input.columns
    assert (columns.names, columns.categories) == (("size", "age"), ())
    said = "size is not a number (set data.missing_values if it means missing): '?'"
    assert [(item.id, item.reason) for item in found.rejected] == [("row 41", said)]
    (rejected,) = scan(path, missing_values=["?"]).rejected
    assert rejected.reason == "size is missing (data.missing: median keeps the row)"
    with pytest.raises(UnreadableSource, match=r"row 41, column size is not a number: '\?'"):
        scan(path, "time_series")


@pytest.mark.parametrize(
    ("name", "cell", "words"),
    [
        ("plant", lambda row: f"0{row % 9}1", "numbers with leading zeros; .*data.categorical"),
        ("paid", lambda row: f"${row % 9}200.50", "notation that cannot be read; write them as 12"),
        ("day", lambda row: f"2026-{row // 28 % 12 + 1:02}-{row % 28 + 1:02}", "holds dates"),
        ("note", lambda row: f"text {row}", "300 different texts in 300 rows: ids or free text"),
        ("nr", lambda row: row + 1, r"column nr \(1, …\) numbers the rows"),
        ("", lambda row: row, "column Unnamed: 1 has no name in the header; a row index"),
        ("seconds", lambda row: 1_700_000_001 + row % 9, "float32 keeps the first seven digits"),
        (
            "meter",
            lambda row: f"{98_765_432 + row % 40 * 0.35:.2f}",
            r"98765432 and 98765432\.35, of which float32 .*: of 40 different ones 3 would be left",
        ),
    ],
)
def test_columns_that_are_meant_otherwise_are_refused_with_the_key(tmp_path, name, cell, words):
    rows = [[row % 50 / 8, cell(row), "xy"[row % 2]] for row in range(300)]
    path = write(tmp_path, f"size,{name},label", rows)
    name = name or "Unnamed: 1"
    with pytest.raises(UnreadableSource, match=words) as refused:
        scan(path)
    line = str(refused.value).splitlines()[-1]
    assert YAML(typ="safe").load(line) == {"data": {"ignore": [name]}}
    found = scan(path, ignore=[name])
    assert found.schema.input.columns.names == ("size",)
    assert [str(reading) for reading in found.readings] == [
        "size: number, 50 distinct, such as 0.0",
        f"{name}: ignored, {len({cell(row) for row in range(300)}):,} distinct, such as {cell(0)}",
        "label: label, 2 distinct, such as x",
    ]
    texts = ("text", "dates", "notation")
    key = "categorical" if any(word in words for word in texts) else "numeric"
    if name != "Unnamed: 1":
        assert name in scan(path, **{key: [name]}).schema.input.columns.names


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (["1", "2", "1.0"], r"label holds 1 and 1\.0, the same value; write it in one way"),
        (["true", "False", "True"], "label holds true and True, the same value"),
        ([str(10**19), str(10**19 + 1), str(10**19 + 1)], ""),
        (["1200.50 €", "2200.50 €", "3200.50 €"], "numbers such as .1200.50 €., in a notation"),
    ],
)
def test_a_label_that_would_become_other_classes_is_refused_unless_told(tmp_path, labels, words):
    rows = [[row / 8, f'"{labels[row % 3]}"'] for row in range(60)]
    path = write(tmp_path, "size,label", rows)
    if words:
        with pytest.raises(UnreadableSource, match=words):
            scan(path)
    assert set(scan(path, label_kind="class" if words else "auto").classes) == set(labels)


def test_many_whole_numbers_are_no_classes_unless_told(tmp_path):
    rows = [[row % 50 / 8, 90_000 + 37 * (row * 7919 % 211)] for row in range(300)]
    path = write(tmp_path, "size,price", rows)
    with pytest.raises(UnreadableSource, match=r"211 different .* or classes; set data"):
        scan(path, label_column="price")
    assert scan(path, label_column="price", label_kind="number").classes == []
    assert len(scan(path, label_column="price", label_kind="class").classes) == 211


@pytest.mark.parametrize("word", ["None", "NaN"])
def test_only_the_empty_cell_is_missing(tmp_path, word):
    rows = [[row / 8, ["a", word][row % 2], ["x", word][row % 2]] for row in range(40)]
    found = scan(write(tmp_path, "size,color,label", rows))
    assert not found.rejected
    assert found.classes == sorted(["x", word])
    assert found.schema.input.columns.categories == (tuple(sorted(["a", word])),)
    said = scan(tmp_path / "table.csv", missing_values=[word])
    assert len(said.rejected) == 20


def test_rows_with_empty_cells_are_kept_where_told_and_the_rejection_says_how(tmp_path):
    """The median is that of the training split: of 1, 2, 9, while 1000 is for test."""
    rows = ["1,a,x,train", "2,,y,train", ",b,x,train", "9,b,y,train", ",a,x,validation"]
    rows = [[row] for row in (*rows, "1000,,y,test")]
    path = write(tmp_path, "size,color,label,split", rows)
    no_color = "color is missing (data.missing: category keeps the row)"
    no_size = "size is missing (data.missing: median keeps the row)"
    reasons = [item.reason for item in scan(path).rejected]
    assert reasons == [no_color, no_size, no_size, no_color]
    assert [item.id for item in scan(path, missing="category").rejected] == ["row 3", "row 5"]
    settings = DataSettings(source="table", path=str(path), missing="median")
    manifest = ingest(settings, tmp_path / "manifest")
    assert manifest.schema == read_manifest(tmp_path / "manifest").schema
    columns = manifest.schema.input.columns
    assert (columns.medians, columns.categories) == ({"size": 2}, (("", "a", "b"),))
    assert np.load(tmp_path / "manifest" / "values.npy").tolist() == [
        [1, 1], [2, 0], [2, 2], [9, 2], [2, 1], [1000, 0],
    ]  # fmt: skip
    assert manifest.stats["notes"] == {"empty cells of size filled with 2": 2}
    named = scan(path, missing={"size": "median"})
    assert [item.id for item in named.rejected] == ["row 2", "row 6"]


def test_a_column_without_a_number_to_train_on_has_no_median(tmp_path):
    rows = [["", 1, "xy"[row % 2], "train"] for row in range(4)] + [[5, 1, "x", "validation"]]
    path = write(tmp_path, "size,age,label,split", rows)
    settings = DataSettings(source="table", path=str(path), missing="median")
    with pytest.raises(UnreadableSource, match="column size is empty in all rows of the training"):
        ingest(settings, tmp_path / "manifest")


def test_a_category_in_two_spellings_of_unicode_is_not_two_categories(tmp_path):
    names = ["caf\xe9", "cafe\u0301", "bar"]
    rows = [[row, names[row % 3], "xy"[row % 2]] for row in range(60)]
    path = write(tmp_path, "size,color,label", rows)
    settings = DataSettings(source="table", path=str(path), numeric=["size"])
    with pytest.raises(UnreadableSource, match=r"categories both look like .* Unicode, "):
        ingest(settings, tmp_path / "manifest")


def test_all_that_is_wrong_with_a_tables_parameters_is_said_at_once(tmp_path):
    rows = [[number, "ab"[number % 2], number / 8, f"text {number}"] for number in range(60)]
    path = write(tmp_path, "id,shop,size,note", rows)
    wrong = {"label_column": "pric", "categorical": ["shopp"], "ignore": ["colour"]}
    with pytest.raises(UnreadableSource) as refusal:
        scan(path, **wrong, missing={"size": "category", "weight": "median"})
    (heading, *listed) = str(refusal.value).splitlines()
    assert heading == f"{path}: 6 problems:"
    assert [line for line in listed if line.startswith("  - ")] == [
        "  - no column pric; known: id, note, shop, size; set data.label_column, or"
        " data.header: none if its first line is a row",
        "  - no column shopp; did you mean shop? Set data.categorical",
        "  - no column colour; known: id, note, shop, size; set data.ignore",
        "  - column id (0, …) numbers the rows; data.numeric: [id, …] learns from it as a number",
        "  - data.missing: category does not suit size, which holds numbers; set data.missing:"
        " {size: median}",
        "  - data.missing: no feature is named weight; known: id, size",
    ]


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ({"numeric": ["size", "age"]}, r"size \(data\.label_column and data\.numeric\)"),
        ({"ignore": ["age"], "numeric": ["age"]}, r"age \(data\.numeric and data\.ignore\)"),
        ({"categorical": ["split"]}, r"split \(the splits and data\.categorical\)"),
    ],
)
def test_a_column_that_is_named_for_two_uses_is_refused(tmp_path, named, words):
    rows = [[row / 8, row % 7, "ab"[row % 2], "train"] for row in range(40)]
    path = write(tmp_path, "size,age,color,split", rows)
    with pytest.raises(UnreadableSource, match=rf"has one use, .*: {words}; name each once"):
        scan(path, label_column="size", **named)


@pytest.mark.parametrize("kind", ["sum", "label"])
def test_the_rounding_of_computed_numbers_is_none_of_theirs(tmp_path, kind):
    tenths = np.random.default_rng(0).integers(0, 200, (500, 3)) / 10
    computed = {"sum": tenths.sum(axis=1), "label": np.cumsum(np.full(500, 0.1)) % 7}[kind]
    path = tmp_path / "t.csv"
    other = np.arange(500) % 5 + 0.5
    x, y = (other, computed) if kind == "label" else (computed, other)
    pd.DataFrame({"x": x, "y": y}).to_csv(path, index=False)
    assert len(scan(path, label_column="y").values) == 500


def test_classes_with_a_single_example_are_counted_and_numbers_called_numbers():
    balance = {"train": {"1.5": 1, "2.5": 1, "9": 3}, "test": {"4": 1, "9": 1}}
    said = find_rare_classes(balance, of_table=True) or ""
    assert " in 3 of 4 classes: 1.5, 2.5, 4." in said
    assert said.endswith("data.label_kind: number predicts them")
    words = {"train": {"owl": 1, "cat": 1, "dog": 2}}
    for rare, of_table in ((words, True), (balance, False)):
        said = find_rare_classes(rare, of_table=of_table) or "label_kind"
        assert "label_kind" not in said
    assert find_rare_classes({"train": {"owl": 1}, "test": {"owl": 1}}, of_table=True) is None


def test_neither_a_new_category_nor_another_order_of_the_columns_moves_a_row(tmp_path):
    rows = [[row / 8, "bd"[row % 2], "xy"[row % 2]] for row in range(60)]

    def assigned(header, rows, name):
        path = write(tmp_path, header, rows)
        manifest = ingest(DataSettings(source="table", path=str(path)), tmp_path / name)
        examples = manifest.examples.set_index("id")
        return examples.loc[:"00000059", "split"].to_dict(), manifest

    before, manifest = assigned("size,color,label", rows, "a")
    assert {*before.values()} == {"train", "validation", "test"}
    splits, more = assigned("size,color,label", [*rows, [7.5, "c", "x"]], "b")
    assert splits == before
    assert more.schema.input.columns.categories == (("b", "c", "d"),)
    turned = [[color, size, label] for size, color, label in rows]
    numbers = [[size, size + 1, label] for size, _, label in rows]
    swapped = [[other, size, label] for size, other, label in numbers]
    splits, other = assigned("color,size,label", turned, "c")
    assert splits == before and other.digest == manifest.digest  # categories come last anyway
    one, first = assigned("a,b,label", numbers, "d")
    two, second = assigned("b,a,label", swapped, "e")
    assert one == two and first.digest != second.digest
