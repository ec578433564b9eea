"""Guesses the kind of input for `data.source: auto`, by file names and by the keys that are set."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from throughline.settings.source_kinds import TABLES
from throughline.shared.data_url import is_address
from throughline.shared.errors import InvalidParams

_LOOKED_AT = 2000  # number of files examined in a folder
_OF_FILES = {
    ".npz": "arrays",
    ".npy": "time_series",
    ".jsonl": "text_lines",
    ".ndjson": "text_lines",
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
}
_OF_FOLDERS = {
    **dict.fromkeys((".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp"), "image_folder"),
    ".txt": "text_folder",
    ".jsonl": "text_lines",
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
}
_OF_NOTES = {"", ".txt", ".md", ".pdf", ".names"}  # a README, a license, a description
_OF_KEYS = {"time_column": "time_series", "text_column": "text_table", "path_column": "image_table"}
_REMEDY = "set data.source; docs/data.md lists the kinds"


def name_source(document: Mapping[str, Any]) -> dict[str, Any]:
    """Resolve `data.source: auto`; InvalidParams if the path does not determine the kind."""
    data = document.get("data")
    if not isinstance(data, Mapping) or data.get("source") != "auto" or "path" not in data:
        return dict(document)
    return {**document, "data": {**data, "source": guess_source(str(data["path"]), data)}}


def guess_source(name: str, data: Mapping[str, Any]) -> str:
    """Return the kind of input at a path, considering the other keys of section `data`.

    Raises InvalidParams if it is unknown or ambiguous, or the path is in a bucket or compressed.
    """
    path = Path(name)
    if is_address(name):
        raise InvalidParams([f"data.source: auto does not look into buckets; {_REMEDY}"])
    if not path.is_dir():
        suffix = path.suffix.lower()
        if suffix in TABLES:
            return _guess_table(data)
        if suffix == ".gz":
            raise InvalidParams([f"data.path: {path} is compressed; unpack it with gunzip"])
        if suffix not in _OF_FILES:
            reason = f"{path} is not a folder, and auto does not know its suffix"
            raise InvalidParams([f"data.source: {reason}; {_REMEDY}"])
        return _OF_FILES[suffix]
    if (path / "dataset_info.json").is_file() and (path / "features.json").is_file():
        return "tfds"
    files = list(islice(_walk(path), _LOOKED_AT))
    counts = Counter(_OF_FOLDERS.get(_suffix(file), "") for file in files)
    kinds = counts.keys() - {""}
    tables = [file for file in files if file.parent == path and file.suffix.lower() in TABLES]
    if kinds == {"image_folder"} and (len(tables) == 1 or (tables and data.get("path_column"))):
        return "image_table"
    if len(kinds) == 1 and not tables:
        return kinds.pop()
    if tables and {_suffix(file) for file in files} <= TABLES | _OF_NOTES:
        return _guess_table(data)
    suffixes = Counter(_suffix(file) or "without suffix" for file in files).most_common(4)
    shown = ", ".join(f"{count:,} {suffix}" for suffix, count in suffixes) or "no file"
    raise InvalidParams([f"data.source: auto is not certain: {path} holds {shown}; {_REMEDY}"])


def _guess_table(data: Mapping[str, Any]) -> str:
    return next((kind for key, kind in _OF_KEYS.items() if data.get(key)), "table")


def _walk(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(root, name) for name in sorted(names) if not name.startswith("."))


def _suffix(file: Path) -> str:
    """Return the lower-case suffix, without numbers as in `train.tfrecord-00000-of-00004`."""
    return file.suffix.lower().partition("-")[0]
