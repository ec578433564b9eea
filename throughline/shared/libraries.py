"""The libraries whose versions decide a stage's output, and a check of them against uv.lock.

A version has the same effect as a line of code: another decoder gives other pixels. DVC watches
uv.lock, so the installed versions must match it.
"""

import re
import sys
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path

from throughline.shared.errors import WrongVersion

LOCK_FILE = Path("uv.lock")
# Fetched datasets are sources: they do not change with the library that once resized them.
LIBRARIES: Mapping[str, tuple[str, ...]] = {
    "fetch": (),
    "ingest": ("blake3", "numpy", "pandas", "pillow", "pyarrow", "tensorflow"),
    "shard": ("blake3", "google-crc32c", "numpy"),
    "snapshot": ("blake3", "numpy", "opencv-python-headless", "tensorflow"),
    "build": ("numpy", "opencv-python-headless", "tensorflow"),
    "train": ("keras", "numpy", "opencv-python-headless", "tensorflow"),
    "profile": ("keras", "numpy", "opencv-python-headless", "tensorflow"),
    "race": ("keras", "numpy", "opencv-python-headless", "tensorflow"),
    "report": ("jinja2", "matplotlib"),
}
# Libraries that fit and run every tokenizer except that of bytes.
TOKENIZERS = ("sentencepiece", "tensorflow-text")
_OF_OPS = frozenset({"snapshot", "build", "train", "profile", "race"})


def stage_libraries(stage: str, preprocess: Iterable[str]) -> tuple[str, ...]:
    """Return the libraries that decide a stage's output, with those of the ops that it runs."""
    return (*LIBRARIES.get(stage, ()), *(preprocess if stage in _OF_OPS else ()))


def installed_versions(libraries: Iterable[str]) -> dict[str, str]:
    """Return versions by library, or `absent`; Pillow adds those of its JPEG and PNG libraries."""
    versions = {}
    for name in libraries:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "absent"
    if "pillow" in versions:
        from PIL import features

        versions["libjpeg"] = str(features.version("libjpeg_turbo") or features.version("jpg"))
        versions["zlib"] = str(features.version("zlib_ng") or features.version("zlib"))
    return versions


def find_distributions(packages: Iterable[str]) -> list[str]:
    brought = _brought_packages(tuple(sys.path))
    return sorted({name for package in packages for name in brought.get(package, ())})


@cache
def _brought_packages(path: tuple[str, ...]) -> Mapping[str, list[str]]:
    return metadata.packages_distributions()


def check_versions(libraries: Collection[str], *, root: Path) -> None:
    """Raise WrongVersion if a library has another version than in `root`/uv.lock, if it exists."""
    lock = root / LOCK_FILE
    if not libraries or not lock.exists():
        return
    text = lock.read_text()
    for name, version in installed_versions(libraries).items():
        locked = re.findall(
            rf'^name = "{re.escape(name)}"\nversion = "([^"]+)"', text, re.MULTILINE
        )
        if locked and version not in locked:
            raise WrongVersion(
                f"{name} is {version}, but {lock} names {' or '.join(locked)}, and another version"
                " may give other results. Run `uv sync`, or `uv lock --upgrade-package"
                f" {name}` to lock another version"
            )
