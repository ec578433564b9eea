"""A table is read as it is written, or refused: nothing is joined, shifted or read two ways."""

from datetime import timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.csv_tables import measured, scan, write
from throughline.data.tables import tabular
from throughline.data.tables.number_text import is_number, read_numbers
from throughline.data.tables.table_start import read_start
from throughline.settings import DataSettings
from throughline.shared.errors import UnreadableSource


def read(path, source="table", **settings):
    return tabular.read_table(path, DataSettings(source=source, path=str(path), **settings))


def delimiter_of(path, **settings):
    return read_start(path, DataSettings(source="table", path=str(path), **settings)).delimiter


@pytest.mark.parametrize("stray", [('"a', 'b"'), ('"a', '"b')], ids=["as a pair", "both open"])
def test_stray_quotes_do_not_join_rows(tmp_path, stray):
    rows = measured(400)
    rows[100][1], rows[300][1] = stray
    path = write(tmp_path, "size,color,label", rows)
    with pytest.raises(UnreadableSource, match=r"line 102: a quoted cell.*data\.quoting: none"):
        scan(path)
    kept = scan(path, quoting="none")
    assert len(kept.ids) == 400
    assert kept.schema.input.columns.categories == (tuple(sorted({"a", "b", *stray})),)


def test_quoted_cells_may_hold_the_delimiter_and_line_breaks_if_told(tmp_path):
    rows = [["1.5", '"a, b"', "x"], ["2.5", '"c\nd"', "y"]]
    path = write(tmp_path, "size,color,label", rows)
    said = "line 3: a quoted cell goes on to line 4.*multi_line"
    with pytest.raises(UnreadableSource, match=said):
        scan(path)
    assert scan(path, quoting="multi_line").schema.input.columns.categories == (("a, b", "c\nd"),)
    path.write_text('"size\nin m",color,label\n1,a,x\n2,b,y\n')
    with pytest.raises(UnreadableSource, match=r"line 1: a quoted cell goes on to line 2"):
        scan(path)
    assert scan(path, quoting="multi_line").schema.input.columns.names[0] == "size\nin m"


def test_rows_with_other_fields_than_the_header_are_named_also_where_all_have_one_more(tmp_path):
    rows = measured(30)
    rows[7], rows[9] = [*rows[7], "more"], rows[9][:-1]
    said = "the header has 3 fields, unlike 2 of 30 rows: line 9 has 4, line 11 has 2"
    with pytest.raises(UnreadableSource, match=said):
        scan(write(tmp_path, "size,color,label", rows))
    rows = [[row, *cells] for row, cells in enumerate(measured(30))]
    with pytest.raises(UnreadableSource, match="unlike 30 of 30 rows"):
        scan(write(tmp_path, "size,color,label", rows))
    trailing = write(tmp_path, "size,color,label", [[*cells, ""] for cells in measured(30)])
    found = scan(trailing)
    assert found.schema.input.columns.names == ("size", "color") and len(found.ids) == 30
    assert found.dialect == ["every line ends with a delimiter, which is left out"]


def test_a_semicolon_and_decimal_commas_are_detected_and_said(tmp_path):
    rows = [[f"{row},5", f"1.{row:03},25", "xy"[row % 2]] for row in range(40)]
    path = write(tmp_path, "size;price;label", rows, delimiter=";")
    found = scan(path)
    assert found.values[:3].tolist() == [[0.5, 1000.25], [1.5, 1001.25], [2.5, 1002.25]]
    assert found.dialect == [
        "cells are separated by semicolons (data.delimiter sets it)",
        "numbers have decimal commas (data.decimal sets it)",
    ]
    target = scan(path, label_column="size", categorical=["label"])
    assert target.schema.target.encoding.name == "number" and target.labels[:2] == [0.5, 1.5]


@pytest.mark.parametrize(
    ("sizes", "ages", "words"),
    [
        (["1,5", "2,5"], ["1.5", "2.5"], r"both ways, 1,5 in column size and 1\.5 in column age"),
        (["1,234", "2,500"], ["1", "2"], "1,234 in column size may be a fraction or have a thous"),
        (["1.234", "999"], ["1", "2"], "1.234 in column size may be a fraction or have a thous"),
    ],
    ids=["both marks", "thousands", "points for thousands"],
)
def test_numbers_that_can_be_read_two_ways_are_refused(tmp_path, sizes, ages, words):
    rows = [[size, age, label] for size, age, label in zip(sizes, ages, "xy", strict=True)]
    path = write(tmp_path, "size;age;label", rows, delimiter=";")
    with pytest.raises(UnreadableSource, match=words + r".*data\.decimal"):
        scan(path)
    number = float(sizes[0].replace(".", "").replace(",", "."))
    assert scan(path, decimal=",", ignore=["age"]).values[0, 0] == np.float32(number)


def test_a_stray_quote_does_not_join_texts_with_their_classes(tmp_path):
    rows = [[f"text {row}", "ab"[row % 2]] for row in range(50)]
    rows[10][0], rows[30][0] = '"text 10', 'text 30"'
    path = write(tmp_path, "text,label", rows)
    with pytest.raises(UnreadableSource, match=r"line 12: a quoted text goes on to line 32"):
        list(scan(path, "text_table").documents)
    kept = list(scan(path, "text_table", quoting="none").documents)
    assert len(kept) == 50 and kept[10].content == '"text 10'
    path.write_text('text,label\n"two\nlines, of, text",a\nother,b\n')
    found = [item.content for item in scan(path, "text_table").documents]
    assert found == ["two\nlines, of, text", "other"]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_ends_byte_order_marks_and_blank_lines_change_nothing(tmp_path, end):
    path = write(tmp_path, '\ufeff"size",color,label', measured(30), end=end)
    path.write_bytes(path.read_bytes() + end.encode() * 2)
    found = scan(path)
    assert found.schema.input.columns.names == ("size", "color") and len(found.ids) == 30


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_blank_line_between_the_cells_of_one_column_is_an_empty_one(tmp_path, end):
    path = write(tmp_path, "load", [[1.5], [""], [""], [2.5], [""]], end=end)
    assert read(path, "time_series").cells("load") == ["1.5", "", "", "2.5"]
    with pytest.raises(UnreadableSource, match=r"row 2, column load is missing \(1 more"):
        scan(path, "time_series")
    path = write(tmp_path, "load,wind", [[1.5, 2], [""], [2.5, 3]], end=end)
    assert read(path, "time_series").cells("load") == ["1.5", "2.5"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty; its first line must name the columns"),
        (b"a,a,label\n1,2,x\n", "more than one column is named a"),
        (b'size,label\n1,"x\n', "does not end with its quote; a stray quote"),
        (b"size,label\n1,x\nsize,label\n2,y\n", "line 3: repeats the header"),
        (b"size,label\n", "no column is left to learn from, except"),
        (b"PK\x03\x04\x14\x00", "is a ZIP archive, as Excel's files are; save the sheet as CSV"),
        (b"PAR1\x15\x04", "is not a readable Parquet or Arrow table"),
    ],
)
def test_what_is_no_table_is_refused_with_the_way_out(tmp_path, content, words):
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    with pytest.raises(UnreadableSource, match=words):
        scan(path)


def test_typed_cells_of_parquet_are_the_same_text(tmp_path):
    path = tmp_path / "table.parquet"
    cells = {
        "whole": pa.array([1, None, 3]),
        "wide": pa.array([1.0, 2.5, None], pa.float32()),
        "truth": pa.array([True, False, None]),
        "word": pa.array(["a", "", None]).dictionary_encode(),
        "price": pa.array([Decimal("1.125"), Decimal("2.250"), None]),
        "after": pa.array([timedelta(seconds=2)] * 3),
        "bytes": pa.array([b"\xff"] * 3, pa.large_binary()),
        "image": pa.array([{"bytes": b"x", "path": "a"}] * 3),
    }
    pq.write_table(pa.table(cells), path)
    table = read(path)
    assert table.describe_unread() == [
        "column bytes is left out: its cells are binary",
        "column image is left out: its cells are struct<bytes: binary, path: string>",
    ]
    assert {cells.type for cells in table.columns.values()} == {pa.large_string()}, "2 GiB and more"
    assert table.cells("whole") == ["1", "", "3"] and table.cells("wide") == ["1", "2.5", ""]
    assert table.cells("truth") == ["True", "False", ""] and table.cells("word") == ["a", "", ""]
    for decimal in ("auto", ","):  # only texts have commas
        assert read(path, decimal=decimal).numbers("price")[:2].tolist() == [1.125, 2.25]
    with pytest.raises(UnreadableSource, match=r"cells of column image are struct<bytes: binary"):
        scan(path, label_column="image")


@pytest.mark.parametrize(
    ("lines", "delimiter"),
    [
        (["a,b", "1;2,3", "4,5"], ","),
        (["a;b", "1,5;2", "3,5;4"], ";"),
        (["price, net;b", "1,5;2", "3;4"], ";"),
        (["alone", "1"], ","),
        ([" 0.5   1  7.25", " 0.25 2\t1e-003 "], " "),
        (['18.0  8  307.\t"a b"', '15.0  ?  350.\t"c, d"'], " "),
        (["a b", "Room 1", "Room 2"], ","),
        (["day t\tx", "2026-01-01 10\t1.5"], "\t"),
    ],
)
def test_the_delimiter_divides_the_header_and_the_most_lines_alike(tmp_path, lines, delimiter):
    path = tmp_path / "table.csv"
    path.write_text("\n".join(lines))
    assert delimiter_of(path) == delimiter
    assert delimiter_of(path, delimiter="tab") == "\t"


def test_two_delimiters_that_divide_every_line_alike_are_refused(tmp_path):
    path = tmp_path / "series.csv"
    path.write_text("load, MW;temp, C\n310,5;4,1\n298,0;3,9\n")
    with pytest.raises(UnreadableSource, match=r"could separate the cells, .*set data\.delimiter"):
        delimiter_of(path)
    assert delimiter_of(path, delimiter=";") == ";"
    path.write_text("\nx;label\n1,5;a\n2,5;b\n")
    assert delimiter_of(path) == ";"


def test_only_plain_notation_is_a_number():
    others = ["", "inf", "nan", "1_000", "0x1", "1,5", "1 2"]
    cells = pa.array(["1", "-.5", "2.", "1e-3", "+7", *others])
    assert is_number(cells, ".").tolist() == [True] * 5 + [False] * 7
    np.testing.assert_array_equal(read_numbers(cells, ".")[:5], [1, -0.5, 2, 1e-3, 7])
    assert np.isnan(read_numbers(cells, ".")[5:]).all()
    truth = pa.array(["true", "FALSE", ""])
    np.testing.assert_array_equal(read_numbers(truth, "."), [1, 0, np.nan])


def test_a_column_of_parquet_with_bytes_that_are_no_utf_8_is_named(tmp_path):
    content = pa.array([b"fine", b"caf\xe9"] * 10)
    broken = pa.Array.from_buffers(pa.string(), 20, content.buffers())
    columns = {"size": np.arange(20) / 8, "place": broken, "label": ["a", "b"] * 10}
    pq.write_table(pa.table(columns), tmp_path / "table.parquet")
    with pytest.raises(UnreadableSource, match=r"column place \(string\) cannot be read as text"):
        scan(tmp_path / "table.parquet")
    left = scan(tmp_path / "table.parquet", ignore=["place"])
    assert left.values.shape == (20, 1) and not left.warnings


def test_a_table_is_read_in_parts_of_few_cells_as_in_one(tmp_path, monkeypatch):
    rows = [[f"{row}.{column}" for column in range(9)] for row in range(25)]
    path = write(tmp_path, ",".join(f"c{number}" for number in range(9)), rows)
    whole = read(path).columns
    monkeypatch.setattr(tabular, "_CELLS_AT_ONCE", 30)
    parts = read(path).columns
    assert [*map(list, zip(*(one.to_pylist() for one in parts.values()), strict=True))] == rows
    assert parts == whole


ROWS = "".join(f"{row / 8},{row % 7},{'ab'[row % 2]}\n" for row in range(30))
TABLE = "size,age,label\n" + ROWS
NAMED, UNNAMED = ["size", "age", "label"], ["column_1", "column_2", "column_3"]


def read_text(tmp_path, content, **settings):
    (tmp_path / "table.csv").write_bytes(content)
    return read(tmp_path / "table.csv", **settings)


@pytest.mark.parametrize(
    ("content", "names", "note"),
    [
        (TABLE.encode(), NAMED, ""),
        (TABLE.encode("utf-16"), NAMED, "the file is UTF-16, as its first bytes say"),
        (b"\xfe\xff" + TABLE.encode("utf-16-be"), NAMED, "the file is UTF-16"),
        (b"sep=;\r\n" + TABLE.replace(",", ";").encode(), NAMED, ""),
        (b"\xef\xbb\xbfSEP=:\n" + TABLE.replace(",", ":").encode(), NAMED, ""),
        (b"|1x3 Cross validator\n" + TABLE.encode(), NAMED, "'|1x3 Cross validator'"),
        (TABLE.replace(",", "|").encode(), NAMED, "cells are separated by bars"),
        (b"# of 2024\n# two\n" + TABLE.encode(), NAMED, "header: '# of 2024' and 1 more"),
        (b"# " + TABLE.encode(), NAMED, ""),
        (b"#" + TABLE.encode(), NAMED, ""),
        (b"# measured, at home, by us\n" + TABLE.encode(), NAMED, "'# measured, at home, by us'"),
        (b"Sizes of 2024\n\n" + TABLE.encode(), NAMED, "header: 'Sizes of 2024'"),
        (b"Sizes,,\nby us,,\n" + TABLE.encode(), NAMED, "header: 'Sizes,,' and 1 more"),
        (b"left,,right\n" + ROWS.encode(), ["left", "Unnamed: 1", "right"], ""),
        (b"1990,1991,1992\n" + ROWS.encode(), ["1990", "1991", "1992"], ""),
        (b"400.5,401.0,401.5\n" + ROWS.encode(), ["400.5", "401.0", "401.5"], ""),
        (b"0,1,label\n" + ROWS.encode(), ["0", "1", "label"], ""),
        (TABLE.encode() + b",,\n , ,\n", NAMED, "empty rows at the end are left out: 2"),
    ],
)
def test_what_stands_above_the_header_is_left_out_and_said(tmp_path, content, names, note):
    table = read_text(tmp_path, content)
    assert list(table.columns) == names and len(table) == 30
    assert table.cells(names[0])[:3] == ["0.0", "0.125", "0.25"]
    assert note in " · ".join(table.notes) if note else not table.notes


def test_columns_without_a_name_are_the_same_in_the_same_place_only(tmp_path):
    (tmp_path / "a.csv").write_text(f"left,,right\n{ROWS}")
    (tmp_path / "b.csv").write_text(f"left,right,\n{ROWS}")
    settings = DataSettings(source="table", path=str(tmp_path))
    with pytest.raises(UnreadableSource, match=r"a\.csv \(Unnamed: 1\); b\.csv \(Unnamed: 2\)"):
        tabular.read_table(tmp_path, settings)


@pytest.mark.parametrize("first", ["5.1,3.5,a\n", "5,0,0\n", "2.5,1,a\n", "0.5,1,a\n"])
def test_a_first_line_of_numbers_is_no_header(tmp_path, first):
    with pytest.raises(UnreadableSource, match=r"set data\.header: none .* column_1 … column_3"):
        read_text(tmp_path, (first + ROWS).encode())
    table = read_text(tmp_path, (first + ROWS).encode(), header="none")
    assert list(table.columns) == UNNAMED and len(table) == 31
    if len({*first.strip().split(",")}) == 3:
        table = read_text(tmp_path, (first + ROWS).encode(), header="names")
        assert list(table.columns) == first.strip().split(",") and len(table) == 30


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (f"By us, and others\n{TABLE}", r"Lines with 3 cells begin in line 2; .* titles\? Remove"),
        (f"a,b,c,d\ne,f\n{TABLE}", "Lines with 3 cells begin in line 3"),
        (
            f"{TABLE}\nSource: us, 2024\n",
            r"line 33 has 2 \('Source: us, 2024'\)\. .* line 33; .* if it is a note",
        ),
        (
            f"{TABLE}note\nmore, so\n",
            r"line 33 has 2 \('note'\)\. Get the file .* line 32; .* note",
        ),
        (
            f"{TABLE}1,2,a,b\n{ROWS}",
            r"line 32 has 4 \('1,2,a,b'\)\. Remove such .*, or quote cells that",
        ),
        ("size,age\n" + ROWS, "; if their first cells name rows, name that column in the header"),
        ("# by us\n# two\nsize,age\n1.5,2\n1.5,2,a\n1.5,2\n", "line 5 has 3"),
    ],
)
def test_titles_and_notes_are_told_from_cells_with_delimiters(tmp_path, content, words):
    with pytest.raises(UnreadableSource, match=words):
        read_text(tmp_path, content.encode())


def test_without_a_header_a_row_may_repeat_the_first(tmp_path):
    content = f"1.5,2,a\n{ROWS}1.5,2,a\n".encode()
    assert len(read_text(tmp_path, content, header="none")) == 32
    with pytest.raises(UnreadableSource, match="line 32: repeats the header"):
        read_text(tmp_path, content, header="names")


def test_blanks_divide_the_cells_of_published_tables(tmp_path):
    path = tmp_path / "cars.data"
    path.write_text(' 18.0   8  307.\t"a  b"\n 15.0   6  1e-003\t"c, d" \n\n')
    table = read(path, header="none")
    assert [cells.to_pylist() for cells in table.columns.values()] == [
        *(["18.0", "15.0"], ["8", "6"], ["307.", "1e-003"], ["a b", "c, d"])
    ]
    assert table.notes == ["cells are separated by blanks (data.delimiter sets it)"]
    assert read(path, header="none", delimiter="blanks").columns == table.columns
