"""Small pictures, settings of small data, and the first stages run on them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from throughline.data.ingest import ingest
from throughline.data.manifest import Manifest
from throughline.data.shards.writing import shard
from throughline.settings import DataSettings, ShardSettings, SplitSettings

SPLIT = SplitSettings(validation=0.2, test=0.2)


def picture(seed: int, *, size: tuple[int, int] = (40, 30), mode: str = "RGB") -> Image.Image:
    """A smooth random picture: photo-like enough for JPEG, different for each seed."""
    small = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), np.uint8)
    return Image.fromarray(small).resize(size, Image.Resampling.BICUBIC).convert(mode)


def save_photos(root: Path, count: int, *classes: str, suffix: str = "jpg") -> Path:
    """Write so many pictures into folders of classes, which take turns; returns the root."""
    for number in range(count):
        path = root / classes[number % len(classes)] / f"{number:02d}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(number).save(path)
    return root


def write_files(root: Path, files: Mapping[str, bytes | str]) -> Path:
    """Write files by their paths below a folder, which is returned; texts as UTF-8."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def flip_bit(path: Path, at: int) -> None:
    """Change one bit of a file, in the byte at this place or, if negative, from the end."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def read_files(folder: Path) -> dict[str, bytes]:
    """What is in all files below a folder, by their paths in it."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def data_settings(path: Path, source: str = "image_folder", **changes: object) -> DataSettings:
    """Settings of small data, much of which may be rejected."""
    usual = {"source": source, "path": str(path), "max_reject_fraction": 0.9, "split": SPLIT}
    return DataSettings(**{**usual, **changes})


def read_reasons(manifest: Manifest) -> dict[str, str]:
    """Why examples were rejected, by their ids."""
    return dict(zip(manifest.rejected["id"], manifest.rejected["reason"], strict=True))


def prepared(settings: DataSettings, folder: Path, *, min_shards: int = 3) -> Path:
    """Manifest and shards of small data, in a folder that is returned."""
    manifest = ingest(settings, folder / "manifest")
    manifest = replace(manifest, folder=folder / "manifest")
    shard(manifest, folder / "shards", settings=ShardSettings(min_shards=min_shards, writers=2))
    return folder
