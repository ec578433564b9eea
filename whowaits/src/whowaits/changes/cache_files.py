"""Files of a `.cache(filename)` that is not complete when the script is ended at once: TensorFlow
has no time to delete them, and the script's next run would stop at its lock.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .places import kind_of_dataset, remembered

# What TensorFlow calls them, after the filename that it was given.
_PART = re.compile(r"_\d+\.(lockfile|index|data-\d+-of-\d+)(\.tempstate\d+)?")


def delete_unfinished(*, since: float) -> None:
    """Delete the files of caches that are not complete, as far as they were written since then [s
    since 1970]: older ones are of another run.
    """
    for dataset in remembered():
        if kind_of_dataset(dataset) == "cache":
            for part in _find_parts(_name_of(dataset)):
                if part.stat().st_mtime >= since:
                    part.unlink()


def _name_of(dataset: Any) -> str:
    """The filename that a cache was given, "" for none."""
    name: Any = getattr(dataset, "_filename", None)
    return name.numpy().decode() if hasattr(name, "numpy") else ""


def _find_parts(name: str) -> Iterator[Path]:
    """The files of a cache, if it is not complete."""
    whole = Path(name)
    if not name or Path(f"{name}.index").exists() or not whole.parent.is_dir():
        return
    for each in list(whole.parent.iterdir()):
        if each.name.startswith(whole.name) and _PART.fullmatch(each.name[len(whole.name) :]):
            yield each
