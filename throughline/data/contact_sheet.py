"""Draws sample pictures of the training split, a row for each of the largest classes, into one PNG.

It accompanies the tables of `glance.py`. The choice of examples depends only on their contents.
"""

import io
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image, ImageDraw, ImageFont, UnidentifiedImageError

from throughline.data.glance import PICTURED
from throughline.data.manifest import VALUES, Manifest
from throughline.data.shards.file_parts import FilePart, read_parts
from throughline.shared.data_url import is_address
from throughline.shared.errors import DataNotFound
from throughline.shared.layout import SHEET

_PER_CLASS = 6
_SIDES = (64, 48, 32, 16)  # sides of thumbnails [pixels]; the first that fits `_BYTES` is used
_BYTES = 300_000
_GAP, _NAME_WIDTH, _LETTERS = 4, 150, 22


def write_sheet(manifest: Manifest, classes: Sequence[str], *, out: Path) -> None:
    """Draw examples of the first `classes` into the manifest's folder, later renamed to `out`.

    Draws nothing if examples are not images, are files in a bucket or cannot be read, or if even
    the smallest sheet is too large.
    """
    if manifest.schema.is_series or manifest.schema.input.encoding.modality != "images":
        return
    train = manifest.for_split("train").sort_values(["digest", "id"])
    rows = {"all": train.head(_PER_CLASS)}
    if manifest.classes:
        by_class = dict(iter(train.groupby("label")))
        number = {name: place for place, name in enumerate(manifest.classes)}
        shown = [name for name in classes if number[name] in by_class][:PICTURED]
        rows = {name: by_class[number[name]].head(_PER_CLASS) for name in shown}
    if any(is_address(uri) for examples in rows.values() for uri in examples["uri"]):
        return
    try:
        pictures = [(name, [*_read(found, manifest, out)]) for name, found in rows.items()]
    except (DataNotFound, OSError, UnidentifiedImageError):
        return  # ingest itself reports a changed file
    more = len(classes) - len(rows) if manifest.classes else 0
    for side in _SIDES:
        buffer = io.BytesIO()
        _draw(pictures, more, side=side).save(buffer, "PNG", optimize=True)
        if len(buffer.getvalue()) <= _BYTES:
            (manifest.folder / SHEET).write_bytes(buffer.getvalue())
            return


def _read(examples: pd.DataFrame, manifest: Manifest, out: Path) -> Iterator[Image.Image]:
    values = manifest.folder / VALUES
    if values.exists():
        pixels = np.load(values, mmap_mode="r", allow_pickle=False)
        for row in examples["row"]:
            one = np.array(pixels[row])
            yield _shrink(Image.fromarray(one[..., 0] if one.shape[-1] == 1 else one))
        return
    parts = [
        FilePart(example_id=name, uri=_find_now(uri, manifest, out), offset=row, bytes=size)
        for name, uri, row, size in examples[["id", "uri", "row", "bytes"]].itertuples(index=False)
    ]
    for data in read_parts(parts):
        with Image.open(io.BytesIO(data)) as image:
            image.draft("RGB", (2 * _SIDES[0], 2 * _SIDES[0]))
            yield _shrink(image)


def _find_now(uri: str, manifest: Manifest, out: Path) -> str:
    """Return the present path of a file: files below `out` are still in the manifest's folder."""
    path = Path(uri)
    return str(manifest.folder / path.relative_to(out)) if path.is_relative_to(out) else uri


def _shrink(image: Image.Image) -> Image.Image:
    side, largest = _SIDES[0], max(image.size)
    if 2 * largest <= side:  # each pixel becomes a square
        times = side // largest
        size = image.width * times, image.height * times
        return image.convert("RGB").resize(size, Image.Resampling.NEAREST)
    small = image.convert("RGB")
    small.thumbnail((side, side))
    return small


def _load_font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Return Matplotlib's font, without importing Matplotlib, or Pillow's, with fewer scripts."""
    found = find_spec("matplotlib")
    path = Path(found.origin).parent / "mpl-data" if found and found.origin else Path()
    try:
        return ImageFont.truetype(path / "fonts" / "ttf" / "DejaVuSans.ttf", 11)
    except OSError:
        return ImageFont.load_default()


def _draw(
    rows: Sequence[tuple[str, Sequence[Image.Image]]], more: int, *, side: int
) -> Image.Image:
    pitch, font = side + _GAP, _load_font()
    width = _NAME_WIDTH + _PER_CLASS * pitch
    height = len(rows) * pitch + _GAP + (20 if more else 0)
    sheet = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(sheet)
    for place, (name, pictures) in enumerate(rows):
        top = _GAP + place * pitch
        shown = name if len(name) <= _LETTERS else f"{name[: _LETTERS - 1]}…"
        draw.text((_GAP, top + side // 2 - 6), shown, "black", font)
        for column, picture in enumerate(pictures):
            one = picture.copy()
            one.thumbnail((side, side))
            sheet.paste(one, (_NAME_WIDTH + column * pitch, top))
    if more:
        draw.text((_GAP, height - 18), f"and {more:,} more classes", "black", font)
    return sheet
