"""Tables are read as they are written, and learned from as they are meant, or are refused."""

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ruamel.yaml import YAML

from tests.support.csv_tables import scan, write
from throughline.data.glance import find_rare_classes
from throughline.data.ingest import ingest
from throughline.data.manifest import read_manifest
from throughline.data.tables import tabular
from throughline.data.tables.number_text import is_number, read_numbers
from throughline.settings import DataSettings
from throughline.shared.errors import UnreadableSource


def read(path, source="table", **settings):
    return tabular.read_table(path, DataSettings(source=source, path=str(path), **settings))


def put(tmp_path, content):
    path = tmp_path / "table.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def ingest_table(path, out, **settings):
    return ingest(DataSettings(source="table", path=str(path), **settings), out)


ROWS = "0.5,3,a\n1.5,4,b\n2.5,3,a\n"
TABLE = f"size,age,label\n{ROWS}"
CELLS = (["0.5", "1.5", "2.5"], ["3", "4", "3"], ["a", "b", "a"])


def named(*names):
    """The cells of `ROWS` in columns of these names."""
    return dict(zip(names, CELLS, strict=True))


READ = named("size", "age", "label")
MARKED, AGES = '\ufeff"size",age\n\n1,2\n\n3,4\n\n\n', {"size": [*"13"], "age": [*"24"]}
SERIES = {"source": "time_series"}  # of which a blank line is a gap, if it has a single column
BLANKS = ' 18.0   8  307.\t"a  b"\n 15.0   ?  1e-003\t"c, d" \n\n'
OF_BLANKS = {
    **{"column_1": ["18.0", "15.0"], "column_2": ["8", "?"]},
    **{"column_3": ["307.", "1e-003"], "column_4": ["a b", "c, d"]},
}


@pytest.mark.parametrize(
    ("content", "settings", "columns", "note"),
    [
        (TABLE, {}, READ, ""),
        (TABLE.encode("utf-16"), {}, READ, "the file is UTF-16, as its first bytes say"),
        ("sep=;\r\n" + TABLE.replace(",", ";"), {}, READ, ""),
        ("|1x3 Cross validator\n" + TABLE, {}, READ, "'|1x3 Cross validator'"),
        (TABLE.replace(",", "|"), {}, READ, "cells are separated by bars"),
        ("# of 2024\n# two\n" + TABLE, {}, READ, "header: '# of 2024' and 1 more"),
        ("# " + TABLE, {}, READ, ""),
        ("# measured, at home, by us\n" + TABLE, {}, READ, "'# measured, at home, by us'"),
        ("Sizes,,\nby us,,\n" + TABLE, {}, READ, "header: 'Sizes,,' and 1 more"),
        ("left,,right\n" + ROWS, {}, named("left", "Unnamed: 1", "right"), ""),
        ("1990,1991,1992\n" + ROWS, {}, named("1990", "1991", "1992"), ""),
        ("0,1,label\n" + ROWS, {}, named("0", "1", "label"), ""),
        (TABLE + ",,\n , ,\n", {}, READ, "empty rows at the end are left out: 2"),
        ("a,b\n1,2,\n3,4,\n", {}, {"a": [*"13"], "b": [*"24"]}, "every line ends with a delimiter"),
        ("a,b\n1;2,3\n4,5\n", {}, {"a": ["1;2", "4"], "b": ["3", "5"]}, ""),
        ("\na;b\n1,5;x\n2,5;y\n", {}, {"a": ["1,5", "2,5"], "b": ["x", "y"]}, "semicolons"),
        ("a, b;c\n1,5;2\n3;4\n", {}, {"a, b": ["1,5", "3"], "c": ["2", "4"]}, "semicolons"),
        ("a, b;c, d\n1,5;4,1\n", {"delimiter": ";"}, {"a, b": ["1,5"], "c, d": ["4,1"]}, ""),
        ("alone\n1\n", {}, {"alone": ["1"]}, ""),
        ("a b\nRoom 1\nRoom 2\n", {}, {"a b": ["Room 1", "Room 2"]}, ""),
        ("day t\tx\n2026-01-01 10\t1.5\n", {}, {"day t": ["2026-01-01 10"], "x": ["1.5"]}, "tabs"),
        (BLANKS, {"header": "none"}, OF_BLANKS, "cells are separated by blanks (data.delimiter"),
        (BLANKS, {"header": "none", "delimiter": "blanks"}, OF_BLANKS, ""),
        ('a,b\n1,"x\n2,y"\n', {"quoting": "none"}, {"a": ["1", "2"], "b": ['"x', 'y"']}, ""),
        ('a,b\n1,"x, y"\n', {}, {"a": ["1"], "b": ["x, y"]}, ""),
        ('a,b\n1,"c\nd"\n', {"quoting": "multi_line"}, {"a": ["1"], "b": ["c\nd"]}, ""),
        ("1,a\n1,a\n", {"header": "none"}, {"column_1": ["1", "1"], "column_2": ["a", "a"]}, ""),
        *[(MARKED.replace("\n", end), {}, AGES, "") for end in ("\n", "\r\n", "\r")],
        ("load\n1.5\n\n\n2.5\n\n", SERIES, {"load": ["1.5", "", "", "2.5"]}, ""),
        ("load\r1.5\r\r2.5\r", SERIES, {"load": ["1.5", "", "2.5"]}, ""),
        ("x,y\n1.5,2\n\n2.5,3\n", SERIES, {"x": ["1.5", "2.5"], "y": ["2", "3"]}, ""),
    ],
)
def test_a_table_has_the_cells_that_were_written(tmp_path, content, settings, columns, note):
    table = read(put(tmp_path, content), **settings)
    assert {name: table.cells(name) for name in table.columns} == columns
    assert note in " · ".join(table.notes) if note else not table.notes


USES = {"numeric": ["size", "age"], "ignore": ["age"], "categorical": ["split"]}
TWICE = (
    r"has one use, .*: split \(the splits and data.categorical\), size \(data.label_column and"
    r" data.numeric\), age \(data.numeric and data.ignore\); name each once"
)
PRICES = "".join(f"{row / 8},${row + 20}.50\n" for row in range(40))
UNTRAINED = "size,age,label,split\n,1,x,train\n,1,y,train\n5,1,x,validation\n"
SPELLED = "size,color,label\n1,caf\xe9,x\n2,cafe\u0301,y\n3,bar,x\n4,bar,y\n"


@pytest.mark.parametrize(
    ("content", "settings", "words"),
    [
        ("", {}, "is empty; its first line must name the columns"),
        ("a,a,label\n1,2,x\n", {}, "is named a; rename one of them, or set data.header: none"),
        ("a,a,label\n1,2,x\n", {"header": "names"}, "is named a; rename one of them$"),
        (
            "A1 6 A3 x\nA2 8 A4 y\n",
            {},
            r"no column label, as no delimiter .* column A1 6 A3 x; set",
        ),
        ("a,label\n", {}, "no column is left to learn from, except"),
        ("PK\x03\x04\x14\x00", {}, "is a ZIP archive, as Excel's files are; save the sheet as CSV"),
        ("PAR1\x15\x04", {}, "is not a readable Parquet or Arrow table"),
        ("a,b\n1,x\na,b\n2,y\n", {}, "line 3: repeats the header"),
        ('a,b\n1,"x\n2,"y\n', {}, r"line 2: a quoted cell of 2 lines .*data\.quoting: none"),
        ('a,b\n1,"x\n2,y"\n', {}, r"line 2: a quoted cell goes on to line 3; .*none .*multi_line"),
        ('"a\nb",c\n1,2\n3,4\n', {}, "line 1: a quoted cell goes on to line 2"),
        ('"a" "b"\n"1" "x"\n', {}, r"line 1: blanks seem to separate .*; set data\.delimiter: bla"),
        ("a, b;c, d\n310,5;4,1\n", {}, r"could separate the cells, .*set data\.delimiter"),
        ("a;b\n1,5;1.5\n2,5;2\n", {}, r"both ways, 1,5 in .* a and 1\.5 in .* b; .*decimal"),
        ("a;b\n1,234;1\n2,500;2\n", {}, r"1,234 in column a may be .* thous.*data\.decimal"),
        ("a;b\n1.234;1\n999;2\n", {}, r"1\.234 in column a may be .* thous.*data\.decimal"),
        ("a,b\n1,2\n1,2,3\n1,2\n1\n", {}, "has 2 fields, unlike 2 of 4 rows: line 3 has 3, line 5"),
        ("size,age\n" + ROWS, {}, "unlike 3 of 3 .*; if their first cells name rows"),
        (f"Us, and others\n{TABLE}", {}, r"Lines with 3 cells begin in line 2; .* titles\? Remove"),
        (f"{TABLE}\nBy us, 24\n", {}, r"line 6 has 2 \('By us, 24'\)\. .* line 6; .* if it is a n"),
        (f"{TABLE}1,2,a,b\n{ROWS}", {}, r"line 5 has 4 \('1,2,a,b'\)\. Remove such .*, or quote"),
        ("size,age,split\n1.5,2,train\n2.5,3,test\n", {"label_column": "size", **USES}, TWICE),
        (f"size,label\n{PRICES}", {"label_kind": "number"}, r"numbers such as '\$20\.50', in a no"),
        (UNTRAINED, {"missing": "median"}, "column size is empty in all rows of the training"),
        (SPELLED, {"numeric": ["size"]}, r"categories both look like .* Unicode, "),
    ],
)
def test_what_is_no_table_or_reads_two_ways_is_refused(tmp_path, content, settings, words):
    with pytest.raises(UnreadableSource, match=words):
        ingest_table(put(tmp_path, content), tmp_path / "manifest", **settings)


@pytest.mark.parametrize("first", ["5.1,3.5,a", "5,3,1"])
def test_a_first_line_of_numbers_is_no_header(tmp_path, first):
    path = put(tmp_path, f"{first}\n{ROWS}")
    with pytest.raises(UnreadableSource, match=r"set data\.header: none .* column_1 … column_3"):
        read(path)
    names = first.split(",")
    assert read(path, header="none").cells("column_2") == [names[1], *CELLS[1]]
    assert [*read(path, header="names").columns] == names


def test_decimal_commas_are_read_in_columns_and_labels(tmp_path):
    rows = [[f"{row},5", f"1.{row:03},25", "xy"[row % 2]] for row in range(40)]
    path = write(tmp_path, "size;price;label", rows, delimiter=";")
    assert scan(path).values[:3].tolist() == [[0.5, 1000.25], [1.5, 1001.25], [2.5, 1002.25]]
    found = scan(path, label_column="size", categorical=["label"])
    assert found.schema.target.encoding.name == "number" and found.labels[:2] == [0.5, 1.5]
    assert found.dialect[1] == "numbers have decimal commas (data.decimal sets it)"


def test_a_stray_quote_does_not_join_texts_with_their_classes(tmp_path):
    path = put(tmp_path, 'text,label\none,a\n"two,b\nthree,a\nfour",b\nfive,a\n')
    with pytest.raises(UnreadableSource, match=r"line 3: a quoted text goes on to line 5"):
        list(scan(path, "text_table").documents)
    kept = [item.content for item in scan(path, "text_table", quoting="none").documents]
    assert kept == ["one", '"two', "three", 'four"', "five"]
    put(tmp_path, 'text,label\n"two\nlines, of, text",a\nother,b\n')
    found = [item.content for item in scan(path, "text_table").documents]
    assert found == ["two\nlines, of, text", "other"]


def test_typed_cells_of_parquet_are_the_same_text(tmp_path):
    path = tmp_path / "table.parquet"
    typed = {
        "whole": (pa.array([1, None, 3]), ["1", "", "3"]),
        "wide": (pa.array([1.0, 2.5, None], pa.float32()), ["1", "2.5", ""]),
        "truth": (pa.array([True, False, None]), ["True", "False", ""]),
        "word": (pa.array(["a", "", None]).dictionary_encode(), ["a", "", ""]),
        "price": (pa.array([Decimal("1.125"), Decimal("2.250"), None]), ["1.125", "2.250", ""]),
    }
    untyped = {
        "bytes": pa.array([b"\xff"] * 3, pa.large_binary()),
        "image": pa.array([{"bytes": b"x", "path": "a"}] * 3),
    }
    columns = {name: column for name, (column, _) in typed.items()}
    pq.write_table(pa.table(columns | untyped), path)
    table = read(path)
    assert table.describe_unread() == [
        "column bytes is left out: its cells are binary",
        "column image is left out: its cells are struct<bytes: binary, path: string>",
    ]
    assert {cells.type for cells in table.columns.values()} == {pa.large_string()}, "2 GiB and more"
    assert {name: table.cells(name) for name in table.columns} == {
        name: cells for name, (_, cells) in typed.items()
    }
    assert read(path, decimal=",").numbers("price")[:2].tolist() == [1.125, 2.25], "of texts alone"
    with pytest.raises(UnreadableSource, match=r"cells of column image are struct<bytes: binary"):
        scan(path, label_column="image")


def test_a_column_of_parquet_with_bytes_that_are_no_utf_8_is_named(tmp_path):
    content = pa.array([b"fine", b"caf\xe9"] * 10)
    broken = pa.Array.from_buffers(pa.string(), 20, content.buffers())
    columns = {"size": np.arange(20) / 8, "place": broken, "label": ["a", "b"] * 10}
    pq.write_table(pa.table(columns), tmp_path / "table.parquet")
    with pytest.raises(UnreadableSource, match=r"column place \(string\) cannot be read as text"):
        scan(tmp_path / "table.parquet")
    left = scan(tmp_path / "table.parquet", ignore=["place"])
    assert left.values.shape == (20, 1) and not left.warnings


def test_only_plain_notation_is_a_number():
    others = ["", "inf", "nan", "1_000", "0x1", "1,5", "1 2"]
    cells = pa.array(["1", "-.5", "2.", "1e-3", "+7", *others])
    assert is_number(cells, ".").tolist() == [True] * 5 + [False] * 7
    np.testing.assert_array_equal(read_numbers(cells, "."), [1, -0.5, 2, 1e-3, 7] + [np.nan] * 7)
    truth = pa.array(["true", "FALSE", ""])
    np.testing.assert_array_equal(read_numbers(truth, "."), [1, 0, np.nan])


def test_labels_and_categories_are_the_text_of_their_cells(tmp_path, monkeypatch):
    monkeypatch.setattr(tabular, "_CELLS_AT_ONCE", 30)  # several parts
    codes = ("001", "002", "003", "NA")
    rows = [[row / 8, codes[row % 4], f"{row % 8:03}"] for row in range(40)]
    rows[-1][2] = " 001 "
    found = scan(write(tmp_path, "size,code,label", rows), categorical=["code"])
    assert found.values.tolist() == [[row / 8, row % 4] for row in range(40)]
    assert found.labels == [label.strip() for *_, label in rows]
    assert found.classes == [f"{label:03}" for label in range(8)]
    assert found.schema.input.columns.categories == (codes,)
    assert found.warnings[0].startswith("column code has NA as a category; set data.missing_values")
    rows = [[row / 8, f"{row % 3:.18e}"] for row in range(60)]  # as NumPy's savetxt writes
    assert scan(write(tmp_path, "size,label", rows)).classes == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        (["?", 3, "a", "x"], " (set data.missing_values if it means missing): '?'"),
        (["22.6 bd", "3 p", "a", "x"], ": '22.6 bd'; write 22.6, without the letters"),
    ],
)
def test_a_cell_that_is_no_number_makes_no_categories(tmp_path, odd, reason):
    good = [[row / 8, row % 7, "ab"[row % 2], "xy"[row % 2]] for row in range(40)]
    found = scan(write(tmp_path, "size,age,kind,label", [odd, *good]))
    columns = found.schema.input.columns
    assert (columns.names, columns.categories) == (("size", "age", "kind"), (("a", "b"),))
    assert [one.distinct for one in found.readings][2:] == [2, 2]
    assert [one.reason for one in found.rejected] == [f"size is not a number{reason}"]


@pytest.mark.parametrize(
    ("name", "cell", "words"),
    [
        ("plant", lambda row: f"0{row % 9}1", "numbers with leading zeros; .*data.categorical"),
        ("paid", lambda row: f"${row % 9}200.50", "notation that cannot be read; write them as 12"),
        ("engine", lambda row: f"{900 + row % 60} CC", "'900 CC'; write .* 900; data.categorical"),
        ("ticket", lambda row: row % 90 * 7 if row % 4 else f"PC {row % 120}", "and 30 .*'PC 0'"),
        ("day", lambda row: f"2026-{row // 28 % 12 + 1:02}-{row % 28 + 1:02}", "holds dates"),
        ("note", lambda row: f"text {row}", "300 different texts in 300 rows: ids or free text"),
        ("", lambda row: row, "column Unnamed: 1 has no name in the header; a row index"),
        ("seconds", lambda row: 1_700_000_001 + row % 9, "float32 keeps the first seven digits"),
        ("m", lambda row: 98_765_432 + row % 40 * 0.35, r"98765432\.35, .* of 40 .* 3 would be"),
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
    readings = scan(path, ignore=[name]).readings
    distinct = len({cell(row) for row in range(300)})
    assert [(one.kind, one.distinct, one.example) for one in readings] == [
        ("number", 50, "0.0"),
        ("ignored", distinct, str(cell(0))),
        ("label", 2, "x"),
    ]
    key = "categorical" if "data.categorical" in str(refused.value) else "numeric"
    if name != "Unnamed: 1":
        assert name in scan(path, **{key: [name]}).schema.input.columns.names


@pytest.mark.parametrize(
    ("cell", "kind"),
    [
        (lambda row: f"{1 + row % 30}{'ABCDEFABC'[row % 9]}", "category"),  # seats
        (lambda row: f"{row % 18 / 2} baths", "category"),
        (lambda row: f"{12 * (1 + row % 5)} months", "category"),
        (lambda row: f"0{row % 40 + 10}X", "category"),
        (lambda row: row % 90 if row % 30 else f"about {row}", "number"),
    ],
)
def test_codes_with_letters_and_a_few_texts_are_read(tmp_path, cell, kind):
    rows = [[row % 50 / 8, cell(row), "xy"[row % 2]] for row in range(300)]
    found = scan(write(tmp_path, "size,code,label", rows))
    assert found.readings[1].kind == kind
    assert len(found.rejected) == sum(str(cell(row)).startswith("about") for row in range(300))


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (["1", "2", "1.0"], r"label holds 1 and 1\.0, the same value; write it in one way"),
        (["true", "False", "True"], "label holds true and True, the same value"),
        ([str(10**19), str(10**19 + 1)], ""),
        (["x", "NaN"], ""),
        (["1200.50 €", "2200.50 €", "3200.50 €"], "numbers such as .1200.50 €., in a notation"),
        ([f"€{900 + n}M" for n in range(25)], "units such as '€900M'; write them as 900; or set"),
        ([*map(str, range(30)), *[f"V{n}" for n in range(11)]], "and 11 .* texts such as 'V0'"),
        ([str(37 * row) for row in range(211)], "211 different .* or classes; set data"),
        ([str(17 + row) for row in range(25)], "25 different numbers in 300 rows may be values"),
        ([str(row) for row in range(26) if row != 9], "25 different numbers in 300 rows may be"),
        ([str(1 + row) for row in range(25)], ""),
    ],
)
def test_labels_that_would_become_other_classes_are_refused_unless_told(tmp_path, labels, words):
    rows = [[row / 8, f'"{labels[row % len(labels)]}"'] for row in range(300)]
    path = write(tmp_path, "size,label", rows)
    if words:
        with pytest.raises(UnreadableSource, match=words):
            scan(path)
    found = scan(path, label_kind="class" if words else "auto")
    assert set(found.classes) == set(labels) and not found.rejected


def test_rows_with_empty_cells_are_kept_where_told_and_the_rejection_says_how(tmp_path):
    """The median is that of the training split: of 1, 2, 9, while 1000 is for test."""
    rows = ("1,a,x,train", "2,,y,train", ",b,x,train", "9,b,y,train", ",a,x,validation")
    path = put(tmp_path, "\n".join(["size,color,label,split", *rows, "1000,,y,test\n"]))
    no_color = "color is missing (data.missing: category keeps the row)"
    no_size = "size is missing (data.missing: median keeps the row)"
    reasons = [item.reason for item in scan(path).rejected]
    assert reasons == [no_color, no_size, no_size, no_color]
    for missing, rejected in (("category", "35"), ({"size": "median"}, "26")):
        found = scan(path, missing=missing)
        assert [item.id for item in found.rejected] == [f"row {row}" for row in rejected]
    manifest = ingest_table(path, tmp_path / "manifest", missing="median")
    assert manifest.schema == read_manifest(tmp_path / "manifest").schema
    columns = manifest.schema.input.columns
    assert (columns.medians, columns.categories) == ({"size": 2}, (("", "a", "b"),))
    values = np.load(tmp_path / "manifest" / "values.npy").tolist()
    assert values == [[1, 1], [2, 0], [2, 2], [9, 2], [2, 1], [1000, 0]]
    assert manifest.stats["notes"] == {"empty cells of size filled with 2": 2}


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


@pytest.mark.parametrize("label", ["computed", "other"])
def test_the_rounding_of_computed_numbers_is_none_of_theirs(tmp_path, label):
    computed = np.cumsum(np.full(500, 0.1)) % 7
    path = write(tmp_path, "computed,other", [[x, n % 5 + 0.5] for n, x in enumerate(computed)])
    assert len(scan(path, label_column=label).values) == 500


def test_classes_with_a_single_example_are_counted_and_numbers_called_numbers():
    balance = {"train": {"1.5": 1, "2.5": 1, "9": 3}, "test": {"4": 1, "9": 1}}
    said = find_rare_classes(balance, of_table=True) or ""
    assert " in 3 of 4 classes: 1.5, 2.5, 4." in said
    assert said.endswith("data.label_kind: number predicts them")
    words = {"train": {"owl": 1, "cat": 1, "dog": 2}}
    for rare, of_table in ((words, True), (balance, False)):
        assert "label_kind" not in (find_rare_classes(rare, of_table=of_table) or "label_kind")
    assert find_rare_classes({"train": {"owl": 1}, "test": {"owl": 1}}, of_table=True) is None


def test_neither_a_new_category_nor_another_order_of_the_columns_moves_a_row(tmp_path):
    def assigned(header, rows):
        path = write(tmp_path, header, rows)
        manifest = ingest_table(path, tmp_path / f"manifest of {header} {len(rows)}")
        splits = manifest.examples.set_index("id")["split"]
        return splits[:"00000059"].to_dict(), manifest

    rows = [[row / 8, "bd"[row % 2], "xy"[row % 2]] for row in range(60)]
    before, manifest = assigned("size,color,label", rows)
    assert {*before.values()} == {"train", "validation", "test"}
    splits, more = assigned("size,color,label", [*rows, [7.5, "c", "x"]])
    assert splits == before
    assert more.schema.input.columns.categories == (("b", "c", "d"),)
    turned = [[color, size, label] for size, color, label in rows]
    splits, other = assigned("color,size,label", turned)
    assert splits == before and other.digest == manifest.digest  # categories come last anyway
    one, first = assigned("a,b,label", [[size, size + 1, label] for size, _, label in rows])
    two, second = assigned("b,a,label", [[size + 1, size, label] for size, _, label in rows])
    assert one == two and first.digest != second.digest
