"""Calls actions once a module has been imported, and puts functions in the place of its own."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

Action = Callable[[ModuleType], object]


def replaces(owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Decorate a function that is called in place of `owner.name`, with it as first argument."""
    original = getattr(owner, name)

    def replace(function: Callable[..., Any]) -> None:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            return function(original, *args, **kwargs)

        setattr(owner, name, call)

    return replace


class ImportWatch(importlib.abc.MetaPathFinder):
    """Calls an action once a module is executed, or at once if it was; `report` gets errors."""

    def __init__(self, report: Callable[[Exception], object]) -> None:
        self._report = report
        self._actions: dict[str, list[Action]] = {}

    def install(self) -> None:
        sys.meta_path.insert(0, self)

    def on_import(self, name: str, action: Action) -> None:
        module = sys.modules.get(name)
        spec = getattr(module, "__spec__", None)
        if module is not None and not getattr(spec, "_initializing", False):
            self._act(action, module)
        else:
            self._actions.setdefault(name, []).append(action)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return other finders' spec of a watched module, with a loader that calls the actions."""
        if fullname not in self._actions:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                self._watch_loader(spec.loader, fullname)
                return spec
        return None

    def _watch_loader(self, loader: Any, name: str) -> None:
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: ModuleType) -> None:
            execute(module)
            for action in self._actions.pop(name, []):
                self._act(action, module)

        try:
            loader.exec_module = exec_module
        except AttributeError:  # a loader without a dictionary: its modules are not watched
            return

    def _act(self, action: Action, module: ModuleType) -> None:
        try:
            action(module)
        except Exception as error:  # noqa: BLE001 - the script must not fail because of us
            self._report(error)
