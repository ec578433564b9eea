"""Limits runs from the Prefect UI to data and code of the project, and those that its params.yaml
names. So users who may start runs cannot read all files or run any code on the worker.

The limits apply to the parameters as written, before anything they name is imported or opened.
"""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flows.run.git_calls import list_files
from throughline.config.named_files import NETWORK, find_named_files, read_model_objects, walk
from throughline.config.params_file import read_yaml
from throughline.shared.data_url import is_address
from throughline.shared.errors import InvalidParams

LIMITS_FILE = Path("worker.yaml")
CONFINED = "THROUGHLINE_CONFINED"  # the worker sets it for the runs it starts
SECTIONS_WITH_CODE = ("model", "train", "preprocess", "augment", "postprocess")
# A variable of a worker in a stack: the address of the stack's tf.data service.
OWN_SERVICE = "THROUGHLINE_SERVICE_ADDRESS"
LAYERS = "throughline.models."  # a model's file may need its classes
# Runs from the UI may not name functions of these packages, which trust their options.
OUR_PACKAGES = ("throughline", "tasks", "flows", "infra", "benchmarks", "tests")


class Limits(BaseModel):
    """The permissions that worker.yaml gives to runs from the UI."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    data_roots: tuple[Path, ...] = ()
    """more folders that `data.path`, models and tokenizers may be in"""
    data_buckets: tuple[str, ...] = ()
    """buckets, or prefixes in them, that `data.path` may be in"""
    service_addresses: tuple[str, ...] = ()
    """dispatchers of tf.data service that may be joined"""
    retries: int = Field(default=0, ge=0, le=100)
    """how often a run that failed is tried again"""
    stage_timeout_s: float = Field(default=86_400, gt=0)
    """how long one stage may take"""


def load_limits(project: Path) -> Limits:
    """Read worker.yaml of a project, if it has one; InvalidParams lists what is wrong there."""
    file = project / LIMITS_FILE
    try:
        return Limits.model_validate(read_yaml(file)) if file.exists() else Limits()
    except ValidationError as error:
        wrong = [(".".join(map(str, item["loc"])), item["msg"]) for item in error.errors()]
        raise InvalidParams([f"{LIMITS_FILE}: {key}: {why}" for key, why in wrong]) from error


def is_confined() -> bool:
    """Return whether a deployment (from the UI, the API or a schedule) started the current run."""
    if os.environ.get(CONFINED) or "prefect" not in sys.modules:  # importing it takes seconds
        return bool(os.environ.get(CONFINED))
    from prefect.runtime import deployment

    return bool(deployment.id)


@dataclass(frozen=True, kw_only=True)
class AccessPolicy:
    """The project of a run, its params.yaml without the changes, and the worker's permissions."""

    project: Path
    own: Mapping[str, Any]
    limits: Limits

    def check(self, asked: Mapping[str, Any]) -> None:
        """Check that the parameters of a run name only data and code that it may use.

        Raises:
          InvalidParams: the parameters name data or files that are hidden, or outside the project
            and what is granted; follow links that params.yaml does not follow; or name code that
            is not a tracked module of the project, a dispatcher that nobody granted, or a Dask
            cluster, `storage.url` or cache folder other than those of params.yaml.
        """
        problems = [*self._data(asked), *self._named_files(asked), *self._code(asked)]
        problems += [*self._services(asked), *self._stores(asked)]
        if problems:
            raise InvalidParams(problems)

    def check_data(self, asked: Mapping[str, Any]) -> None:
        """Check only the data that a run asks for; InvalidParams says why it may not read them."""
        if problems := [*self._data(asked)]:
            raise InvalidParams(problems)

    def grants_links(self, asked: Mapping[str, Any]) -> bool:
        """Return whether params.yaml has this `data.path` and follows links out of its folder."""
        data, own = self._sections(asked, "data")
        return data.get("path") == own.get("path") and own.get("follow_links", True) is True

    def _sections(
        self, asked: Mapping[str, Any], name: str
    ) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        return as_mapping(asked.get(name)), as_mapping(self.own.get(name))

    def _data(self, asked: Mapping[str, Any]) -> Iterator[str]:
        data, own = self._sections(asked, "data")
        if is_address(str(data.get("path", ""))):
            if data["path"] != own.get("path"):
                yield from self._bucket(str(data["path"]))
            return
        if data.get("follow_links", False) is not False and not self.grants_links(asked):
            yield (
                "data.follow_links: runs from the UI follow links only where params.yaml does, for"
                " its own data.path; set it to false, or leave it out"
            )
        path = str(data.get("path", ""))
        files = {"path": path}
        if data.get("source") == "arrays":
            arrays = data.keys() & {"features", "labels"}
            files |= {key: str(Path(path) / f"{data[key]}.npy") for key in sorted(arrays)}
        for key, file in files.items():
            if any(data.get(name) != own.get(name) for name in ("path", key)):
                yield from self._file(f"data.{key}", file, shown=data.get(key))

    def _bucket(self, address: str) -> Iterator[str]:
        granted = [one.rstrip("/") for one in self.limits.data_buckets]
        inside = any(address == one or address.startswith(f"{one}/") for one in granted)
        if not inside or ".." in address.split("/"):
            where = ", ".join(granted) or "none"
            shown = "this URL" if {"@", "?"} & {*address} else address  # the URL may hold a secret
            yield (
                f"data.path: {shown} is outside of what runs from the UI may read: data that"
                f" params.yaml names, and these buckets: {where}; data_buckets of {LIMITS_FILE} can"
                " grant more"
            )

    def _named_files(self, asked: Mapping[str, Any]) -> Iterator[str]:
        known = {*find_named_files(self.own)}
        for key, file in find_named_files(asked):
            if (key, file) not in known:
                yield from self._file(key, file, shown=file)

    def _file(self, key: str, file: str, *, shown: object) -> Iterator[str]:
        """Yield why a file or folder must not be read; `shown` is how `key` names it."""
        roots = [self.project, *self.limits.data_roots]
        try:
            path = None if is_address(file) else (self.project / file).resolve()
        except (ValueError, OSError, RuntimeError):
            path = None  # a null byte, a name too long, or a loop of links
        resolved = [root.resolve() for root in roots]
        root = next((root for root in resolved if path and path.is_relative_to(root)), None)
        if root is None:
            where = ", ".join(map(str, roots))
            yield (
                f"{key}: {shown} is outside of what runs from the UI may read: {where}; data_roots"
                f" of {LIMITS_FILE} can grant more"
            )
        elif _is_hidden(self.project / file, root):
            yield (
                f"{key}: {shown} is hidden (its path has a part that begins with a dot); runs from"
                " the UI read no hidden files"
            )

    def _code(self, asked: Mapping[str, Any]) -> Iterator[str]:
        known = {
            name for section in SECTIONS_WITH_CODE for name in _import_paths(self.own.get(section))
        }
        unknown = [one for one in self._named_code(asked) if one[1] not in known]
        tracked = frozenset(list_files(self.project, "--", "*.py") if unknown else ())
        for where, name in unknown:
            if not _is_module(name.partition(":")[0], tracked):
                yield (
                    f"{where}: {name} is not a module of this project that git tracks; runs from"
                    " the UI may use only such modules, and names that params.yaml has already"
                )

    def _named_code(self, asked: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield place and name of code in sections, and in model files not named by params.yaml."""
        for section in SECTIONS_WITH_CODE:
            for name in dict.fromkeys(_import_paths(asked.get(section))):
                yield section, name
        for key, file in sorted({*find_named_files(asked)} - {*find_named_files(self.own)}):
            refused = key != NETWORK or any(self._file(key, file, shown=file))
            for name in () if refused else read_model_objects(self.project / file):
                if not _is_own_layer(name):
                    yield f"{key}: {file}", name

    def _services(self, asked: Mapping[str, Any]) -> Iterator[str]:
        granted = {*self.limits.service_addresses, os.environ.get(OWN_SERVICE, ""), "", None}
        granted |= {address for _, address in _addresses(self.own)}
        for pipeline, address in _addresses(asked):
            if address not in granted:
                key = f"pipelines.{pipeline}.service.address"
                yield (
                    f"{key}: {address} is not granted to runs from the UI; service_addresses of"
                    f" {LIMITS_FILE} can grant more"
                )

    def _stores(self, asked: Mapping[str, Any]) -> Iterator[str]:
        engine, own = self._sections(asked, "engine")
        if engine.get("address") not in (own.get("address"), "", None):
            yield (
                f"engine.address: {engine['address']} is not granted to runs from the UI, which use"
                " the Dask cluster that params.yaml names"
            )
        storage, own = self._sections(asked, "storage")
        for key in ("url", "cache"):
            if storage.get(key) not in (own.get(key), None) and (key, storage[key]) != ("url", ""):
                yield (
                    f"storage.{key}: another value is not granted to runs from the UI, which use"
                    " that of params.yaml"
                )


def find_policy(project: Path, own: Mapping[str, Any]) -> AccessPolicy | None:
    """Return the policy for the current run; None if it was not started from the UI."""
    if not is_confined():
        return None
    return AccessPolicy(project=project, own=own, limits=load_limits(project))


def as_mapping(value: object) -> Mapping[str, Any]:
    """Return the value, or an empty mapping if it is not a mapping."""
    return value if isinstance(value, Mapping) else {}


def _is_hidden(file: Path, root: Path) -> bool:
    """Return whether a part of a path, before or after following links, begins with a dot."""
    spelled = Path(os.path.normpath(file))
    ways = [file.resolve().relative_to(root).parts]
    if spelled.is_relative_to(root):
        ways.append(spelled.relative_to(root).parts)
    return any(part.startswith(".") for way in ways for part in way)


def _addresses(document: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    for name, config in as_mapping(document.get("pipelines")).items():
        address = as_mapping(as_mapping(config).get("service")).get("address")
        yield name, None if address is None else str(address)


def _import_paths(value: object) -> list[str]:
    """List every text with a colon in a section, as value or key: it could be imported."""
    return [one for one in walk(value) if isinstance(one, str) and ":" in one]


def _is_own_layer(name: str) -> bool:
    """Return whether an import path names a class of this program that a model's file may hold."""
    module, _, attribute = name.partition(":")
    return module.startswith(LAYERS) and attribute.lstrip("_")[:1].isupper()


def _is_module(module: str, tracked: frozenset[str]) -> bool:
    """Return whether a dotted name is a module that git tracks and that is not this program's."""
    own = module.partition(".")[0] in OUR_PACKAGES
    if own or not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", module, re.ASCII):
        return False
    stem = module.replace(".", "/")
    return f"{stem}.py" in tracked or f"{stem}/__init__.py" in tracked
