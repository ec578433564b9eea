"""Columns hold what was written, constant in memory, and name their damage."""

from __future__ import annotations

import numpy as np
import psutil
import pytest

from tests.support.small_data import flip_bit
from throughline.data.columns.index import (
    Column,
    SnapshotIndex,
    SplitColumns,
    Statistics,
    allocate,
    column_path,
    map_column,
    read_index,
    verify,
    write_index,
    write_rows,
)
from throughline.shared.errors import CorruptColumn, ImpossiblePlan, MissingInput, StaleSnapshot

COLUMNS = (
    Column(name="image", dtype="uint8", shape=(3, 2, 1)),
    Column(name="label", dtype="int64", shape=()),
)
VALUES = {"image": np.arange(60, dtype=np.uint8).reshape(10, 3, 2, 1), "label": np.arange(10)}


@pytest.fixture
def written(tmp_path):
    allocate(tmp_path, "train", COLUMNS, 10)
    chunks = tuple(
        write_rows(
            tmp_path,
            "train",
            COLUMNS,
            start=start,
            values={name: array[start : start + 5] for name, array in VALUES.items()},
        )
        for start in (5, 0)
    )
    index = SnapshotIndex(
        key="k",
        statistics=Statistics(mean=(0.0,), deviation=(1.0,)),
        columns=COLUMNS,
        splits={"train": SplitColumns(count=10, chunks=chunks)},
    )
    write_index(tmp_path, index)
    return tmp_path


def test_rows_come_back_wherever_they_were_written(written):
    index = read_index(written, key="k")
    for column in index.columns:
        np.testing.assert_array_equal(map_column(written, "train", column, 10), VALUES[column.name])
    verify(written, index)


def test_whoever_changes_a_mapped_column_changes_it_for_himself_alone(written):
    column = COLUMNS[0]
    map_column(written, "train", column, 10)[:] = 0
    np.testing.assert_array_equal(map_column(written, "train", column, 10), VALUES["image"])


@pytest.mark.parametrize(
    ("label", "said"),
    [
        (np.zeros(10, np.float32), r"label is float32 of shape \(\) after it, .* stores int64"),
        (np.zeros((10, 4), np.int64), r"label is int64 of shape \(4,\) after it"),
    ],
)
def test_values_that_a_column_would_cut_are_refused(written, label, said):
    with pytest.raises(ImpossiblePlan, match=said):
        write_rows(written, "train", COLUMNS, start=0, values={**VALUES, "label": label})


def test_a_flipped_bit_is_found_and_placed(written):
    flip_bit(column_path(written, "train", "image"), 40)
    with pytest.raises(CorruptColumn, match=r"image.bin: chunk of rows 5 to 9 does not match"):
        verify(written, read_index(written))


def test_a_short_or_missing_column_is_found_on_opening(written):
    path = column_path(written, "train", "label")
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(CorruptColumn, match="has 72 bytes, the index says 80"):
        read_index(written)
    path.unlink()
    with pytest.raises(CorruptColumn, match="is missing"):
        read_index(written)


def test_another_key_is_stale_and_no_index_is_incomplete(written, tmp_path_factory):
    with pytest.raises(StaleSnapshot, match="dvc repro snapshot"):
        read_index(written, key="other")
    with pytest.raises(MissingInput):
        read_index(tmp_path_factory.mktemp("empty"))


def test_a_column_larger_than_memory_is_mapped_without_reading_it(tmp_path):
    count = 2 * (psutil.virtual_memory().total + psutil.swap_memory().total) // (224 * 224 * 3)
    column = Column(name="image", dtype="uint8", shape=(224, 224, 3))
    allocate(tmp_path, "train", (column,), count)
    before = psutil.Process().memory_info().rss
    array = map_column(tmp_path, "train", column, count)
    assert array.shape == (count, *column.shape)
    assert array[count - 1].sum() == 0
    assert psutil.Process().memory_info().rss - before < 50e6


@pytest.mark.parametrize(
    ("shape", "count", "mapped"), [((3,), 0, (0, 3)), ((0,), 4, (4, 0)), ((None,), 4, (0,))]
)
def test_a_column_without_bytes_is_empty(shape, count, mapped, tmp_path):
    column = Column(name="features", dtype="float32", shape=shape)
    allocate(tmp_path, "train", (column,), count)
    column_path(tmp_path, "train", "features").touch()
    array = map_column(tmp_path, "train", column, count)
    assert (array.shape, array.dtype) == (mapped, np.float32)
