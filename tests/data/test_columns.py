"""Columns hold what was written, constant in memory, and name their damage."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.prepared_files import write_columns
from tests.support.small_data import flip_bit
from throughline.data.columns import index as stored
from throughline.data.columns import ragged
from throughline.data.columns.channel_stats import Moments, compute_moments, merge_moments
from throughline.shared.errors import CorruptColumn, ImpossiblePlan, MissingInput, StaleSnapshot

COLUMNS = (
    stored.Column(name="image", dtype="uint8", shape=(3, 2, 1)),
    stored.Column(name="label", dtype="int64", shape=()),
)
VALUES = {"image": np.arange(60, dtype=np.uint8).reshape(10, 3, 2, 1), "label": np.arange(10)}


def test_rows_come_back_and_whoever_changes_them_does_so_for_himself_alone(tmp_path):
    write_columns(tmp_path, COLUMNS, VALUES, rows=5)
    index = stored.read_index(tmp_path, key="k")
    for column in index.columns:
        stored.map_column(tmp_path, "train", column, 10)[:] = 0
        found = stored.map_column(tmp_path, "train", column, 10)
        np.testing.assert_array_equal(found, VALUES[column.name])
    stored.verify(tmp_path, index)


@pytest.mark.parametrize(
    ("label", "said"),
    [
        (np.zeros(10, np.float32), r"made label float32 of shape \(\), .* stores int64"),
        (np.zeros((10, 4), np.int64), r"made label int64 of shape \(4,\), "),
    ],
)
def test_values_that_a_column_would_cut_are_refused(label, said, tmp_path):
    with pytest.raises(ImpossiblePlan, match=said):
        stored.write_rows(tmp_path, "train", COLUMNS, start=0, values={**VALUES, "label": label})


def test_another_key_a_flipped_bit_and_a_short_or_missing_column_are_found_and_named(tmp_path):
    write_columns(tmp_path, COLUMNS, VALUES, rows=5)
    with pytest.raises(StaleSnapshot, match="dvc repro snapshot"):
        stored.read_index(tmp_path, key="other")
    with pytest.raises(MissingInput):
        stored.read_index(tmp_path / "nowhere")
    flip_bit(stored.column_path(tmp_path, "train", "image"), 40)
    with pytest.raises(CorruptColumn, match=r"image.bin: chunk of rows 5 to 9 does not match"):
        stored.verify(tmp_path, stored.read_index(tmp_path))
    path = stored.column_path(tmp_path, "train", "label")
    os.truncate(path, 72)
    with pytest.raises(CorruptColumn, match="has 72 bytes, not 80;"):
        stored.read_index(tmp_path)
    path.unlink()
    with pytest.raises(CorruptColumn, match="is missing"):
        stored.read_index(tmp_path)


def test_a_column_without_bytes_is_empty(tmp_path):
    for shape, count, mapped in (((3,), 0, (0, 3)), ((0,), 4, (4, 0)), ((None,), 4, (0,))):
        column = stored.Column(name=f"of {shape}", dtype="float32", shape=shape)
        stored.allocate(tmp_path, "train", (column,), count)
        stored.column_path(tmp_path, "train", column.name).touch()
        array = stored.map_column(tmp_path, "train", column, count)
        assert (array.shape, array.dtype) == (mapped, np.float32)


SHAPES = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9), st.integers(1, 3)), max_size=12)


@pytest.mark.integration
@given(SHAPES, st.sampled_from(["uint8", "float32", "int64"]))
@settings(max_examples=30)
def test_values_are_found_where_their_extents_say(shapes, dtype):
    draw = np.random.default_rng(0)
    values = [draw.integers(0, 100, shape).astype(dtype) for shape in shapes]
    data = ragged.pack(values)
    itemsize = np.dtype(dtype).itemsize
    offsets = ragged.compute_offsets(np.asarray(shapes, np.int64).reshape(-1, 3), itemsize)
    assert ragged.end_offset(offsets, itemsize) == len(data)
    flat = np.frombuffer(data, dtype)
    for value, (begin, *shape) in zip(values, offsets.tolist(), strict=True):
        assert begin * itemsize % ragged.ALIGNMENT == 0
        np.testing.assert_array_equal(flat[begin : begin + value.size].reshape(shape), value)


def test_tokens_have_no_gaps_between_documents():
    documents = [np.arange(size, dtype=np.uint16) for size in (3, 0, 40, 1)]
    data = ragged.pack(documents)
    offsets = ragged.compute_offsets(np.array([[3], [0], [40], [1]]), 2)
    np.testing.assert_array_equal(np.frombuffer(data, np.uint16), np.concatenate(documents))
    assert offsets[:, 0].tolist() == [0, 3, 3, 43]
    assert ragged.end_offset(offsets, 2) == len(data) == 88


def test_parts_are_joined_in_their_order_and_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(ragged, "COPY_BYTES", 4)
    contents = [b"first", b"", b"a second one"]
    parts = [tmp_path / str(number) for number in range(len(contents))]
    for part, content in zip(parts, contents, strict=True):
        part.write_bytes(content)
    for _ in range(2):
        ragged.concatenate_parts(parts, tmp_path / "whole")
        assert (tmp_path / "whole").read_bytes() == b"".join(contents)
    assert all(part.exists() for part in parts)


@pytest.mark.parametrize("cuts", [[], [1], [3], [1, 2, 3]])
def test_pieces_of_any_size_give_the_statistics_of_the_whole(cuts):
    values = 1e9 + np.array([[1.0], [2.0], [3.0], [6.0]])
    merged = merge_moments(compute_moments(part) for part in np.split(values, cuts))
    assert merged.mean[0] - 1e9 == pytest.approx(3)
    assert merged.deviation == pytest.approx((3.5**0.5,)), "it is not lost in large values"


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int64])
def test_moments_are_of_each_channel(dtype):
    pixels = np.array([[[0, 10]], [[2, 10]], [[4, 40]]], dtype)  # three images of one pixel
    expected = Moments(count=3, mean=(2.0, 20.0), sum_sq_dev=(8.0, 600.0))
    assert compute_moments(pixels) == expected
