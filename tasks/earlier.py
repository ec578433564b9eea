"""Uses DVC's record of a stage's last run, and checks the identity that it will record of this one.

DVC removes a stage's outputs before it runs the stage, but dvc.lock still names them.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ruamel.yaml import YAML, YAMLError

from tasks.identities import find_identities
from throughline.shared.errors import UserError, WorkspaceProblem
from throughline.shared.files import dump_json
from throughline.shared.layout import Layout
from throughline.shared.scratch import Scratch

WANTED = ("data/shards", "data/snapshot", "data/snapshot.json")


def check_identity(root: Path = Path()) -> None:
    """Check that this stage's identity file, which DVC will record, is up to date.

    Raises:
      WorkspaceProblem: parameters, code, files or libraries have changed since it was written.
    """
    name = os.environ.get("DVC_STAGE", "").rpartition(":")[2].replace("@", "/")
    written = Layout(root).identities / f"{name}.json"
    if written.exists() and written.read_bytes() != _find_identity(name, root):
        raise WorkspaceProblem(
            f"values that decide the results of {name} have changed since {written} was written;"
            " run the same command again, if necessary after `dvc repro --force identities`"
        )


def open_earlier(stage: str, root: Path, scratch: Scratch) -> Layout | None:
    """Link the shards and the snapshot that the last run of a stage read and wrote.

    Returns a layout of links to DVC's cache, which last as long as `scratch`; None if anything that
    decides the output differs from that run's, dvc.lock or the cache lacks it, or THROUGHLINE_FRESH
    is set.
    """
    lock = root / "dvc.lock"
    if os.environ.get("THROUGHLINE_FRESH") or not lock.exists():
        return None
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, YAMLError, UserError):
        last = YAML(typ="safe").load(lock)["stages"][stage]
        files = {one["path"]: one["md5"] for one in (*last["deps"], *last["outs"])}
        identity = hashlib.md5(_find_identity(stage, root), usedforsecurity=False).hexdigest()
        if files[f"data/identities/{stage}.json"] != identity:
            return None
        cache, layout = find_cache(root), Layout(scratch.new_folder())
        for output in files.keys() & WANTED:
            for name, cached in list_cached(cache, files[output]):
                link = layout.root / output / name
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(cached)
        return layout
    return None


def _find_identity(name: str, root: Path) -> bytes:
    """Return the present content of an identity's file, as if it were written now."""
    identities = dict(find_identities(root, stages=(name.partition("/")[0],)))
    return f"{dump_json(identities.get(name))}\n".encode()


def list_cached(cache: Path, digest: str) -> Iterator[tuple[str, Path]]:
    """Yield name and path of each file of an output in DVC's cache; a single file's name is empty.

    Raises:
      OSError, ValueError, KeyError: the list of a folder's files is missing or malformed.
    """

    def find(digest: str) -> Path:
        return cache / "files" / "md5" / digest[:2] / digest[2:]

    if not digest.endswith(".dir"):
        yield "", find(digest)
        return
    for file in json.loads(find(digest).read_bytes()):
        yield file["relpath"], find(file["md5"])


def find_cache(root: Path) -> Path:
    """Return the absolute path of DVC's cache; a WorkspaceProblem if DVC does not say it."""
    done = subprocess.run(
        [sys.executable, "-m", "dvc", "cache", "dir"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise WorkspaceProblem(f"`dvc cache dir` failed: {done.stderr.strip()}")
    return (root / done.stdout.strip()).absolute()
