"""Deletes files of unfinished `.cache(filename)` transformations if the script is ended at once:
TensorFlow has no time to delete them, and the script's next run would stop at their lock.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

# TensorFlow's names for cache files: the given filename, a number, and the content.
_FILE = re.compile(r"(.+_[0-9]+)[.](lockfile|index|data-[0-9]+-of-[0-9]+)([.]tempstate[0-9]+)?")


def delete_unfinished(*, since: float) -> None:
    """Delete files of unfinished caches that this process began after `since` [s since 1970]."""
    opened = set()
    for each in Path("/proc/self/fd").glob("*"):
        with suppress(OSError):  # closed by now
            opened.add(_part_of(each.readlink()))
    for part in opened - {None}:
        lock = Path(f"{part}.lockfile")
        if lock.exists() and lock.stat().st_mtime >= since:
            files = [each for each in lock.parent.iterdir() if _part_of(each) == part]
            for file in sorted(files, key=lambda each: each == lock):  # the lock last
                file.unlink()


def _part_of(path: Path) -> str | None:
    """Return a cache file's path up to the number of its part; None for other files."""
    found = _FILE.fullmatch(path.name)
    return str(path.with_name(found[1])) if found else None
