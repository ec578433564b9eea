"""Deletes files of unfinished `.cache(filename)` transformations if the script is ended at once:
TensorFlow has no time to delete them, and the script's next run would stop at their lock.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from .places import kind_of_dataset, made_datasets

# TensorFlow's names for them: the given filename, a number, and the content.
_FILE = re.compile(r"(.+)(_[0-9]+)[.](lockfile|index|data-[0-9]+-of-[0-9]+)([.]tempstate[0-9]+)?")


def delete_unfinished(*, since: float) -> None:
    """Delete files of unfinished caches that this process began after `since` [s since 1970]."""
    opened = {_part_of(path) for path in _list_open_files()}
    for dataset in list(made_datasets):
        if kind_of_dataset(dataset) == "cache":
            for file in _find_files(_name_of(dataset)):
                part = _part_of(file)
                lock = Path(f"{part}.lockfile")
                if part in opened and lock.exists() and lock.stat().st_mtime >= since:
                    file.unlink()


def _list_open_files() -> Iterator[Path]:
    for each in Path("/proc/self/fd").glob("*"):
        with suppress(OSError):  # closed by now
            yield each.readlink()


def _part_of(path: Path) -> str | None:
    """Return a cache file's path up to the number of its part; None for other files."""
    found = _FILE.fullmatch(path.name)
    return str(path.with_name(found[1] + found[2])) if found else None


def _name_of(dataset: Any) -> str:
    name: Any = getattr(dataset, "_filename", None)
    return name.numpy().decode() if hasattr(name, "numpy") else ""


def _find_files(name: str) -> list[Path]:
    """Return the files of a cache if it is unfinished, the lock last."""
    whole = Path(name).absolute()
    if not name or Path(f"{name}.index").exists() or not whole.parent.is_dir():
        return []
    found = [(each, _FILE.fullmatch(each.name)) for each in whole.parent.iterdir()]
    files = [each for each, match in found if match and match[1] == whole.name]
    return sorted(files, key=lambda each: each.suffix == ".lockfile")
