"""Result files of every kind with made-up values, for tests of how they are written and read."""

import dataclasses
import importlib
import pkgutil
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from throughline import results
from throughline.results.base import ResultFile

for _module in pkgutil.iter_modules(results.__path__):
    importlib.import_module(f"throughline.results.{_module.name}")
KINDS: tuple[type[ResultFile], ...] = tuple(
    sorted(ResultFile.__subclasses__(), key=lambda kind: kind.__name__)
)
_SIMPLE: Mapping[Any, Any] = {str: "x", int: 2, float: 1.5, bool: True, Any: "any"}


def made_up(kind: Any) -> Any:
    """A value of a type: of a dataclass with all its fields, of a union that of its first type."""
    if dataclasses.is_dataclass(kind):
        types_of = get_type_hints(kind)
        names = [field.name for field in dataclasses.fields(kind)]
        return kind(**{name: made_up(types_of[name]) for name in names})
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return made_up(arguments[0])
    if origin is Literal:
        return arguments[0]
    if origin is tuple:
        return tuple(made_up(each) for each in arguments if each is not ...)
    if origin in (list, Sequence):
        return [made_up(arguments[0])]
    if origin in (dict, Mapping):
        return {"key": made_up(arguments[1])}
    return _SIMPLE[kind]


def folder_of(kind: type[ResultFile], root: Path) -> Path:
    """Where a project at `root` has files of this kind; of configurations those of `fast`."""
    folders = {"snapshot": root / "data", "report": root / "report", "race": root / "race"}
    return folders.get(kind.STAGE, root / "runs" / "fast")


def write_made_up(kind: type[ResultFile], root: Path) -> Path:
    """Write a made-up file of a kind into a project, and return where that is."""
    path = kind.path(folder_of(kind, root))
    made_up(kind).write(path.parent)
    return path
