"""Values of variable shape lie back to back, aligned, and are found again by their offsets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from throughline.data.columns import ragged

SHAPES = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9), st.integers(1, 3)), max_size=12)


@given(SHAPES, st.sampled_from(["uint8", "float32", "int64"]))
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


@pytest.mark.parametrize("sizes", [(0,), (5, 0, 7), (3_000_000, 20_000_000, 1)])
def test_parts_are_joined_in_their_order_and_stay(tmp_path, sizes):
    parts = [tmp_path / f"part-{number}" for number in range(len(sizes))]
    contents = [np.random.default_rng(number).bytes(size) for number, size in enumerate(sizes)]
    for part, content in zip(parts, contents, strict=True):
        part.write_bytes(content)
    for _ in range(2):
        ragged.concatenate_parts(parts, tmp_path / "whole")
        assert (tmp_path / "whole").read_bytes() == b"".join(contents)
    assert all(part.exists() for part in parts)
