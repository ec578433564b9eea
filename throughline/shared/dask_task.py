"""Code of a Dask worker for a stage: checks program and files, then calls the stage's function."""

import io
import os
import pickle
import sys
import threading
from collections.abc import Callable, Mapping
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
# A worker has one thread, and there is a worker per core.
THREADS = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A stage as its workers know it.

    Attributes:
      root: The project's folder.
      token, text: A file below that folder, and its random content.
      modules: Modules of the called function and its bound arguments, including the user's own.
      program: Digest of these modules and all that they import, and versions of libraries.
    """

    root: str
    token: Path
    text: str
    modules: tuple[str, ...]
    program: str


def run_task(stage: Stage, function: bytes, item: bytes) -> Any:
    """Call the pickled function of a stage with one pickled item, on a worker.

    Raises EngineFailed if the worker does not see the stage's files, or has another program. The
    function's errors name the worker's machine, whose files and network may differ.
    """
    with _ONE_AT_A_TIME:  # threads of a worker share their working directory
        check_worker(stage)
        os.chdir(stage.root)
        try:
            return _load(function)(pickle.loads(item))
        except (DataNotFound, ObjectStoreFailed) as error:
            node = os.uname().nodename
            raise type(error)(f"{error} (reported by a Dask worker at {node})") from None


@cache
def check_worker(stage: Stage) -> None:
    """Check, once per stage, that this worker sees the stage's files and runs its program."""
    os.environ.update(THREADS)
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
    modules, versions = project_files(*stage.modules, roots=_roots()), _find_versions(stage.modules)
    outdated = [name for name, path in modules.items() if _first_seen(name, path) != _digest(path)]
    outdated += [name for name, one in versions.items() if _VERSIONS.setdefault(name, one) != one]
    if outdated:
        raise EngineFailed(
            f"engine: a worker at {node} has started before {outdated[0]} was changed or"
            " updated, or has another module of that name; restart the workers"
        )
    if describe_program(stage.modules) != stage.program:
        raise EngineFailed(
            f"engine: a worker at {node} has another program than the stage, or other versions of"
            " its libraries; start it with the same commit and environment"
        )


_MODULES: dict[str, str] = {}  # digests of modules' files, as this process first saw them
_VERSIONS: dict[str, str] = {}  # versions of libraries when this process first saw them


def _first_seen(name: str, path: Path) -> str:
    """Return the digest that a module's file had when this process first saw it."""
    loaded = getattr(sys.modules.get(name), "__file__", None) or path
    return _MODULES.setdefault(name, _digest(loaded))


def _digest(file: str | Path) -> str:
    try:
        return digest_blake2b(Path(file).read_bytes())
    except OSError:  # the file is gone, or never was a file
        return "none"


def describe_program(modules: tuple[str, ...]) -> str:
    """Return the digest of modules with all that they import, and the versions of libraries."""
    versions = sorted(_find_versions(modules).items())
    return f"{code_digest(*modules, roots=_roots())} {versions}"


def _find_versions(modules: tuple[str, ...]) -> Mapping[str, str]:
    own = [name for name in modules if name.partition(".")[0] not in PROGRAM]
    packages = imported_packages(*own, roots=_roots()) if own else ()
    libraries = {*TOKENIZERS, *(name for names in LIBRARIES.values() for name in names)}
    return installed_versions(sorted(libraries.union(find_distributions(packages))))


def find_modules(pickled: bytes) -> tuple[str, ...]:
    """Return the project's and the user's modules that a pickled call refers to."""
    names: set[str] = set()

    class _Names(pickle.Unpickler):
        def find_class(self, module_name: str, global_name: str, /) -> Any:
            names.add(module_name)
            return super().find_class(module_name, global_name)

    _Names(io.BytesIO(pickled)).load()
    return tuple(sorted(name for name in names if project_files(name, roots=_roots())))


def _roots() -> tuple[Path, Path]:
    return HERE, Path.cwd()


@lru_cache(maxsize=1)
def _load(function: bytes) -> Callable[[Any], Any]:
    """Unpickle the stage's function; cached, so that files it has opened serve later items."""
    return pickle.loads(function)
