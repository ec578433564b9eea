"""One example on disk: its schema, and its encoding as a serialized tf.train.Example. No TensorFlow.

The wire format is written by hand because every record has the same three features: `key` (int64), `label` (int64)
and `image` (bytes). Any TFRecord reader understands the result; the tests read it back with two independent ones.
Source of the format: tensorflow/core/example/example.proto and the protocol-buffer wire encoding.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class RecordSchema:
    """What the `image` feature of every record holds.

    encoded: the bytes of a JPEG or PNG file; `shape` is None unless all images have the same size.
    raw: uint8 pixels of `shape` (height, width, channels) in C order.
    """

    payload: Literal["encoded", "raw"]
    shape: tuple[int, int, int] | None
    channels: Literal[1, 3]

    @staticmethod
    def from_json(value: dict) -> RecordSchema:
        """Rebuild a schema from its JSON form (lists become tuples)."""
        shape = value["shape"]
        return RecordSchema(payload=value["payload"], shape=None if shape is None else tuple(shape), channels=value["channels"])


def example_key(example_id: str) -> int:
    """Return the 63-bit key of an example: it identifies the example in shards, snapshots, digests and augmentation."""
    return int.from_bytes(hashlib.blake2b(example_id.encode(), digest_size=8).digest(), "little") >> 1


def encode_example(*, key: int, label: int, image: bytes) -> bytes:
    """Serialize one tf.train.Example with features key, label and image."""
    features = b"".join(
        (
            _feature(b"image", _delimited(1, _delimited(1, image))),
            _feature(b"key", _delimited(3, _delimited(1, _varint(key)))),
            _feature(b"label", _delimited(3, _delimited(1, _varint(label)))),
        )
    )
    return _delimited(1, features)


def _feature(name: bytes, feature: bytes) -> bytes:
    """One entry of the map<string, Feature>: key is field 1, value is field 2."""
    return _delimited(1, _delimited(1, name) + _delimited(2, feature))


def _delimited(field: int, payload: bytes) -> bytes:
    return bytes((field << 3 | 2,)) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    """Base-128 encoding of a non-negative integer, low group first."""
    if value < 0x80:  # noqa: PLR2004 - one group
        return bytes((value,))
    groups = bytearray()
    while value > 0x7F:  # noqa: PLR2004
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)
