"""Checks that a JPEG or PNG file is built exactly as its standard says, faster than decoding it.

Decoders forgive different faults. TensorFlow decodes each file that is sound here and that Pillow
has decoded (`benchmarks/decoding.py` compares them on thousands of mutated files).
"""

from __future__ import annotations

import re
import struct
import zlib

LARGEST = 1 << 25  # pixels, above which decoders begin to have limits of their own
_PNG = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {0: 1, 2: 3}  # by color type: gray, RGB
_FILTERS = 5
# Chunks that encoders usually write. Others may be right as well, but are rare enough to ask.
_PLAIN_CHUNKS = frozenset(
    b"IHDR IDAT IEND bKGD pHYs gAMA cHRM sBIT sRGB iTXt tEXt zTXt tIME eXIf iCCP".split()
)
_REPEATED = frozenset({b"IDAT", b"iTXt", b"tEXt", b"zTXt"})
_STANDALONE = frozenset({0x01, *range(0xD0, 0xD8)})
_SOI, _EOI, _SOS = 0xD8, 0xD9, 0xDA
_FRAMES = frozenset({0xC0, 0xC1, 0xC2})  # baseline, extended, progressive; all with Huffman codes
_OTHER_FRAMES = frozenset({0xC3, *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0)})
_NEXT_MARKER = re.compile(rb"\xff+[^\x00\xff\xd0-\xd7]")


def is_sound(data: bytes) -> bool:
    """Return whether these bytes are one whole JPEG or PNG image, and nothing else."""
    return _is_sound_png(data) if data.startswith(_PNG) else _is_sound_jpeg(data)


def _is_sound_png(data: bytes) -> bool:
    """Return whether all chunks are known and whole, and the image data is for exactly all rows."""
    view, offset = memoryview(data), len(_PNG)
    kinds: list[bytes] = []
    pieces: list[memoryview] = []
    while offset + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, offset)
        end = offset + 12 + length
        if (
            end > len(data)
            or zlib.crc32(view[offset + 4 : end - 4]) != struct.unpack_from(">I", data, end - 4)[0]
        ):
            return False
        kind = data[offset + 4 : offset + 8]
        if kind == b"IDAT":
            pieces.append(view[offset + 8 : end - 4])
        if kind not in _REPEATED or kinds[-1:] != [kind]:
            kinds.append(kind)
        offset = end
    once = len(set(kinds)) == len(kinds) and set(kinds) <= _PLAIN_CHUNKS
    whole = once and offset == len(data) and kinds[:1] == [b"IHDR"] and kinds[-1:] == [b"IEND"]
    return whole and _has_all_rows(data[len(_PNG) + 8 : len(_PNG) + 21], b"".join(pieces))


def _has_all_rows(header: bytes, deflated: bytes) -> bool:
    """Return whether the image data inflates to the header's rows: 8 bits, gray or RGB."""
    if len(header) < 13:  # noqa: PLR2004
        return False
    width, height, depth, kind, *methods = struct.unpack(">IIBBBBB", header)
    if (
        (depth, methods) != (8, [0, 0, 0])
        or kind not in _CHANNELS
        or not 0 < width * height <= LARGEST
    ):
        return False
    row = 1 + width * _CHANNELS[kind]
    inflate = zlib.decompressobj()
    try:
        rows = inflate.decompress(deflated, row * height + 1)
    except zlib.error:
        return False
    return (
        len(rows) == row * height
        and inflate.eof
        and not inflate.unused_data
        and max(rows[::row]) < _FILTERS
    )


def _is_sound_jpeg(data: bytes) -> bool:
    """Return whether segments follow each other without gaps, from the first to the last marker."""
    if data[:2] != bytes((0xFF, _SOI)):
        return False
    offset, frames = 2, 0
    while offset + 4 <= len(data) and data[offset] == 0xFF:  # noqa: PLR2004 - begins every marker
        marker = data[offset + 1]
        (length,) = struct.unpack_from(">H", data, offset + 2)
        end = offset + 2 + length
        if (
            marker in _STANDALONE
            or marker in _OTHER_FRAMES
            or marker in (_SOI, _EOI, 0x00, 0xFF)
            or end > len(data)
        ):
            return False
        if marker in _FRAMES:
            precision, height, width = (
                struct.unpack_from(">BHH", data, offset + 4)
                if length > 7  # noqa: PLR2004
                else (0, 0, 0)
            )
            if precision != 8 or not 0 < height * width <= LARGEST:  # noqa: PLR2004
                return False
            frames += 1
        if marker == _SOS:
            marker_after = _NEXT_MARKER.search(data, end)
            if not marker_after or marker_after.end() - marker_after.start() != 2:  # noqa: PLR2004 - a marker without fill bytes
                return False
            end = marker_after.start()
            if data[end + 1] == _EOI:
                return frames == 1 and end + 2 == len(data)
        offset = end
    return False
