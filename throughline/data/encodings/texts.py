"""Examines texts one by one: their encoding, content and size. Usable ones are kept as UTF-8."""

import codecs
from pathlib import PurePath

from throughline.data.encodings.base import FileKind, RejectedValue
from throughline.plan.schema import Feature, find_encoding, register
from throughline.shared.errors import InvalidParams

_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_FIRST_BYTE, _LAST_BYTE, _NOT_ASCII = 0xDC80, 0xDCFF, 0x80  # surrogates that stand for bytes


@register
class TextEncoding(FileKind):
    name = "text"
    modality = "text"
    noun = "text"
    storage = "documents"
    padded = True
    suffixes = frozenset({".txt", ".text", ".md", ".rst", ".eml", ".html"})

    def looks_like(self, name: str, first: bytes) -> bool:
        return not PurePath(name).suffix and bool(first) and b"\0" not in first


def text_feature() -> Feature:
    """Return the input feature of texts: their tokens, (length,)."""
    return Feature(
        name="text", role="input", encoding=find_encoding("text"), shape=(None,), dtype="int32"
    )


def check_size(size: int, max_bytes: int) -> None:
    """Raise RejectedValue if a document is larger than `max_bytes`."""
    if size > max_bytes:
        raise RejectedValue("larger than data.max_bytes", f": {size:,} bytes")


def check_encoding(encoding: str, *, lines: bool = False) -> None:
    """Raise InvalidParams for an encoding that Python does not know.

    Files of `lines` also need one in which a line break is one byte.
    """
    try:
        one_byte = "\n".encode(encoding) == b"\n"
    except LookupError as error:
        raise InvalidParams(
            [f"data.encoding: {encoding} is not an encoding; use utf-8, latin-1, cp1252 …"]
        ) from error
    if lines and not one_byte:
        raise InvalidParams(
            [f"data.encoding: files of lines cannot be read in {encoding}; convert them to utf-8"]
        )


def inspect_text(content: bytes | str, *, encoding: str) -> bytes:
    """Return a document in UTF-8, without a byte order mark.

    In a string, surrogates stand for bytes that are not in the encoding. Raises RejectedValue if
    the document is not in the encoding, binary, or empty.
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
    except UnicodeError as error:  # a codec's error that names no position
        raise RejectedValue(f"not {encoding}", f": {error}") from error
