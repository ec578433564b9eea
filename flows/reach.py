"""What a run started from the Prefect UI may reach: data and code of the project, and what its own params.yaml names already.

Whoever may start runs in the UI does not have to be one who may read every file of the worker's machine, or import every module.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tasks.errors import InvalidParams

ROOTS = "THROUGHLINE_DATA_ROOTS"  # more folders that data may lie in, separated as in PATH
SECTIONS_WITH_CODE = ("model", "preprocess", "augment", "finish")
_IMPORT_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def check_reach(asked: Mapping[str, Any], own: Mapping[str, Any], project: Path) -> None:
    """Compare the parameters of a run with those of the project in `project`.

    Raises:
      InvalidParams: data outside the project and the folders of THROUGHLINE_DATA_ROOTS, or code of other modules.
    """
    problems = []
    path = asked["data"]["path"]
    roots = [project, *(Path(root) for root in os.environ.get(ROOTS, "").split(os.pathsep) if root)]
    if path != own["data"]["path"] and not any((project / path).resolve().is_relative_to(root.resolve()) for root in roots):
        problems.append(f"data.path: {path} is outside of what runs from the UI may read: {', '.join(map(str, roots))}; {ROOTS} names more folders")
    for section in SECTIONS_WITH_CODE:
        known = set(_import_paths(own.get(section)))
        for name in _import_paths(asked.get(section)):
            if name not in known and not _is_in(name.partition(":")[0], project):
                problems.append(f"{section}: {name} is no code of this project; runs from the UI may use that, and what params.yaml names already")
    if problems:
        raise InvalidParams(problems)


def _import_paths(value: object) -> Iterator[str]:
    """Every `package.module:name` in a section, as a value or as a key."""
    if isinstance(value, str) and _IMPORT_PATH.fullmatch(value):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _import_paths(key)
            yield from _import_paths(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _import_paths(inner)


def _is_in(module: str, project: Path) -> bool:
    """Whether a module's top package is a file or folder of the project; nothing is imported for that."""
    found = importlib.util.find_spec(module.partition(".")[0])
    if found is None:
        return False
    places = [found.origin] if found.has_location and found.origin else list(found.submodule_search_locations or [])
    inside = [Path(place).resolve().is_relative_to(project.resolve()) and ".venv" not in Path(place).parts for place in places]
    return bool(inside) and all(inside)
