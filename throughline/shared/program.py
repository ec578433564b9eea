"""The digest of the program that decides a stage's output: its module and those that it imports.

It is part of a stage's identity, by which DVC knows stale stages (tasks/identities.py), and of
partial folders and checkpoints, which only the same program continues.
"""

from collections.abc import Mapping
from functools import cache

from throughline.shared.code_identity import HERE, code_digest
from throughline.shared.files import digest_json
from throughline.shared.libraries import LIBRARIES, installed_versions

ROOTS = (HERE, HERE / "whowaits" / "src")  # stages measure with whowaits, a package of its own
# Stages whose module has another name, or whose command line matters, too.
MODULES: Mapping[str, tuple[str, ...]] = {
    "build": ("tasks.build", "throughline.shared.allocator"),
    "train": ("tasks.train", "throughline.shared.allocator"),
    "profile": ("tasks.profiling", "throughline.shared.allocator"),
    "race": ("tasks.race", "throughline.race.training", "throughline.shared.allocator"),
}
# Left out: messages, checks, bookkeeping and settings. Their effects reach a stage as values.
_ENGINES = ("dask_engine", "dask_task", "engine", "object_store")
_IDENTITIES = ("code_identity", "layout", "libraries", "program")
_PROCESSES = ("file_lock", "fork_client", "gc_pause", "scratch", "termination")
_MESSAGES = ("errors", "failures", "progress")
_SHARED = (*_ENGINES, *_IDENTITIES, *_PROCESSES, *_MESSAGES)
SUPPORTING = (
    "tasks.earlier",
    "tasks.identities",
    "throughline.config",
    "throughline.data.known_files",
    "throughline.data.local_files",
    "throughline.settings",
    *(f"throughline.shared.{module}" for module in _SHARED),
    "throughline.tracking",
    "whowaits.within",  # this affects only the command
)


def stage_modules(stage: str) -> tuple[str, ...]:
    """Return the modules in which a stage begins; `stage` is its name in dvc.yaml."""
    return MODULES.get(stage, (f"tasks.{stage}",))


def digest_code(stage: str, *further: str) -> str:
    """Return the digest of a stage's code (not `SUPPORTING`), `further` and their own imports."""
    program = code_digest(*stage_modules(stage), roots=ROOTS, without=SUPPORTING)
    return digest_json([program, code_digest(*further)]) if further else program


@cache
def digest_program(stage: str) -> str:
    """Return the digest of a stage's code and its libraries' versions."""
    libraries = installed_versions(LIBRARIES[stage])
    return digest_json({"code": digest_code(stage), "libraries": libraries})
