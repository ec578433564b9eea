"""What stands above the rows of a table: encodings, titles, comments, and headers that are none."""

from __future__ import annotations

import pytest

from throughline.data.tables.tabular import read_table
from throughline.settings import DataSettings
from throughline.shared.errors import UnreadableSource

ROWS = "".join(f"{row / 8},{row % 7},{'ab'[row % 2]}\n" for row in range(30))
TABLE = "size,age,label\n" + ROWS
NAMED, UNNAMED = ["size", "age", "label"], ["column_1", "column_2", "column_3"]


def read(tmp_path, content, **settings):
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    return read_table(path, DataSettings(source="table", path=str(path), **settings))


@pytest.mark.parametrize(
    ("content", "names", "note"),
    [
        (TABLE.encode(), NAMED, ""),
        (TABLE.encode("utf-16"), NAMED, "the file is UTF-16, as its first bytes say"),
        (b"\xfe\xff" + TABLE.encode("utf-16-be"), NAMED, "the file is UTF-16"),
        (b"sep=;\r\n" + TABLE.replace(",", ";").encode(), NAMED, ""),
        (b"\xef\xbb\xbfSEP=:\n" + TABLE.replace(",", ":").encode(), NAMED, ""),
        (b"|1x3 Cross validator\n" + TABLE.encode(), NAMED, "'|1x3 Cross validator'"),
        (TABLE.replace(",", "|").encode(), NAMED, "cells are divided by bars"),
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
        (TABLE.encode() + b",,\n , ,\n", NAMED, "2 empty rows at the end are left out"),
    ],
)
def test_what_stands_above_the_header_is_left_out_and_said(tmp_path, content, names, note):
    table = read(tmp_path, content)
    assert list(table.columns) == names and len(table) == 30
    assert table.cells(names[0])[:3] == ["0.0", "0.125", "0.25"]
    assert note in " · ".join(table.notes) if note else not table.notes


@pytest.mark.parametrize("first", ["5.1,3.5,a\n", "5,0,0\n", "2.5,1,a\n", "0.5,1,a\n"])
def test_a_first_line_of_numbers_is_no_header(tmp_path, first):
    with pytest.raises(UnreadableSource, match=r"set data\.header: none .* column_1 … column_3"):
        read(tmp_path, (first + ROWS).encode())
    table = read(tmp_path, (first + ROWS).encode(), header="none")
    assert list(table.columns) == UNNAMED and len(table) == 31
    if len({*first.strip().split(",")}) == 3:
        table = read(tmp_path, (first + ROWS).encode(), header="names")
        assert list(table.columns) == first.strip().split(",") and len(table) == 30


def test_lines_are_counted_in_the_file(tmp_path):
    with pytest.raises(UnreadableSource, match="line 5 has 4"):
        read(tmp_path, b"# by us\n# two\nsize,age,label\n1.5,2,a\n1.5,2,a,b\n1.5,2,a\n")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (f"By us, and others\n{TABLE}", r"Lines with 3 cells begin in line 2; .* titles\? Remove"),
        (f"a,b,c,d\ne,f\n{TABLE}", "Lines with 3 cells begin in line 3"),
        (
            f"{TABLE}\nSource: us, 2024\n",
            r"from line 33 on \('Source: us, 2024'\), if it is a note",
        ),
        (f"{TABLE}note\nsecond, note\n", r"from line 32 on \('note'\)"),
        (f"{TABLE}1,2,a,b\n{ROWS}", "line 32 has 4. Quote cells that hold the delimiter"),
        ("size,age\n" + ROWS, "; if they name rows, name that column, too"),
    ],
)
def test_titles_and_notes_that_are_no_rows_are_told_from_cells_with_delimiters(
    tmp_path, content, words
):
    with pytest.raises(UnreadableSource, match=words):
        read(tmp_path, content.encode())


def test_without_a_header_a_row_may_repeat_the_first(tmp_path):
    content = f"1.5,2,a\n{ROWS}1.5,2,a\n".encode()
    assert len(read(tmp_path, content, header="none")) == 32
    with pytest.raises(UnreadableSource, match="line 32: repeats the header"):
        read(tmp_path, content, header="names")
