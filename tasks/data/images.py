"""Examining one image file: can it be decoded, how large is it, and do TensorFlow's decoders give the right pixels?

Files that they would read wrongly or not at all (WebP, GIF, BMP, palettes, alpha, 16 bits, CMYK, EXIF orientation) are
converted once to a plain 8-bit PNG, so that every later stage sees only JPEG and PNG that decode to what a person sees.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from tasks.files import atomic_file, digest_bytes

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP")
_ORIENTATION = 0x0112
_UPRIGHT = (None, 0, 1)
_GREY_MODES = frozenset({"1", "L", "LA", "La", "I", "F", "I;16", "I;16B", "I;16L"})

# The limit is `data.max_pixels`, checked from the header below; Pillow's own would warn instead.
Image.MAX_IMAGE_PIXELS = None


class Unusable(Exception):
    """The reason why a file cannot be used as an example."""


@dataclass(frozen=True, kw_only=True)
class Examined:
    """A usable image: the file to read it from, its size and the digest of that file's bytes."""

    path: Path
    bytes: int
    digest: str
    height: int
    width: int
    channels: int
    note: str | None


def examine(path: Path, *, root: Path, max_pixels: int, converted: Path) -> Examined:
    """Decode an image completely and make sure that TensorFlow will see the same picture.

    A conversion is written into the folder `converted`, named by the digest of the original. Memory is bounded by
    `max_pixels`, since larger images are refused from their header.

    Raises:
      Unusable: the reason, in words for the list of rejected examples.
    """
    if not path.resolve().is_relative_to(root.resolve()):
        raise Unusable("leads outside the data root")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Unusable(f"cannot be read: {error.strerror}") from error
    if not data:
        raise Unusable("empty file")
    try:
        with Image.open(path, formats=FORMATS) as image:
            height, width = image.height, image.width
            if height * width > max_pixels:
                raise Unusable(f"{width}×{height} pixels exceed data.max_pixels ({max_pixels})")
            kind = image.format or "?"
            image.load()
            plain = _is_plain(image)
            upright = image if plain else _as_plain(image)
    except UnidentifiedImageError as error:
        raise Unusable("not an image in JPEG, PNG, GIF, BMP or WebP format") from error
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        raise Unusable(f"damaged image: {error}") from error
    note = None if path.suffix.lower().replace("jpg", "jpeg") == f".{kind.lower()}" else f"content is {kind}"
    if not plain:
        path = converted / f"{digest_bytes(data)}.png"
        if not path.exists():
            with atomic_file(path) as temporary:
                upright.save(temporary, format="PNG")
        data = path.read_bytes()
    return Examined(
        path=path,
        bytes=len(data),
        digest=digest_bytes(data),
        height=upright.height,
        width=upright.width,
        channels=1 if upright.mode == "L" else 3,
        note=note,
    )


def _is_plain(image: Image.Image) -> bool:
    """Whether TensorFlow decodes the file to the upright 8-bit picture as it stands."""
    deep = image.format == "PNG" and image.info.get("transparency") is not None
    return image.format in ("JPEG", "PNG") and image.mode in ("L", "RGB") and not deep and image.getexif().get(_ORIENTATION) in _UPRIGHT


def _as_plain(image: Image.Image) -> Image.Image:
    """Turn any mode into upright 8-bit grey or RGB; transparency is laid over white."""
    upright = ImageOps.exif_transpose(image)
    if upright.mode in ("I", "F", "I;16", "I;16B", "I;16L"):
        values = np.asarray(upright, np.float64)
        top = 65535.0 if values.max(initial=0) > 255 else 255.0  # noqa: PLR2004
        return Image.fromarray(np.clip(values * 255 / top, 0, 255).round().astype(np.uint8), "L")
    grey = upright.mode in _GREY_MODES
    if upright.has_transparency_data:
        white = Image.new("RGBA", upright.size, "white")
        white.alpha_composite(upright.convert("RGBA"))
        upright = white
    return upright.convert("L" if grey else "RGB")
