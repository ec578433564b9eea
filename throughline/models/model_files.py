"""Saves models in Keras' format, and loads them with the project's own layers and functions.

The file's config says which of the project's classes and functions it needs; these are passed to
Keras by name. Before the first epoch, saving and loading are tried on the fresh model.
"""

import importlib
import json
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import keras

from throughline.shared.code_identity import project_files
from throughline.shared.errors import UnsavableModel
from throughline.shared.files import atomic_file

REGISTER = "@keras.saving.register_keras_serializable()"
SAVABLE = (
    "Give the layer a get_config() that returns its constructor's arguments as plain values, and"
    f" put {REGISTER} above its class."
)
LOADABLE = (
    "A layer of your own needs a get_config() that returns its constructor's arguments. Define it,"
    f" and any function that a layer is given, at the top level of a module, with {REGISTER}"
    " above it."
)


# Beginnings of the line that names the cause in Keras' messages.
TELLING = ("Exception encountered", "Error encountered", "Could not locate", "Error when")


@dataclass(frozen=True, kw_only=True)
class LoadRequirements:
    """The requirements for loading a model's file.

    Attributes:
      objects: The project's classes and functions, as module:name by their name in the file.
      unregistered: Names of those that are not registered with Keras.
      safe: Whether Keras loads the file in safe mode; it does not with a Lambda layer.
    """

    objects: Mapping[str, str]
    unregistered: tuple[str, ...]
    safe: bool

    def hint(self) -> str | None:
        """Return advice for serving the model elsewhere; None if none is needed."""
        if not self.safe:
            return (
                "the model has a Lambda layer, which holds Python code that Keras does not load in"
                " safe mode: it is trained and saved, but MLflow gets only its file and cannot"
                f" serve it; to change that, make the layer a class of its own, with {REGISTER}"
                " above it"
            )
        if self.unregistered:
            items = self.objects.items()
            given = ", ".join(f'"{name}": {path.replace(":", ".")}' for name, path in items)
            return (
                f"model.keras needs {', '.join(self.unregistered)}: load it with"
                f" custom_objects={{{given}}}, or put {REGISTER} above each and import its module"
                " first; MLflow's copy of the model includes the code"
            )
        return None


def save_model(model: keras.Model, path: Path, members: Mapping[str, bytes] | None = None) -> None:
    """Save a model in Keras' format, atomically, with further `members`, which Keras ignores."""
    with atomic_file(path) as temporary:
        named = temporary.with_name(f"{temporary.name}.keras")  # Keras insists on the suffix
        try:
            with _without_compile(model):
                model.save(named)
            with zipfile.ZipFile(named, "a") as file:
                for name, content in (members or {}).items():
                    file.writestr(name, content)
            named.rename(temporary)
        finally:
            named.unlink(missing_ok=True)


@contextmanager
def _without_compile(model: keras.Model) -> Iterator[None]:
    """Remove optimizers and losses for the block, so that a saved model needs no training code."""
    layers = [model, *model._flatten_layers(include_self=False)]
    compiled = [one for one in layers if isinstance(one, keras.Model) and one.compiled]
    optimizers = [one.optimizer for one in compiled]
    for one in compiled:
        one.compiled, one.optimizer = False, None
    try:
        yield
    finally:
        for one, optimizer in zip(compiled, optimizers, strict=True):
            one.compiled, one.optimizer = True, optimizer


def load_model(path: Path, objects: Mapping[str, str], *, safe: bool = True) -> Any:
    return keras.saving.load_model(
        path, custom_objects=imported(objects), compile=False, safe_mode=safe
    )


def imported(objects: Mapping[str, str]) -> dict[str, Any]:
    pairs = {name: reference.split(":") for name, reference in objects.items()}
    return {
        name: getattr(importlib.import_module(module), attribute)
        for name, (module, attribute) in pairs.items()
    }


def code_paths(objects: Mapping[str, str]) -> list[str]:
    """List the project's files and packages that `objects` need, to be shipped with a model."""
    files = project_files(*{reference.split(":")[0] for reference in objects.values()})
    tops = {name: path for name, path in files.items() if "." not in name}
    return sorted(
        str(path.parent if path.name == "__init__.py" else path) for path in tops.values()
    )


def check_savable(model: keras.Model, modules: Sequence[str]) -> LoadRequirements:
    """Save and load the model; return its requirements in `modules`, or raise UnsavableModel."""
    with TemporaryDirectory(prefix="throughline-") as folder:
        path = Path(folder) / "model.keras"
        try:
            save_model(model, path)
        except Exception as error:
            raise UnsavableModel(
                f"the model cannot be saved: {explain(error)}\n{SAVABLE}"
            ) from error
        objects = _needed(json.loads(zipfile.ZipFile(path).read("config.json")), modules)
        unregistered = tuple(
            name for name in objects if keras.saving.get_registered_object(name) is None
        )
        try:
            load_model(path, objects)
        except Exception as error:  # noqa: BLE001 - a constructor may raise anything
            try:
                load_model(path, objects, safe=False)
            except Exception:  # noqa: BLE001 - the first one says more
                raise UnsavableModel(
                    f"the model can be saved, but not loaded again: {explain(error)}\n{LOADABLE}"
                ) from error
            return LoadRequirements(objects=objects, unregistered=unregistered, safe=False)
    return LoadRequirements(objects=objects, unregistered=unregistered, safe=True)


def _needed(config: Any, modules: Sequence[str]) -> dict[str, str]:
    searched = [name for name in project_files(*modules) if name in sys.modules]
    needed = {}
    for node in _nodes(config):
        module, name = node.get("module") or "", node["class_name"]
        if name == "function" and isinstance(node.get("config"), str):
            wanted = node["config"].rpartition(">")[2]
            for home in searched:
                if getattr(getattr(sys.modules[home], wanted, None), "__module__", None) == home:
                    needed.setdefault(node["config"], f"{home}:{wanted}")
        elif module.partition(".")[0] not in ("", "keras", "builtins") and hasattr(
            sys.modules.get(module), name
        ):
            needed[node.get("registered_name") or name] = f"{module}:{name}"
    return needed


def _nodes(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if isinstance(value.get("class_name"), str):
            yield value
        for part in value.values():
            yield from _nodes(part)
    elif isinstance(value, list):
        for part in value:
            yield from _nodes(part)


def explain(error: Exception) -> str:
    """Return the cause of an error in a line; Keras puts it last, after the whole config."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith(TELLING)]
    line = telling[-1] if telling else (lines or [type(error).__name__])[0]
    return line.partition(". Full object config")[0].partition(" Full object config")[0][:400]
