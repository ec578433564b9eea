"""Checks before a run that its files exist and that DVC can hash its source.

DVC hashes all of `data.path` before ingest starts: it would wait forever for a pipe, and stop at a
dangling link. It skips files that `.dvcignore` names; ingest rejects them with a reason.
"""

import errno
import os
import shlex
import stat
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

from flows.run.dvc_calls import DVC, dvc_environment
from flows.run.git_calls import list_files, list_submodules
from throughline.config.named_files import find_named_files
from throughline.shared.data_url import check_object_exists, is_address
from throughline.shared.errors import (
    DataNotFound,
    InvalidParams,
    UnreadableSource,
    WorkspaceProblem,
)

SHOWN = 3
CHECKED = 100  # stop after this many files that DVC cannot read
# From this size on DVC takes seconds to read the data.
MANY_FILES, MANY_BYTES = 10_000, 1 << 30


def check_source(root: Path, path: str, *, fetched: str = "none") -> None:
    """Refuse a source as `check_exists` does, or with UnreadableSource if DVC cannot hash it."""
    check_exists(root, path, fetched=fetched)
    if is_address(path):
        return
    reasons = ((str(file), _why_unhashable(file)) for file in _list_files(root / path))
    odd = dict(islice(((name, reason) for name, reason in reasons if reason), CHECKED))
    ignored = _ignored(root, list(odd)) if odd else set()
    kept = [
        f"{os.fsencode(name).decode(errors='backslashreplace')} {reason}"
        for name, reason in odd.items()
        if name not in ignored
    ]
    if kept:
        least = "at least " if len(odd) == CHECKED else ""
        more = f" and {least}{len(kept) - SHOWN} more" if len(kept) > SHOWN else ""
        # .dvcignore works only within the project.
        inside = (root / path).is_relative_to(root) and ".." not in Path(path).parts
        remedy = f": `find {shlex.quote(path)} -xtype l -delete` removes dangling links"
        if inside:
            remedy = ", or name them in .dvcignore: ingest then rejects them with their reasons"
        raise UnreadableSource(
            "DVC, which compares all files of data.path with those of the last run, cannot read"
            f" some: {'; '.join(kept[:SHOWN])}{more}. Remove them{remedy}"
        )


def check_exists(root: Path, path: str, *, fetched: str = "none") -> None:
    """Refuse a missing source, unless it is `fetched`, the known dataset that will be fetched.

    Raises DataNotFound, and ObjectStoreFailed if its bucket is missing, refuses or is not reached.
    """
    if is_address(path):
        check_object_exists(path)
        return
    to_be_fetched = fetched != "none" and path.startswith(f"data/raw/{fetched}")
    if not to_be_fetched and not os.path.lexists(root / path):
        raise DataNotFound(
            f"data.path: {path} does not exist; it is a folder or file of your data, absolute or"
            " relative to the project"
        )


def check_code(project: Path, own: Sequence[str]) -> None:
    """Raise WorkspaceProblem if the worktree of a run with changes would lack files of own code."""
    lacking = sorted({*own} - {*list_files(project, "--", "*.py")})
    if not lacking:
        return
    for submodule in list_submodules(project):
        if inside := [name for name in lacking if Path(name).is_relative_to(submodule)]:
            raise WorkspaceProblem(
                f"the run needs {', '.join(inside)} of the git submodule {submodule}, but its"
                " worktree has no submodules: copy the code into the project itself, and `git add`"
                " it there"
            )
    raise WorkspaceProblem(
        f"the run needs {', '.join(lacking)}, but its worktree has only files that git tracks:"
        f" `git add --force {' '.join(lacking)}`"
    )


def check_named_files(
    root: Path, document: Mapping[str, object], listed: Sequence[str] = ()
) -> None:
    """Raise InvalidParams for files of params.yaml, or `listed` in dvc.yaml, that a run lacks."""
    named = [*find_named_files(document), *(("dvc.yaml", name) for name in listed)]
    lacking = [
        f"{key}: {name} is not in this run's worktree, which has only files that git tracks: `git"
        f" add --force {name}`, or set its absolute path"
        for key, name in named
        if not (root / name).is_file()
    ]
    if lacking:
        raise InvalidParams(lacking)


def is_large(source: Path) -> bool:
    """Return whether DVC takes seconds or longer to read everything at a path."""
    read = 0
    for count, path in enumerate(_list_files(source), start=1):
        with suppress(OSError):
            read += path.stat().st_size
        if count >= MANY_FILES or read >= MANY_BYTES:
            return True
    return False


def _list_files(source: Path) -> Iterator[Path]:
    if source.is_dir():
        yield from (Path(folder, name) for folder, _, names in os.walk(source) for name in names)
    elif source.exists():
        yield source


def _why_unhashable(path: Path) -> str | None:
    try:
        str(path).encode()
        return None if stat.S_ISREG(path.stat().st_mode) else "is not a regular file"
    except UnicodeEncodeError:
        return "has a name that is not UTF-8"
    except OSError as error:
        if path.is_symlink() and error.errno == errno.ENOENT:
            return "is a link to nothing; `dvc pull` or another download may bring its target"
        return f"cannot be opened ({error.strerror})"


def _ignored(root: Path, paths: Sequence[str]) -> set[str]:
    """Return the paths that .dvcignore names, in one call, because DVC takes a second to start."""
    command, variables = [*DVC, "check-ignore", *paths], dvc_environment({})
    done = subprocess.run(command, cwd=root, env=variables, capture_output=True, check=False)
    return {os.fsdecode(line) for line in done.stdout.splitlines()}
