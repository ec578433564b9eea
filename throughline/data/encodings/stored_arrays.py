"""Reads arrays within the bytes of another file, such as a feature of a TFRecord.

Tensors and NumPy arrays state shape and dtype; settings give those of bare values. Source of the
tensor format: tensorflow/core/framework/tensor.proto, as tf.io.serialize_tensor writes it.
"""

import io
import tokenize
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from throughline.data.shards.example_features import (
    NotAnExample,
    decode_varints,
    parse_features,
    read_delimited,
    read_fields,
    read_varint,
)
from throughline.shared.errors import UnreadableSource

_SIGNATURES = {b"\xff\xd8\xff": "JPEG", b"\x89PNG": "PNG", b"GIF8": "GIF", b"RIFF": "WebP"}
_NUMPY = b"\x93NUMPY"
_TENSOR = b"\x08"  # a tensor's first field is the type
_BFLOAT16, _TEXT = 14, 7
# Dtypes of tensors by their numbers in types.proto.
_TYPES = {
    **{1: "<f4", 2: "<f8", 3: "<i4", 4: "u1", 5: "<i2", 6: "i1", 8: "<c8", 9: "<i8", 10: "?"},
    **{_BFLOAT16: "<u2", 17: "<u2", 18: "<c16", 19: "<f2", 22: "<u4", 23: "<u8"},
}
_TYPE, _SHAPE, _VERSION, _CONTENT = 1, 2, 3, 4
# Readers of the fields that list values: packed floats, texts, packed base-128 numbers.
_LISTS: dict[int, Callable[[bytes], list[Any]]] = {
    5: lambda packed: np.frombuffer(packed, "<f4").tolist(),
    6: lambda packed: np.frombuffer(packed, "<f8").tolist(),
    8: lambda text: [text],
    **dict.fromkeys((7, 10, 11, 16, 17), lambda packed: decode_varints(packed).tolist()),
}
# Errors for bytes that only begin like an array.
_UNREADABLE = (
    *(ValueError, LookupError, ArithmeticError, MemoryError, EOFError, SyntaxError),
    tokenize.TokenError,
)
_MOST_FILLED = 1 << 24  # most values of a tensor that lists only the first and repeats the last
# Magnitudes of numbers that people store; other bytes, read as floats, are seldom in this range.
_SMALLEST, _LARGEST = 1e-20, 1e20


@dataclass(frozen=True, kw_only=True)
class ArrayForm:
    stored_as: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    def __str__(self) -> str:
        extent = "×".join(map(str, self.shape)) or "a single value"
        return f"{self.stored_as}, {self.dtype} {extent}"


def read_array(data: bytes) -> tuple[ArrayForm, np.ndarray] | None:
    """Return the array that these bytes encode, in native byte order; None if they encode none.

    Text from tensors has the dtype object.
    """
    stored_as, values = "serialized tensor", None
    try:
        if data[:1] == _TENSOR:
            values = _read_tensor(data)
        elif data.startswith(_NUMPY):
            stored_as, file = "NumPy array", io.BytesIO(data)
            values = np.lib.format.read_array(file, allow_pickle=False)
            values = None if file.read(1) else values
    except _UNREADABLE:
        return None
    if values is None:
        return None
    values = values.astype(values.dtype.newbyteorder("="), copy=False)
    name = "text" if values.dtype.kind in "OSU" else values.dtype.name
    return ArrayForm(stored_as=stored_as, shape=values.shape, dtype=name), values


def _read_tensor(data: bytes) -> np.ndarray | None:
    """Return the values of a TensorProto; None, ValueError or LookupError for other bytes."""
    number, shape, content = 0, (), b""
    listed: list[Any] = []
    for field, wire, start, stop in read_fields(data, 0, len(data)):
        if field == _TYPE and wire == 0:
            number, _ = read_varint(data, start, stop)
        elif field == _SHAPE:
            shape = _read_shape(data, start, stop)
        elif field == _CONTENT:
            content = data[start:stop]
        elif field != _VERSION:
            listed += _LISTS[field](data[start:stop])
    if number == _TEXT:
        texts = np.empty(len(listed), object)
        texts[:] = listed
        return texts.reshape(shape)
    if len(listed) < (size := int(np.prod(shape, dtype=np.int64))) <= _MOST_FILLED:
        listed += listed[-1:] * (size - len(listed))  # the last one stands for all that follow
    if number not in _TYPES or not (content or (listed and number != _BFLOAT16)):
        return None
    values = np.frombuffer(content, _TYPES[number]) if content else np.array(listed, _TYPES[number])
    if number == _BFLOAT16:
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return values.reshape(shape)


def _read_shape(data: bytes, start: int, stop: int) -> tuple[int, ...]:
    sizes = []
    for _, dim_start, dim_stop in read_delimited(data, start, stop, field=2):
        found = [
            read_varint(data, value_start, value_stop)[0]
            for number, wire, value_start, value_stop in read_fields(data, dim_start, dim_stop)
            if number == 1 and wire == 0
        ]
        sizes.append(found[0] if found else 0)
    return tuple(sizes)


def find_image(data: bytes) -> str:
    """Return "JPEG", "PNG", "GIF" or "WebP" by an image's first bytes, or "" for anything else."""
    return next((name for sign, name in _SIGNATURES.items() if data.startswith(sign)), "")


def name_content(data: bytes) -> str:
    """Describe what bytes are: an image, an array or a tf.train.Example; "" if unknown."""
    if image := find_image(data):
        return image
    if found := read_array(data):
        return str(found[0])
    try:
        return f"a tf.train.Example with {', '.join(sorted(parse_features(data)))}"
    except NotAnExample:
        return ""


def look_like_floats(data: bytes) -> bool:
    """Return whether bytes may be float32: each value is 0 or of a plausible magnitude."""
    if len(data) % 4:
        return False
    values = np.abs(np.frombuffer(data, "<f4"))
    return bool(((values == 0) | ((values > _SMALLEST) & (values < _LARGEST))).all())


def choose_array(
    name: str, forms: Counter[ArrayForm], shape: tuple[int, ...]
) -> tuple[ArrayForm, tuple[int, ...]]:
    """Return the form that most of a feature's first arrays have, and the shape of an example.

    `shape` is `data.records.shape`; if it is empty, examples have the form's shape, or (1,). Raises
    UnreadableSource if no form has a majority, or it is text or complex, or does not fit `shape`.
    """
    (form, count), *others = forms.most_common()
    if 2 * count <= forms.total():
        raise UnreadableSource(
            f"data.records.input: {name} differs from record to record ({form} or {others[0][0]});"
            " values must have one shape and dtype"
        )
    if form.dtype == "text" or form.dtype.startswith("complex"):
        raise UnreadableSource(
            f"data.records.input: {name} is a {form}; it must be an encoded image as bytes, or an"
            " array of real numbers"
        )
    check_shape(name, shape, form.size)
    return form, shape or form.shape or (1,)


def check_shape(name: str, shape: tuple[int, ...], size: int) -> None:
    """Raise UnreadableSource if `shape` is not empty and does not have `size` values."""
    if shape and int(np.prod(shape)) != size:
        raise UnreadableSource(
            f"data.records.shape: {list(shape)} has {int(np.prod(shape)):,} values, but {name} has"
            f" {size:,}"
        )


def choose_form(
    name: str, length: int, *, floats: bool, shape: Sequence[int], dtype: str
) -> tuple[tuple[int, ...], str]:
    """Return the shape and dtype of `length` bytes of bare values, as `data.records` sets them.

    `floats`: bytes may be float32. UnreadableSource: the settings do not fit, or leave a choice.
    """
    size = int(np.prod(shape, dtype=np.int64))
    for one in [dtype] if dtype != "auto" else ["uint8", *["float32"] * floats]:
        width = np.dtype(one).itemsize
        if shape and size * width == length:
            return tuple(shape), one
        if not shape and dtype != "auto" and length % width == 0:
            return (length // width,), one
    if dtype != "auto":
        raise UnreadableSource(
            f"data.records: {name} has {length:,} bytes, but {list(shape) or 'whole'} values"
            f" of {dtype} take a different number",
            "set data.records.shape and data.records.dtype to those of the stored values",
        )
    seen = f"{length:,} values of uint8" + f" or {length // 4:,} of float32" * floats
    if not shape:
        raise UnreadableSource(
            f"data.records.input: {name} holds {length:,} bytes that are not an image in JPEG, PNG,"
            f" GIF or WebP format and state no shape: {seen}",
            "set data.records.shape to the shape of these values, such as [28, 28, 1], or"
            " data.records.dtype to learn from them as vectors",
        )
    known = (
        f"data.records.shape: {list(shape)} has {size:,} values, but {name} has {length:,} bytes"
    )
    if size and length % size == 0:
        raise UnreadableSource(
            f"{known}, {length // size} for each",
            "set data.records.dtype to that of the values, such as int32, or correct the shape",
        )
    raise UnreadableSource(
        f"{known}: {seen}", "set data.records.shape to that of the stored values"
    )
