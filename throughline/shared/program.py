"""The program that decides what a stage writes, as one digest: of the stage's module and all that
it imports of the project, blind to comments, docstrings and formatting.

Whatever asks whether something was made by this program asks here: a stage's identity, by which DVC
knows what to run (tasks/identities.py); folders and checkpoints of interrupted stages, which only
the same program continues.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from throughline.shared.code_identity import HERE, code_digest
from throughline.shared.files import digest_json
from throughline.shared.libraries import LIBRARIES, installed_versions

ROOTS = (HERE, HERE / "whowaits" / "src")  # what a stage measures with is a package of its own
# Of stages that do not have the name of their module, or whose command line decides more.
MODULES: Mapping[str, tuple[str, ...]] = {
    "build": ("tasks.build", "throughline.shared.allocator"),
    "train": ("tasks.train", "throughline.shared.allocator"),
    "profile": ("tasks.profiling", "throughline.shared.allocator"),
    "race": ("tasks.race", "throughline.race.training", "throughline.shared.allocator"),
}
# Messages, checks and bookkeeping, and settings: what these decide reaches a stage as values.
SUPPORTING = (
    "tasks.earlier",
    "tasks.identities",
    "throughline.config",
    "throughline.data.known_files",
    "throughline.data.local_files",
    "throughline.settings",
    *(
        f"throughline.shared.{module}"
        for module in (
            "code_identity",
            "dask_engine",
            "dask_task",
            "engine",
            "errors",
            "failures",
            "file_lock",
            "gc_pause",
            "host_mark",
            "layout",
            "libraries",
            "object_store",
            "program",
            "progress",
            "scratch",
            "termination",
            "fork_client",
        )
    ),
    "throughline.tracking",
    "whowaits.within",  # what the command does by itself
)


def stage_modules(stage: str) -> tuple[str, ...]:
    """The modules that a stage begins with, by its name in dvc.yaml."""
    return MODULES.get(stage, (f"tasks.{stage}",))


def digest_code(stage: str, *further: str) -> str:
    """Digest of the code of a stage, by its name in dvc.yaml, and of `further` modules, such as
    one's own, with all they import.
    """
    program = code_digest(*stage_modules(stage), roots=ROOTS, without=SUPPORTING)
    return digest_json([program, code_digest(*further)]) if further else program


@cache
def digest_program(stage: str) -> str:
    """Digest of a stage's code and of the versions of its libraries: only the same program
    continues what it began.
    """
    libraries = installed_versions(LIBRARIES[stage])
    return digest_json({"code": digest_code(stage), "libraries": libraries})
