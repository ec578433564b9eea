"""The line of the script that a call comes from, and what that line calls."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WRAPPERS = frozenset(("new_func", "wrapper", "error_handler"))  # of TensorFlow and Keras
HERE = str(Path.cwd())  # before the script may change it
OURS = str(Path(__file__).parent)
STANDARD = str(Path(os.__file__).parent)
INSTALLED = frozenset(("site-packages", "dist-packages"))
KERAS = ("keras.", "tf_keras.")
_own: list[str] = []  # how the files of an installed package begin that is the script's


@dataclass(frozen=True)
class Place:
    """FILE:LINE of the script, and the name of what it calls there."""

    where: str = ""
    called: str = ""


def take_for_own(script: str) -> None:
    """Take the installed package that a script lies in for the script's own, if it lies in one."""
    parts = Path(script).parts
    installed = [number for number, part in enumerate(parts) if part in INSTALLED]
    if installed:
        package = str(Path(*parts[: installed[-1] + 2]))
        _own.append(package if package == script else package + os.sep)


def find_caller(frame: Any) -> str:
    """FILE:LINE of the innermost frame that is neither ours nor of an installed package."""
    return find_call(frame).where


def find_call(frame: Any) -> Place:
    """The same, with what is called there."""
    called = ""
    while frame is not None:
        name = frame.f_code.co_filename
        if not _is_of_others(name):
            return Place(f"{name_from_here(name)}:{frame.f_lineno}", called)
        called = _name_of(frame) or called
        frame = frame.f_back
    return Place()


def _is_of_others(name: str) -> bool:
    """Whether a file is not the script's: ours, Python's, or of another installed package."""
    if name.startswith(tuple(_own)):
        return False
    others = name.startswith((OURS, STANDARD, "<frozen"))
    return others or not INSTALLED.isdisjoint(Path(name).parts)


def calls_by_itself(frame: Any) -> bool:
    """Whether the script makes a call, perhaps through Python's own library: not an installed
    package, and not this one.
    """
    while frame is not None:
        name = frame.f_code.co_filename
        if not _is_of_others(name):
            return True
        if name.startswith(OURS) or not INSTALLED.isdisjoint(Path(name).parts):
            return False
        frame = frame.f_back
    return False


def is_of_keras(frame: Any) -> bool:
    """Whether it is a frame of Keras."""
    return str(frame.f_globals.get("__name__")).startswith(KERAS)


def name_from_here(path: str) -> str:
    """A file as it is called in the folder that the command was started in, pkg/train.py; of one
    that is elsewhere the name alone.
    """
    inside = path.removeprefix(HERE + os.sep)
    return inside if inside != path else Path(path).name


def _name_of(frame: Any) -> str:
    """Of a function, of a class that is made; "" of a decorator's wrapper."""
    name = frame.f_code.co_name
    if name == "__init__":
        return re.sub(r"V\d$", "", type(frame.f_locals.get("self")).__name__)
    return "" if name in WRAPPERS else name
