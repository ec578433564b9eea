"""Finds the line of the script from which a call comes, and what that line calls."""

import functools
import os
import re
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WRAPPERS = frozenset(("new_func", "wrapper", "error_handler"))  # in TensorFlow and Keras
HERE = str(Path.cwd())  # read before the script may change it
OURS = str(Path(__file__).parent)
STANDARD = str(Path(os.__file__).parent)
TEMPFILE = str(Path(STANDARD, "tempfile.py"))  # it deletes files that it has made
INSTALLED = frozenset(("site-packages", "dist-packages"))
KERAS = ("keras.", "tf_keras.")
_own: list[str] = []  # path prefixes of installed packages that count as the script's own


@dataclass(frozen=True)
class Place:
    """FILE:LINE of the script, and the name of what it calls there."""

    where: str = ""
    called: str = ""


def add_own_package(script: str) -> None:
    """Count the installed package that contains the script, if any, as the script's own code."""
    parts = Path(script).parts
    installed = [number for number, part in enumerate(parts) if part in INSTALLED]
    if installed:
        package = str(Path(*parts[: installed[-1] + 2]))
        _own.append(package if package == script else package + os.sep)
        _is_of_others.cache_clear()


def find_caller(frame: Any) -> str:
    """Return FILE:LINE of the innermost frame of the script's own code, or ""."""
    return find_call(frame).where


def find_call(frame: Any) -> Place:
    """Return the innermost line of the script's own code, and what it calls; empty if none."""
    called = ""
    while frame is not None:
        name = frame.f_code.co_filename
        if not _is_of_others(name):
            return Place(f"{name_from_here(name)}:{frame.f_lineno}", called)
        called = _name_of(frame) or called
        frame = frame.f_back
    return Place()


def list_own_lines(frame: Any) -> tuple[tuple[str, int], ...]:
    """Return file and line of each frame of the script's own code, the outermost first."""
    stack = [(each.f_code.co_filename, line) for each, line in traceback.walk_stack(frame)]
    return tuple((file, line) for file, line in reversed(stack) if not _is_of_others(file))


@functools.cache
def _is_of_others(name: str) -> bool:
    """Return whether a file is ours, Python's, or another installed package's."""
    if name.startswith(tuple(_own)):
        return False
    others = name.startswith((OURS, STANDARD, "<frozen", "<string"))
    return others or not INSTALLED.isdisjoint(Path(name).parts)


def calls_by_itself(frame: Any) -> bool:
    """Return whether the script made a call itself, or through a standard module but tempfile."""
    for each, _ in traceback.walk_stack(frame):
        name = each.f_code.co_filename
        if not _is_of_others(name):
            return True
        if name.startswith((OURS, TEMPFILE)) or not INSTALLED.isdisjoint(Path(name).parts):
            return False
    return False


def calls_from(frame: Any, package: str) -> bool:
    """Return whether the script's own code made a call through a module of `package`."""
    while frame is not None and _is_of_others(frame.f_code.co_filename):
        if str(frame.f_globals.get("__name__")).startswith(package):
            return True
        frame = frame.f_back
    return False


def is_inside_keras(frame: Any) -> bool:
    return str(frame.f_globals.get("__name__")).startswith(KERAS)


def name_from_here(path: str) -> str:
    """Return a path relative to the start folder, or only the file's name if it is elsewhere."""
    inside = path.removeprefix(HERE + os.sep)
    return inside if inside != path else Path(path).name


def _name_of(frame: Any) -> str:
    """Return the name of a function, or of the class that `__init__` makes; "" for a wrapper."""
    name = frame.f_code.co_name
    if name == "__init__":
        return re.sub(r"V\d$", "", type(frame.f_locals.get("self")).__name__)
    return "" if name in WRAPPERS else name
