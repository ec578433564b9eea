"""Examines image files: can they be decoded, and do TensorFlow's decoders give the right pixels?

Files that TensorFlow would read wrongly or not at all (WebP, GIF, BMP, palettes, alpha, 16 bits,
CMYK, EXIF orientation) are converted once to a plain 8-bit PNG, so that later stages see only JPEG
and PNG. Pillow and TensorFlow tolerate different faults. If Pillow decodes a file that follows its
standard exactly (`is_sound`, which is faster than decoding), TensorFlow decodes it, too
(`tests/fuzz/fuzz_parsers.py --target image` compares them on mutated files). TensorFlow is asked
about all other files that are not converted.
"""

from __future__ import annotations

import io
import re
import struct
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from throughline.data.encodings.base import FileInfo, InputFile, Inspect, RejectedValue
from throughline.data.encodings.decode_probe import Decoder
from throughline.shared.files import atomic_file, digest_blake2b

LARGEST_PIXEL = 8  # most bytes of a pixel: four channels of 16 bits
BESIDES_PIXELS = 4 << 20  # bytes allowed for color profiles, thumbnails and other metadata
STRIP = 256  # rows
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP")
DARK = 32  # level, of 256; a 16-bit image with all values below it is dark
DARK_NOTE = (
    "dark: 16 bits, but no value above an eighth of the range; scale the values of such images to"
    " the full range before they are saved"
)
DEEP = 16  # bits
_DEPTH, _COLORS = 24, 25  # offsets of the bit depth and the color type in a PNG file
_GRAY = (0, 4)  # without and with transparency
_ORIENTATION = 0x0112
_UPRIGHT = (None, 0, 1)
_GRAY_MODES = frozenset({"1", "L", "LA", "La"})
_DEEP_MODES = frozenset({"I", "I;16", "I;16B", "I;16L"})

MOST_PIXELS = 1 << 25  # above this number, decoders begin to have limits of their own
_PNG = b"\x89PNG\r\n\x1a\n"
# Channels by depth, color type and methods in a header: 8-bit gray and RGB, not interlaced.
_CHANNELS = {b"\x08\0\0\0\0": 1, b"\x08\2\0\0\0": 3}
_FILTERS = 5
# Chunks that encoders usually write. TensorFlow is asked about files with other chunks.
_PLAIN_CHUNKS = frozenset(
    b"IHDR IDAT IEND bKGD pHYs gAMA cHRM sBIT sRGB iTXt tEXt zTXt tIME eXIf iCCP".split()
)
_REPEATED = frozenset({b"IDAT", b"iTXt", b"tEXt", b"zTXt"})
_SOI, _EOI, _SOS = 0xD8, 0xD9, 0xDA
_FRAMES = frozenset({0xC0, 0xC1, 0xC2})  # baseline, extended, progressive; all with Huffman codes
# Markers that stand alone, markers of other frames, and bytes that are no marker.
_NOT_SEGMENTS = frozenset(
    {0x00, 0x01, *range(0xD0, 0xDA), 0xFF, *range(0xC3, 0xD0)} - {0xC4, 0xC8, 0xCC}
)
_NEXT_MARKER = re.compile(rb"\xff+[^\x00\xff\xd0-\xd7]")

# The limit is `data.max_pixels`, checked from the header below; Pillow's own would warn instead.
Image.MAX_IMAGE_PIXELS = None


class ImageInspector(AbstractContextManager[Inspect]):
    """Inspects image files in a `with` block; a copy sent to another process has its own decoder.

    Any thread may use it: Pillow decodes without the GIL, TensorFlow outside of this process.
    Memory is bounded by `max_pixels`: images with more pixels are refused by their header, and
    files with too many bytes for their pixels are refused unread.
    """

    def __init__(self, max_pixels: int) -> None:
        self.max_pixels, self.decoder = max_pixels, Decoder()

    def __reduce__(self) -> tuple[type[ImageInspector], tuple[int]]:
        return ImageInspector, (self.max_pixels,)

    def __exit__(self, *_: object) -> None:
        self.decoder.close()

    def __call__(self, file: InputFile, converted: Path) -> FileInfo:
        """Decode an image file completely, and check that TensorFlow will see the same picture.

        A converted copy is written into the folder `converted`, named by the original's digest.
        Raises RejectedValue if the file cannot be used.
        """
        data = file.read(lambda opened, size: _check_file(opened, size, self.max_pixels))
        path = file.path
        with _opened(io.BytesIO(data)) as image:
            _check_pixels(image, self.max_pixels)
            # MPO, which phones write, is a JPEG with more pictures after it, which decoders ignore.
            kind = "JPEG" if image.format == "MPO" else image.format or "?"
            image.load()
            kept = _decodes_as_is(image)
            upright = image if kept else _to_8_bit(image, data)
            deep = image.mode in _DEEP_MODES or (kind == "PNG" and data[_DEPTH] == DEEP)
            dark = deep and np.asarray(upright).max() < DARK
        height, width, channels = upright.height, upright.width, 1 if upright.mode == "L" else 3
        if kept and not is_sound(data):
            problem = self.decoder.find_problem(data, height=height, width=width)
            if problem:
                raise RejectedValue("damaged image", f": {problem}")
        # The name of a file with many images says nothing about their formats.
        named = file.is_part or path.suffix.lower().replace("jpg", "jpeg") == f".{kind.lower()}"
        note = None if named else f"content is {kind}"
        if not kept:
            path = converted / f"{digest_blake2b(data)}.png"
            if not path.exists():
                with atomic_file(path) as temporary:
                    upright.save(temporary, format="PNG", compress_level=1)
            data = path.read_bytes()
        return FileInfo(
            path=path,
            bytes=len(data),
            digest=digest_blake2b(data),
            shape=(height, width, channels),
            note=DARK_NOTE if dark else note,
        )


def _check_file(file: BinaryIO | None, size: int, max_pixels: int) -> None:
    if size == 0:
        raise RejectedValue("empty file")
    _check_bytes(size, max_pixels)
    if file and size > BESIDES_PIXELS:
        with _opened(file) as image:
            _check_pixels(image, max_pixels)
            if image.format not in ("GIF", "WEBP"):  # may hold many pictures
                _check_bytes(size, image.height * image.width)


def _check_bytes(size: int, pixels: int) -> None:
    if size > BESIDES_PIXELS + pixels * LARGEST_PIXEL:
        raise RejectedValue(
            f"larger than an image of {pixels:,} pixels can be", f": {size:,} bytes"
        )


def _check_pixels(image: Image.Image, max_pixels: int) -> None:
    if image.height * image.width > max_pixels:
        raise RejectedValue("more pixels than data.max_pixels", f": {image.width}×{image.height}")


@contextmanager
def _opened(file: BinaryIO) -> Iterator[Image.Image]:
    """Open an image; reject it for any error in the block but a lack of memory."""
    try:
        with Image.open(file, formats=FORMATS) as image:
            yield image
    except (RejectedValue, MemoryError):
        raise
    except UnidentifiedImageError as error:
        raise RejectedValue("not an image in JPEG, PNG, GIF, BMP or WebP format") from error
    except Exception as error:  # parsers of hostile bytes raise anything
        raise RejectedValue("damaged image", f": {error or type(error).__name__}") from error


def _decodes_as_is(image: Image.Image) -> bool:
    """Return whether TensorFlow decodes the file, as it stands, to the upright 8-bit picture."""
    clear = image.format == "PNG" and image.info.get("transparency") is not None
    plain = image.format in ("JPEG", "MPO", "PNG") and image.mode in ("L", "RGB") and not clear
    return plain and _orientation(image) in _UPRIGHT


def _orientation(image: Image.Image) -> int | None:
    try:
        return image.getexif().get(_ORIENTATION)
    except Exception:  # noqa: BLE001 - parsers of hostile bytes raise anything
        return None


def _to_8_bit(image: Image.Image, data: bytes) -> Image.Image:
    """Convert any mode to upright 8-bit gray or RGB; composite transparency over white."""
    turned = _orientation(image) not in _UPRIGHT
    upright = ImageOps.exif_transpose(image) if turned else image
    if upright.mode in _DEEP_MODES:
        return _narrowed(upright)
    # Pillow gives gray of 16 bits with transparency a mode for color.
    gray = upright.mode in _GRAY_MODES or (image.format == "PNG" and data[_COLORS] in _GRAY)
    # Programs that know no transparency leave zeros in the fourth bytes of a BMP.
    if image.format == "BMP" and image.mode == "RGBA" and not image.getchannel("A").getbbox():
        upright = upright.convert("RGB")
    if image.format == "PNG":
        _scale_clear_color(upright, bits=data[_DEPTH])
    if upright.has_transparency_data:
        white = Image.new("RGBA", upright.size, "white")
        white.alpha_composite(upright.convert("RGBA"))
        upright = white
    return upright.convert("L" if gray else "RGB")


def _scale_clear_color(image: Image.Image, *, bits: int) -> None:
    """Scale the transparent color of a PNG from `bits` to 8 bits, as Pillow scales the pixels."""
    clear = image.info.get("transparency")
    if image.mode == "L" and isinstance(clear, int) and bits in (2, 4):
        image.info["transparency"] = clear * 255 // (2**bits - 1)
    elif image.mode == "RGB" and isinstance(clear, tuple) and bits == DEEP:
        image.info["transparency"] = tuple(value >> 8 for value in clear)


def _narrowed(image: Image.Image) -> Image.Image:
    """Convert gray of 16 bits to 8 bits, with white for the transparent value.

    Works in strips: the 32-bit numbers of all rows would take four times the result's memory.
    """
    narrow, clear = Image.new("L", image.size), image.info.get("transparency", 1 << DEEP)
    for top in range(0, image.height, STRIP):
        strip = (0, top, image.width, min(top + STRIP, image.height))
        values = np.asarray(image.crop(strip)).astype(np.uint32)
        levels = np.where(values == clear, 255, (values + 128) // 257)
        narrow.paste(Image.fromarray(levels.astype(np.uint8)), strip)
    return narrow


def is_sound(data: bytes) -> bool:
    """Return whether these bytes are surely one whole JPEG or PNG image; False if in doubt."""
    return _is_sound_png(data) if data.startswith(_PNG) else _is_sound_jpeg(data)


def _is_sound_png(data: bytes) -> bool:
    """Return whether all chunks are common ones and whole, and the image data has all rows."""
    view, offset = memoryview(data), len(_PNG)
    kinds: list[bytes] = []
    pieces: list[memoryview] = []
    while offset + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, offset)
        end = offset + 12 + length
        checked, kind = view[offset + 4 : end - 4], data[offset + 4 : offset + 8]
        if end > len(data) or zlib.crc32(checked).to_bytes(4) != view[end - 4 : end]:
            return False
        if kind == b"IDAT":
            pieces.append(checked[4:])
        if kind not in _REPEATED or kinds[-1:] != [kind]:
            kinds.append(kind)
        offset = end
    once = len(set(kinds)) == len(kinds) and set(kinds) <= _PLAIN_CHUNKS
    whole = once and offset == len(data) and kinds[:1] == [b"IHDR"] and kinds[-1:] == [b"IEND"]
    return whole and _has_all_rows(data[len(_PNG) + 8 : len(_PNG) + 21], b"".join(pieces))


def _has_all_rows(header: bytes, deflated: bytes) -> bool:
    """Return whether the image data inflates to exactly the rows of an 8-bit gray or RGB image."""
    if len(header) < 13:  # noqa: PLR2004
        return False
    width, height, form = struct.unpack(">II5s", header)
    channels = _CHANNELS.get(form, 0)
    if not channels or not 0 < width * height <= MOST_PIXELS:
        return False
    row = 1 + width * channels
    inflate = zlib.decompressobj()
    try:
        rows = inflate.decompress(deflated, row * height + 1)
    except zlib.error:
        return False
    complete = len(rows) == row * height and inflate.eof and not inflate.unused_data
    return complete and max(rows[::row]) < _FILTERS


def _is_sound_jpeg(data: bytes) -> bool:
    """Return whether segments follow each other without gaps to the end, with one 8-bit frame."""
    if data[:2] != bytes((0xFF, _SOI)):
        return False
    offset, frames = 2, 0
    while offset + 4 <= len(data) and data[offset] == 0xFF:  # noqa: PLR2004 - begins every marker
        marker = data[offset + 1]
        (length,) = struct.unpack_from(">H", data, offset + 2)
        end = offset + 2 + length
        if marker in _NOT_SEGMENTS or end > len(data):
            return False
        if marker in _FRAMES:
            long_enough = length > 7  # noqa: PLR2004
            size = struct.unpack_from(">BHH", data, offset + 4) if long_enough else (0, 0, 0)
            if size[0] != 8 or not 0 < size[1] * size[2] <= MOST_PIXELS:  # noqa: PLR2004 - bits
                return False
            frames += 1
        if marker == _SOS:
            after = _NEXT_MARKER.search(data, end)
            if not after or len(after[0]) != 2:  # noqa: PLR2004 - a marker without fill bytes
                return False
            end = after.start()
            if data[end + 1] == _EOI:
                return frames == 1 and end + 2 == len(data)
        offset = end
    return False
