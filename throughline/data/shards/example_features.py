"""Finds the features of a serialized tf.train.Example, by any writer, as positions in its bytes.

Only the numbers that are asked for are copied. Needs no TensorFlow. Source of the format:
tensorflow/core/example/feature.proto and the protocol-buffer wire encoding.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

FeatureKind = Literal["bytes", "float", "int64"]
_KINDS: dict[int, FeatureKind] = {1: "bytes", 2: "float", 3: "int64"}
_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5
_WIDTHS = {_FIXED64: 8, _FIXED32: 4}
_LONGEST_VARINT = 70  # bits
_FEATURE_LISTS = 2  # the field of a SequenceExample that an Example does not have
_NAME, _VALUE = 1, 2  # fields of the entry of a map


class NotAnExample(ValueError):
    """Bytes are not a serialized tf.train.Example; says what is wrong with them."""


class NotOneExample(NotAnExample):
    """Bytes are a tf.train.SequenceExample, whose context alone would read as an Example."""


@dataclass(frozen=True, slots=True)
class Feature:
    """One feature of an example: its kind, and where the list of its values lies in the record."""

    kind: FeatureKind
    start: int
    stop: int


def parse_features(record: bytes) -> dict[str, Feature]:
    """Return the features of a serialized example by name, except those without a kind.

    Raises NotAnExample or NotOneExample for other bytes, or if no feature has a kind.
    """
    features: dict[str, Feature] = {}
    for number, start, stop in read_delimited(record, 0, len(record)):
        if number == _FEATURE_LISTS:
            _refuse_lists(record, start, stop, context=bool(features))
        for name, *value in _read_map(record, start, stop) if number == 1 else ():
            for kind, *place in read_delimited(record, *value):
                if kind in _KINDS:
                    features[name] = Feature(_KINDS[kind], *place)
    if not features:
        raise NotAnExample("it has no features")
    return features


def bytes_places(record: bytes, feature: Feature) -> list[tuple[int, int]]:
    """Return start and stop of each value of a bytes feature in the record."""
    return [
        (start, stop)
        for _, start, stop in read_delimited(record, feature.start, feature.stop, field=1)
    ]


def read_numbers(record: bytes, feature: Feature) -> np.ndarray:
    """Return the values (n,) of a feature of numbers, float32 or int64, packed or not."""
    dtype = np.float32 if feature.kind == "float" else np.int64
    parts = [
        np.frombuffer(record, "<f4", count=(stop - start) // 4, offset=start)
        if feature.kind == "float"
        else decode_varints(record[start:stop])
        for number, _, start, stop in read_fields(record, feature.start, feature.stop)
        if number == 1
    ]
    return np.concatenate(parts) if parts else np.empty(0, dtype)


def _refuse_lists(record: bytes, start: int, stop: int, *, context: bool) -> None:
    """Raise NotOneExample for feature lists, or for an empty set of them after a `context`."""
    lists = []
    for name, *value in _read_map(record, start, stop):
        steps = sum(1 for _ in read_delimited(record, *value, field=1))
        lists.append(f"{name} ({steps:,} steps)")
    if lists or context:
        raise NotOneExample(
            f"it is a tf.train.SequenceExample with the feature lists {', '.join(sorted(lists))}"
            if lists
            else "it is a tf.train.SequenceExample without feature lists"
        )


def _read_map(record: bytes, start: int, stop: int) -> Iterator[tuple[str, int, int]]:
    """Yield the name of each entry of a map, and start and stop of its value."""
    for _, entry_start, entry_stop in read_delimited(record, start, stop, field=1):
        name, value = "", (0, 0)
        for number, first, end in read_delimited(record, entry_start, entry_stop):
            if number == _NAME:
                name = record[first:end].decode("utf-8", "backslashreplace")
            elif number == _VALUE:
                value = first, end
        yield name, *value


def read_delimited(
    record: bytes, start: int, stop: int, *, field: int | None = None
) -> Iterator[tuple[int, int, int]]:
    """Yield number, start and stop of length-delimited fields, or only of those with one number."""
    for number, wire, field_start, field_stop in read_fields(record, start, stop):
        if wire == _DELIMITED and field in (None, number):
            yield number, field_start, field_stop


def read_fields(record: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield number, wire type, start and stop of each field of a message in record[at:end]."""
    while at < end:
        tag, at = read_varint(record, at, end)
        wire = tag & 7
        start = at
        if wire == _DELIMITED:
            size, start = read_varint(record, at, end)
            at = start + size
        elif wire == _VARINT:
            _, at = read_varint(record, at, end)
        elif wire in _WIDTHS:
            at += _WIDTHS[wire]
        else:
            raise NotAnExample(f"the field at byte {start} has no known type")
        if at > end:
            raise NotAnExample(f"it ends within the field at byte {start}")
        yield tag >> 3, wire, start, at


def read_varint(record: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < _LONGEST_VARINT:
        byte = record[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the last group
            return value, at
        shift += 7
    raise NotAnExample(f"the number before byte {at} is cut off or too long")


def decode_varints(data: bytes) -> np.ndarray:
    """Decode consecutive varints as (n,) int64, without a Python call for each."""
    groups = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(groups < 0x80)  # noqa: PLR2004 - the last group of each
    if len(groups) and (not len(ends) or ends[-1] != len(groups) - 1):
        raise NotAnExample("it ends within a number")
    if not len(ends):
        return np.empty(0, np.int64)
    starts = np.concatenate([[0], ends[:-1] + 1])
    shifts = 7 * (np.arange(len(groups)) - np.repeat(starts, ends + 1 - starts))
    parts = (groups & 0x7F).astype(np.uint64) << shifts.astype(np.uint64)
    return np.add.reduceat(parts, starts).view(np.int64)
