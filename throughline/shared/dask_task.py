"""What a worker of a Dask cluster does: make sure that it runs the program of the stage and sees
its files, then the stage's function, once for each item.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from throughline.shared.code_identity import HERE, code_digest, project_files
from throughline.shared.errors import EngineFailed
from throughline.shared.libraries import LIBRARIES, installed_versions

LOADED_AT = time.time()  # modules that have changed since may be the old ones in this process
# A worker has one thread, and as many workers run as there are cores.
THREADS = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A stage as its workers know it: the project's folder, a file in it whose text nobody can
    guess, the module whose function they call, and the digest of its program.
    """

    root: str
    token: Path
    text: str
    module: str
    program: str


def run_task(stage: Stage, function: bytes, item: Any) -> Any:
    """Call the pickled function of a stage with one item, on a worker.

    Raises:
      EngineFailed: the worker sees other files, or has another program.
    """
    enter(stage)
    return _load(function)(item)


@cache
def enter(stage: Stage) -> None:
    """Work where the stage does, with its program; once for each stage."""
    os.environ.update(THREADS)
    try:
        text = stage.token.read_text()
    except OSError:
        text = ""
    if text != stage.text:
        raise EngineFailed(
            f"engine: a worker at {os.uname().nodename} does not see the files in {stage.root};"
            " workers need the project at the same path, on a file system that they share"
        )
    os.chdir(stage.root)
    if stage.root not in sys.path:
        sys.path.insert(0, stage.root)
    for name, path in project_files(stage.module, roots=_roots()).items():
        if path.stat().st_mtime > LOADED_AT:
            raise EngineFailed(
                f"engine: a worker at {os.uname().nodename} has started before {name} was changed;"
                " restart the workers"
            )
    if describe_program(stage.module) != stage.program:
        raise EngineFailed(
            f"engine: a worker at {os.uname().nodename} has another program than the stage, or"
            " other versions of its libraries; start it with the same commit and environment"
        )


@cache
def describe_program(module: str) -> str:
    """The digest of a module, with all that it imports of the project, and of the versions of the
    libraries that the stages use.
    """
    libraries: Mapping[str, str] = installed_versions(
        sorted({name for names in LIBRARIES.values() for name in names})
    )
    return f"{code_digest(module, roots=_roots())} {sorted(libraries.items())}"


def _roots() -> tuple[Path, Path]:
    """Where a process has its modules from: its own program first, then the project."""
    return HERE, Path.cwd()


@lru_cache(maxsize=1)
def _load(function: bytes) -> Callable[[Any], Any]:
    """The function of a stage, which keeps what it has opened for the items that follow."""
    return pickle.loads(function)
