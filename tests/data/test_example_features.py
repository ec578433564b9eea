"""What any writer puts into a tf.train.Example is read as TensorFlow reads it."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.external_records import example
from throughline.data.shards.example_features import (
    NotAnExample,
    bytes_places,
    parse_features,
    read_numbers,
)

VALUES = st.one_of(
    st.lists(st.binary(max_size=40), min_size=1, max_size=4),
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=5),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5),
)


@given(st.dictionaries(st.text(min_size=1, max_size=8), VALUES, min_size=1, max_size=4))
@settings(max_examples=80, deadline=None)
def test_any_example_of_tensorflow_s_is_read_as_it_was_written(features):
    record = example(**features)
    found = parse_features(record)
    assert set(found) == set(features)
    for name, values in features.items():
        feature = found[name]
        if feature.kind == "bytes":
            assert [record[start:stop] for start, stop in bytes_places(record, feature)] == values
        elif feature.kind == "float":
            np.testing.assert_array_equal(read_numbers(record, feature), np.float32(values))
        else:
            assert read_numbers(record, feature).tolist() == values


def test_lists_that_are_not_packed_are_read_too():
    """As older writers serialize them: a tag before each number."""
    floats = b"\x0d" + np.float32(1.5).tobytes() + b"\x0d" + np.float32(-2).tobytes()
    integers = b"\x08\x05\x08\xac\x02"
    entry = b"".join(
        part(1, part(1, part(1, name) + part(2, part(kind, values))))[2:]
        for name, kind, values in ((b"f", 2, floats), (b"i", 3, integers))
    )
    record = part(1, entry)
    found = parse_features(record)
    assert read_numbers(record, found["f"]).tolist() == [1.5, -2.0]
    assert read_numbers(record, found["i"]).tolist() == [5, 300]


def test_a_negative_number_that_is_not_packed_is_read():
    """Ten bytes, the most that a number takes."""
    minus_one = b"\x08" + b"\xff" * 9 + b"\x01"
    record = part(1, part(1, part(1, b"i") + part(2, part(3, minus_one))))
    assert read_numbers(record, parse_features(record)["i"]).tolist() == [-1]


def part(field: int, payload: bytes) -> bytes:
    """A field of a message that holds bytes, fewer than 128."""
    return bytes((field << 3 | 2, len(payload))) + payload


def test_a_feature_without_a_kind_is_left_out():
    made = tf.train.Example()
    made.features.feature["empty"].SetInParent()
    made.features.feature["label"].int64_list.value.append(1)
    assert set(parse_features(made.SerializeToString())) == {"label"}


@given(st.binary(max_size=60))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_an_example_or_refused(record):
    try:
        features = parse_features(record)
    except NotAnExample:
        return
    assert all(feature.stop <= len(record) for feature in features.values())


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (b"", "it has no features"),
        (b"\x0a", "ends within the number"),
        (b"\x0a\x10abc", "ends within the field"),
        (b"plain text", "is of no field|ends within"),
        (part(1, b"\x0a\x09abc") + b"enough bytes", "ends within the field at byte 4"),
    ],
)
def test_what_is_no_example_is_refused_with_what_is_wrong(record, said):
    with pytest.raises(NotAnExample, match=said):
        parse_features(record)


def test_packed_numbers_that_are_cut_off_are_refused():
    record = part(1, part(1, part(1, b"i") + part(2, part(3, part(1, b"\x05\xac")))))
    with pytest.raises(NotAnExample, match="ends within a number"):
        read_numbers(record, parse_features(record)["i"])
