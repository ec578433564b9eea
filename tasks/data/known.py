"""Known data sets: where they may lie on this machine, where they are published, and how photos are cut for the demo."""

from __future__ import annotations

import gzip
import hashlib
import random
import shutil
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from PIL import Image

from tasks.errors import DataNotFound
from tasks.progress import progress

# Published by Zalando Research (https://github.com/zalandoresearch/fashion-mnist). The SHA-256 digests are of the content behind GZIP,
# because distributions pack the same content anew.
FASHION_MNIST = {
    "train-images-idx3-ubyte.gz": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte.gz": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte.gz": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte.gz": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
FASHION_MNIST_COPIES = (
    Path("/usr/share/datasets/fashion-mnist"),
    Path.home() / ".keras" / "datasets" / "fashion-mnist",
    Path.home() / ".keras" / "datasets",
)
FASHION_MNIST_ADDRESS = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/"
WALLPAPERS = (Path("/usr/share/wallpapers"), Path("/usr/share/backgrounds"))
PHOTOS = 3000
PHOTO_SIZE = (500, 375)


def fetch_fashion_mnist(folder: Path) -> str:
    """Copy or download the four files into `folder`, each checked against its published digest."""
    folder.mkdir(parents=True, exist_ok=True)
    origins = set()
    for name, digest in FASHION_MNIST.items():
        target = folder / name
        if _holds(target, digest):
            continue
        copies = (place / name for place in FASHION_MNIST_COPIES)
        local = next((copy for copy in copies if _holds(copy, digest)), None)
        if local is not None:
            shutil.copyfile(local, target)
            origins.add(str(local.parent))
        else:
            _download(FASHION_MNIST_ADDRESS + name, target, digest)
            origins.add(FASHION_MNIST_ADDRESS)
    return f"Fashion-MNIST from {', '.join(sorted(origins)) or 'an earlier, interrupted fetch'}"


def make_photos(folder: Path, *, count: int = PHOTOS, roots: Sequence[Path] = WALLPAPERS) -> str:
    """Cut about `count` JPEG photos of 500×375 out of the wallpapers below `roots`, one class per wallpaper.

    Places, scales and qualities are drawn from a fixed seed, so the same wallpapers give the same photos.
    """
    sources = list(_wallpapers(roots))
    if not sources:
        places = " or ".join(map(str, roots))
        raise DataNotFound(
            f"no large pictures below {places}; on Debian: apt-get install plasma-workspace-wallpapers mate-backgrounds gnome-backgrounds, "
            "or use photos of your own: make demo DATA=photos PHOTOS=DIR (class folders of images)"
        )
    each = -(-count // len(sources))
    shutil.rmtree(folder, ignore_errors=True)
    for name, path in progress(sources, total=len(sources), label="cutting photos", unit="wallpapers"):
        with Image.open(path) as image:
            _cut(image.convert("RGB"), folder / name, each, random.Random(name))
    return f"{each * len(sources)} photos cut from {len(sources)} wallpapers"


def _cut(picture: Image.Image, folder: Path, count: int, draw: random.Random) -> None:
    folder.mkdir(parents=True)
    for index in range(count):
        zoom = min(draw.uniform(1.0, 2.0), picture.width / PHOTO_SIZE[0], picture.height / PHOTO_SIZE[1])
        width, height = int(PHOTO_SIZE[0] * zoom), int(PHOTO_SIZE[1] * zoom)
        left, top = draw.randint(0, picture.width - width), draw.randint(0, picture.height - height)
        photo = picture.resize(PHOTO_SIZE, Image.Resampling.BICUBIC, box=(left, top, left + width, top + height))
        photo.save(folder / f"{index:04d}.jpg", quality=draw.choice((88, 92, 95)))


def _wallpapers(roots: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Yield name and largest picture of each wallpaper (a wallpaper is a file or folder directly below a root)."""
    seen = set()
    for root in roots:
        for entry in sorted(root.glob("*")) if root.is_dir() else ():
            inside = sorted(entry.rglob("*")) if entry.is_dir() else [entry]
            pictures = [file for file in inside if file.suffix.lower() in (".jpg", ".jpeg", ".png") and file.is_file() and not file.is_symlink()]
            largest = max(pictures, key=lambda file: (file.stat().st_size, file.name), default=None)
            name = "".join(letter if letter.isalnum() else "_" for letter in entry.stem).lower()
            if largest is not None and name not in seen and _wide(largest):
                seen.add(name)
                yield name, largest


def _wide(path: Path) -> bool:
    with Image.open(path) as image:
        return image.width >= 3 * PHOTO_SIZE[0] and image.height >= 2 * PHOTO_SIZE[1]


def _download(address: str, target: Path, digest: str) -> None:
    try:
        with urllib.request.urlopen(address, timeout=30) as answer:
            data = answer.read()
    except (urllib.error.URLError, OSError, TimeoutError) as error:
        raise DataNotFound(
            f"{target.name} is neither on this machine nor downloadable from {address} ({getattr(error, 'reason', error)}); on Debian: "
            f"apt-get install dataset-fashion-mnist, or put the published files into {FASHION_MNIST_COPIES[1]}"
        ) from error
    target.write_bytes(data)
    if not _holds(target, digest):
        target.unlink()
        raise DataNotFound(f"{address} delivered something else than the published file (SHA-256 differs); get it by hand")


def _holds(path: Path, digest: str) -> bool:
    """Whether a GZIP file is there, complete, and has the published content."""
    try:
        return hashlib.sha256(gzip.decompress(path.read_bytes())).hexdigest() == digest
    except (OSError, EOFError, zlib.error):
        return False
