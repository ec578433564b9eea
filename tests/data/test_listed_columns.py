"""What a table says of the examples that it lists: columns that the model sees, and numbers to
predict.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from throughline.data.sources.kept_cells import KeptCells
from throughline.data.sources.listed_columns import check_names, name_columns, read_listing
from throughline.settings import DataSettings
from throughline.shared.errors import UnreadableSource

PATH = Path("items.csv")
ROWS = [(" 1,5", "NA", "10"), ("2,25", "red", "11"), ("", "red", "x"), ("4", "blue", "13")]


def listing_of(rows: list[tuple[str, ...]], **more):
    settings = DataSettings(
        source="text_table",
        path=str(PATH),
        numeric=["size"],
        categorical=["color"],
        missing_values=["NA"],
        label_column="price",
        **more,
    )
    names = ("size", "color", *(["price"] if settings.label_kind == "number" else []))
    cells = [row[: len(names)] for row in rows]
    return read_listing(KeptCells(path=PATH, settings=settings, names=names).make_table(cells))


def test_cells_are_known_when_all_are_there():
    found = listing_of(ROWS, label_kind="number", missing={"size": "median", "color": "category"})
    assert found.columns.columns.categories == (("", "blue", "red"),)
    np.testing.assert_array_equal(found.columns.values, [[1.5, 0], [2.25, 2], [np.nan, 2], [4, 1]])
    np.testing.assert_array_equal(found.numbers, [[10], [11], [np.nan], [13]])
    assert found.problems == [None, None, "label is 'x', no number", None]
    assert found.label_kind == "number"
    assert found.dialect == ["numbers have decimal commas (data.decimal sets it)"]


def test_rows_with_empty_cells_are_rejected_unless_they_are_said_to_be_kept():
    found = listing_of(ROWS)
    assert found.label_kind == "class" and found.numbers is None
    assert [bool(problem) for problem in found.problems] == [True, False, True, False]
    assert found.problems[2].startswith("size is missing (data.missing can be median")


def test_categories_that_may_mean_missing_are_named():
    rows = [("1", "N/A", "1"), ("2", "red", "1")]
    assert listing_of(rows).warnings == [
        "column color has N/A as a category; data.missing_values: ['N/A'], if it means missing"
    ]
    assert listing_of(ROWS).warnings == []


def test_no_documents_are_a_table_without_rows():
    found = listing_of([])
    assert found.columns.values.shape == (0, 2) and found.problems == []


def test_names_are_given_once_and_are_not_those_of_the_examples():
    settings = DataSettings(source="text_table", path="x", numeric=["text", "label"])
    with pytest.raises(UnreadableSource) as refusal:
        named = name_columns(settings, "text_column")
        check_names(PATH, named | {"data.text_column": ["review"]}, input_name="text")
    assert "label (data.label_column and data.numeric)" in str(refusal.value)
    assert "a column that the model sees is named text, as the text itself" in str(refusal.value)
