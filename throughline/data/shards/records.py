"""Encodes examples as serialized tf.train.Example, without TensorFlow.

Records have the features `key` (int64), `label` (int64 class, or steps of a series; or floats) and
`image`, `features` or `text` (bytes), and perhaps `columns` (floats). The wire format is written
directly, so examples of one size are encoded as whole arrays, without a Python call per record. Any
TFRecord reader understands the result. Source of the format:
tensorflow/core/example/example.proto and the protocol-buffer wire encoding.
"""

import hashlib
from collections.abc import Sequence
from functools import cache

import numpy as np

Label = float | Sequence[float]
_KEY_BYTES, _LABEL_BYTES = 9, 5  # varints of fixed width: 63 and 35 bits
_FIRST, _SECOND = b"\x0a", b"\x12"  # tags of fields 1 and 2 that hold bytes


def example_key(example_id: str) -> int:
    """Return the 63-bit key that identifies an example in shards, snapshots and augmentation."""
    return (
        int.from_bytes(hashlib.blake2b(example_id.encode(), digest_size=8).digest(), "little") >> 1
    )


def encode_head_and_tail(
    size: int, *, key: int, label: Label, feature: str, columns: bytes = b""
) -> tuple[bytes, bytes]:
    """Serialize one tf.train.Example with the features key, label and `feature`.

    Returns the bytes before and after the value of `size` bytes, so that the value need not be
    copied. An int label is stored as int64, one or several floats as float. `columns` are the bytes
    of further numbers, float32.
    """
    whole = isinstance(label, int)
    number = _varint(label, _LABEL_BYTES) if whole else np.asarray(label, "<f4").tobytes()
    tail = _entry_prefix("columns", 2, len(columns)) + columns if columns else b""
    tail += _entry_prefix("key", 3, _KEY_BYTES) + _varint(key, _KEY_BYTES)
    tail += _entry_prefix("label", 3 if whole else 2, len(number)) + number
    head = b""
    # From the inside: the list, the feature, the map entry with its name, the features; each begins
    # with the size of its content.
    for lead in (_FIRST, _FIRST, _feature_prefix(feature), _FIRST):
        head = lead + _varint(len(head) + size) + head
    return _FIRST + _varint(len(head) + size + len(tail)) + head, tail


def encode_examples(
    records: np.ndarray, *, keys: np.ndarray, labels: np.ndarray, values: np.ndarray, feature: str
) -> None:
    """Serialize examples of one fixed size into `records` (examples, bytes per record) uint8.

    The bytes are as from `encode_head_and_tail`. keys (examples,) int64, labels (examples,) int64
    or float32 or (examples, targets) float32, values (examples, *shape) of any dtype.
    """
    count = len(keys)
    raw = np.ascontiguousarray(values).reshape(count, -1).view(np.uint8)
    size = raw.shape[1]
    nothing = np.zeros_like(labels[0]).tolist()
    head, tail = encode_head_and_tail(size, key=0, label=nothing, feature=feature)
    key_at = len(head) + size + len(_entry_prefix("key", 3, _KEY_BYTES))
    number = (
        labels.astype("<f4").reshape(count, -1).view(np.uint8)
        if labels.dtype.kind == "f"
        else _varints(labels.astype(np.uint64), _LABEL_BYTES)
    )
    records[:, : len(head)] = np.frombuffer(head, np.uint8)
    records[:, len(head) : len(head) + size] = raw
    records[:, len(head) + size :] = np.frombuffer(tail, np.uint8)
    records[:, key_at : key_at + _KEY_BYTES] = _varints(keys.astype(np.uint64), _KEY_BYTES)
    records[:, -number.shape[1] :] = number


@cache
def _feature_prefix(name: str) -> bytes:
    return _delimited(1, name.encode()) + _SECOND


@cache
def _entry_prefix(name: str, kind: int, width: int) -> bytes:
    """Return the bytes before a number of `width` bytes in its map<string, Feature> entry.

    The name is the entry's field 1; the feature, a list of numbers of field `kind`, is field 2.
    """
    feature = _delimited(kind, _delimited(1, bytes(width)))
    return _delimited(1, _feature_prefix(name) + _varint(len(feature)) + feature)[:-width]


def _delimited(field: int, payload: bytes) -> bytes:
    return bytes((field << 3 | 2,)) + _varint(len(payload)) + payload


def _varint(value: int, width: int = 1) -> bytes:
    """Encode a non-negative integer in base 128, low group first, in at least `width` bytes."""
    groups = bytearray()
    while value > 0x7F or len(groups) + 1 < width:  # noqa: PLR2004 - one group
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def _varints(values: np.ndarray, width: int) -> np.ndarray:
    """Encode many values at once as `_varint` does: (values, width) uint8."""
    shifts = np.arange(0, 7 * width, 7, dtype=np.uint64)
    groups = (values[:, None] >> shifts & np.uint64(0x7F)).astype(np.uint8)
    groups[:, :-1] |= 0x80
    return groups
