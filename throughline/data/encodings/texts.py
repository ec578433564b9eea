"""Examining texts one by one: can a document be read in its encoding, does it hold anything, and is
it no larger than allowed? What is usable is kept as UTF-8.
"""

from __future__ import annotations

import codecs

from throughline.data.encodings.base import RejectedValue
from throughline.plan.schema import Encoding, Feature, find_encoding, register
from throughline.settings import PipelineConfig
from throughline.shared.errors import InvalidParams

_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_FIRST_BYTE, _LAST_BYTE, _NOT_ASCII = 0xDC80, 0xDCFF, 0x80  # surrogates that stand for bytes


@register
class TextEncoding(Encoding):
    """Documents in UTF-8, which become tokens."""

    name = "text"
    modality = "text"
    noun = "text"
    storage = "documents"
    padded = True

    def decode(self, feature: Feature, config: PipelineConfig | None) -> None:
        """Nothing: `tokenize` takes the bytes."""


def text_feature() -> Feature:
    """The input of a dataset of texts: what they become, tokens (length,)."""
    return Feature(
        name="text", role="input", encoding=find_encoding("text"), shape=(None,), dtype="int32"
    )


def check_size(size: int, max_bytes: int) -> None:
    """Refuse a document of more than `max_bytes`.

    Raises:
      RejectedValue: it is larger.
    """
    if size > max_bytes:
        raise RejectedValue("larger than data.max_bytes", f": {size:,} bytes")


def check_encoding(encoding: str, *, lines: bool = False) -> None:
    """Refuse an encoding that Python does not know or, of files of `lines`, in which a line break
    is more than one byte.

    Raises:
      InvalidParams: says what to set.
    """
    try:
        one_byte = "\n".encode(encoding) == b"\n"
    except LookupError as error:
        raise InvalidParams(
            [f"data.encoding: {encoding} is no encoding; use utf-8, latin-1, cp1252, shift_jis …"]
        ) from error
    if lines and not one_byte:
        raise InvalidParams(
            [f"data.encoding: files of lines cannot be read in {encoding}; convert them to utf-8"]
        )


def inspect_text(content: bytes | str, *, encoding: str) -> bytes:
    """The document in UTF-8, without a byte order mark; a string holds bytes that are not of the
    encoding as surrogates.

    Raises:
      RejectedValue: it is not in the encoding, binary, or empty.
    """
    text = content if isinstance(content, str) else _decode(content, encoding)
    text = text.removeprefix("\ufeff")
    try:
        usable = text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        if not _FIRST_BYTE <= code <= _LAST_BYTE:
            raise RejectedValue("not Unicode: holds half of a surrogate pair") from error
        byte = code - _FIRST_BYTE + _NOT_ASCII
        raise RejectedValue(f"not {encoding}", f": byte 0x{byte:02x} at {error.start:,}") from error
    if "\0" in text:
        raise RejectedValue("binary: holds NUL characters")
    if not text.strip():
        raise RejectedValue("empty text")
    return usable


def _decode(content: bytes, encoding: str) -> str:
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        found = f": byte 0x{content[error.start]:02x} at {error.start:,}"
        hint = ", looks like utf-16" if content.startswith(_UTF16) else ""
        raise RejectedValue(f"not {encoding}", found + hint) from error
    except UnicodeError as error:  # of a codec that has no place to name
        raise RejectedValue(f"not {encoding}", f": {error}") from error
