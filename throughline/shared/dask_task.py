"""What a worker of a Dask cluster does: make sure that it runs the program of the stage and sees
its files, then the stage's function, once for each item.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
import sysconfig
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from throughline.shared.code_identity import (
    HERE,
    PROGRAM,
    code_digest,
    imported_packages,
    project_files,
)
from throughline.shared.errors import DataNotFound, EngineFailed, ObjectStoreFailed
from throughline.shared.files import digest_blake2b
from throughline.shared.libraries import (
    LIBRARIES,
    TOKENIZERS,
    find_distributions,
    installed_versions,
)

_ONE_AT_A_TIME = threading.Lock()
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
# A worker has one thread, and as many workers run as there are cores.
THREADS = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A stage as its workers know it: the project's folder, a file in it whose text nobody can
    guess, the modules of the function that they call and of what it is given, one's own among them,
    and the digest of all that they import.
    """

    root: str
    token: Path
    text: str
    modules: tuple[str, ...]
    program: str


def run_task(stage: Stage, function: bytes, item: bytes) -> Any:
    """Call the pickled function of a stage with one pickled item, on a worker.

    Raises:
      EngineFailed: the worker sees other files, or has another program.
      DataNotFound, ObjectStoreFailed: as the function raises them, with the worker's machine, whose
        files, network and credentials may not be the stage's.
    """
    with _ONE_AT_A_TIME:  # where a worker has several threads, which share their working directory
        check_worker(stage)
        os.chdir(stage.root)
        try:
            call, value = _load(function), pickle.loads(item)
            _LOADED.note()  # before a long call, in which files may change
            return call(value)
        except (DataNotFound, ObjectStoreFailed) as error:
            node = os.uname().nodename
            raise type(error)(f"{error} (said by a Dask worker at {node})") from None
        finally:
            _LOADED.note()


@cache
def check_worker(stage: Stage) -> None:
    """Make sure, once for each stage, that this worker sees its files and runs its program, before
    anything of either is used.
    """
    os.environ.update(THREADS)
    _LOADED.note()
    node = os.uname().nodename
    try:
        text = stage.token.read_text()
    except OSError:
        text = ""
    if text != stage.text:
        raise EngineFailed(
            f"engine: a worker at {node} does not see the files in {stage.root}; workers need the"
            " project at the same path, on a file system that they share"
        )
    os.chdir(stage.root)
    if stage.root not in sys.path:
        sys.path.insert(0, stage.root)
    for name, path in project_files(*stage.modules, roots=_roots()).items():
        if _LOADED.differ(name, path):
            raise EngineFailed(
                f"engine: a worker at {node} has started before {name} was changed, or has another"
                " module of that name; restart the workers"
            )
    for name, version in _find_versions(stage.modules).items():
        if _VERSIONS.setdefault(name, version) != version:
            raise EngineFailed(
                f"engine: a worker at {node} has started before {name} was updated; restart the"
                " workers"
            )
    if describe_program(stage.modules) != stage.program:
        raise EngineFailed(
            f"engine: a worker at {node} has another program than the stage, or other versions of"
            " its libraries; start it with the same commit and environment"
        )


class _LoadedModules:
    """The modules that this process has loaded, by the digests of their files at that time: what it
    runs, whatever is in the files later. No clock is asked, for those of several machines differ.
    """

    def __init__(self) -> None:
        self._digests: dict[tuple[str, str], str] = {}  # by name and file
        self._count = 0

    def note(self) -> None:
        """Keep those of the modules that have been loaded since the last time, but for what is
        installed: its version says what it is.
        """
        if len(sys.modules) == self._count:
            return
        self._count = len(sys.modules)
        for name in [*sys.modules]:
            key = name, _file_of(name)
            if key[1].endswith(".py") and key not in self._digests:
                installed = key[1].startswith(_INSTALLED)
                self._digests[key] = "" if installed else _digest_source(key[1])

    def differ(self, name: str, path: Path) -> bool:
        """Whether another module of this name was loaded than the file has now."""
        if name not in sys.modules:
            return False
        file = _file_of(name)
        return (self._digests.get((name, file)) or _digest_source(file)) != _digest_source(path)


_LOADED = _LoadedModules()
_VERSIONS: dict[str, str] = {}  # of libraries when this process first looked


def _file_of(name: str) -> str:
    """The file of a module that is loaded; one that loads itself when it is looked at is left
    alone.
    """
    with suppress(AttributeError):
        return object.__getattribute__(sys.modules[name], "__dict__").get("__file__") or ""
    return ""


def _digest_source(file: str | Path) -> str:
    try:
        return digest_blake2b(Path(file).read_bytes())
    except OSError:  # it is gone by now, or was never a file
        return "none"


def describe_program(modules: tuple[str, ...]) -> str:
    """The digest of modules, with all that they import of the project, and the versions of the
    libraries that the stages use, or that modules of one's own import.
    """
    versions = sorted(_find_versions(modules).items())
    return f"{code_digest(*modules, roots=_roots())} {versions}"


def _find_versions(modules: tuple[str, ...]) -> Mapping[str, str]:
    own = [name for name in modules if name.partition(".")[0] not in PROGRAM]
    packages = imported_packages(*own, roots=_roots(), without=PROGRAM) if own else ()
    libraries = {*TOKENIZERS, *(name for names in LIBRARIES.values() for name in names)}
    return installed_versions(sorted(libraries.union(find_distributions(packages))))


def find_modules(pickled: bytes) -> tuple[str, ...]:
    """The modules of the project and of one's own that a pickled function and its arguments are
    made of.
    """
    names: set[str] = set()

    class _Names(pickle.Unpickler):
        def find_class(self, module_name: str, global_name: str, /) -> Any:
            names.add(module_name)
            return super().find_class(module_name, global_name)

    _Names(io.BytesIO(pickled)).load()
    return tuple(sorted(name for name in names if project_files(name, roots=_roots())))


def _roots() -> tuple[Path, Path]:
    """Where a process has its modules from: its own program first, then the project."""
    return HERE, Path.cwd()


@lru_cache(maxsize=1)
def _load(function: bytes) -> Callable[[Any], Any]:
    """The function of a stage, which keeps what it has opened for the items that follow."""
    return pickle.loads(function)
