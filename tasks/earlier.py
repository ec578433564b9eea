"""Finds in DVC's cache what the last run of a stage wrote.

DVC removes a stage's outputs before it runs the stage, but dvc.lock still names them.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML, YAMLError

from tasks.identities import find_identities
from throughline.shared.errors import UserError, WorkspaceProblem
from throughline.shared.files import write_json
from throughline.shared.layout import Layout
from throughline.shared.scratch import Scratch

WANTED = ("data/shards", "data/snapshot", "data/snapshot.json")


def open_earlier(stage: str, root: Path, scratch: Scratch) -> Layout | None:
    """Link the shards and the snapshot that the last run of a stage read and wrote.

    Returns links to DVC's cache, which last as long as `scratch`. Returns None if settings,
    program, own code, files or libraries differ from that run's, so that the same input could give
    another output; if dvc.lock or the cache lacks that run; or if THROUGHLINE_FRESH is set.

    Raises:
      WorkspaceProblem: DVC runs the stage, and would record another identity than the current one.
    """
    layout, lock = Layout(scratch.new_folder()), root / "dvc.lock"
    identity = _check_identity(stage, root, layout.root) if "DVC_STAGE" in os.environ else ""
    if os.environ.get("THROUGHLINE_FRESH") or not lock.exists():
        return None
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, YAMLError, UserError):
        last = YAML(typ="safe").load(lock)["stages"][stage]
        files = {one["path"]: one["md5"] for one in (*last["deps"], *last["outs"])}
        identity = identity or _digest_identity(stage, root, layout.root)
        if files[f"data/identities/{stage}.json"] != identity:
            return None
        cache = find_cache(root)
        for name in files.keys() & WANTED:
            _link(cache, files[name], layout.root / name)
        return layout
    return None


def _check_identity(stage: str, root: Path, folder: Path) -> str:
    """Digest a stage's current identity; raise WorkspaceProblem if DVC would record another one."""
    identity = _digest_identity(stage, root, folder)
    written = root / "data" / "identities" / f"{stage}.json"
    if _md5(written) != identity:
        raise WorkspaceProblem(
            f"what decides the results of {stage} has changed since {written} was written; run `dvc"
            " repro` again"
        )
    return identity


def _digest_identity(stage: str, root: Path, folder: Path) -> str:
    """Return the digest of a stage's current identity, as DVC computes it."""
    ((name, identity),) = find_identities(root, stages=(stage,))
    path = folder / f"{name}.json"
    write_json(path, identity)
    return _md5(path)


def _md5(path: Path) -> str:
    """Digest a file as DVC does; empty if there is no file."""
    data = path.read_bytes() if path.exists() else None
    return "" if data is None else hashlib.md5(data, usedforsecurity=False).hexdigest()


def _link(cache: Path, digest: str, path: Path) -> None:
    """Link a cached file at `path`, or each file of a cached folder below `path`."""
    for name, cached in list_cached(cache, digest):
        link = path / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(cached)


def list_cached(cache: Path, digest: str) -> Iterator[tuple[str, Path]]:
    """Yield name and path of each file of an output in DVC's cache; a single file's name is empty.

    Raises:
      OSError, ValueError, KeyError: the list of a folder's files is missing or malformed.
    """
    if not digest.endswith(".dir"):
        yield "", path_in_cache(cache, digest)
        return
    listed: list[Mapping[str, Any]] = json.loads(path_in_cache(cache, digest).read_bytes())
    yield from ((file["relpath"], path_in_cache(cache, file["md5"])) for file in listed)


def path_in_cache(cache: Path, digest: str) -> Path:
    return cache / "files" / "md5" / digest[:2] / digest[2:]


def find_cache(root: Path) -> Path:
    """Return the absolute path of DVC's cache.

    Raises:
      WorkspaceProblem: DVC does not say where it is.
    """
    done = subprocess.run(
        [sys.executable, "-m", "dvc", "cache", "dir"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise WorkspaceProblem(f"dvc cache dir: {done.stderr.strip()}")
    return (root / done.stdout.strip()).absolute()
