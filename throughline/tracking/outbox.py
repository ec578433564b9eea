"""Keeps MLflow calls that the server could not take, in .throughline/unsent/, with their files."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from throughline.results.base import parse
from throughline.shared.errors import DamagedFile
from throughline.shared.files import write_json
from throughline.tracking.experiments import RunKey

CALLS_WITH_FILES = ("artifact", "model")  # their first value is a path


@dataclass(frozen=True, kw_only=True)
class PendingRun:
    """The calls of a run, in order.

    `tags` link it to the code and flow of that time. `follows` is the tag of the run that the calls
    belong to, if that run was kept as well.
    """

    run_key: RunKey
    run_id: str | None
    status: str
    tags: Mapping[str, str]
    calls: Sequence[Sequence[Any]]
    follows: str | None = None


def enqueue(folder: Path, unsent: PendingRun) -> None:
    """Keep a run for later, with copies of its files, because their worktree may be removed.

    Raises:
      OSError: If it cannot be written, or a file cannot be copied; nothing of it remains.
    """
    file = folder / f"{time.time_ns()}-{unsent.run_key.pipeline}.json"
    calls: list[list[Any]] = []
    try:
        for kind, *values in unsent.calls:
            value = (
                _copy_attachment(Path(values[0]), attachments_dir(file) / str(len(calls)))
                if kind in CALLS_WITH_FILES
                else values[0]
            )
            calls.append([kind, value, *values[1:]])
        write_json(file, asdict(replace(unsent, calls=calls)))
    except OSError:
        shutil.rmtree(attachments_dir(file), ignore_errors=True)
        raise


def list_pending(folder: Path) -> Iterator[tuple[Path, PendingRun]]:
    """Yield every run that is kept, the oldest first, with its file.

    Raises:
      DamagedFile: At the end, if a file is not as `enqueue` writes it.
    """
    damaged = ""
    for file in sorted(folder.glob("*.json")):
        try:
            pending = parse(PendingRun, json.loads(file.read_bytes()))
        except (ValueError, TypeError) as error:
            damaged = damaged or (
                f"{file} is damaged, or of another version of the program ({error}); what it kept"
                f" is in the files of the run, too: delete it and {attachments_dir(file).name}"
            )
            continue
        yield file, pending
    if damaged:
        raise DamagedFile(damaged)


def remove(file: Path) -> None:
    file.unlink()
    shutil.rmtree(attachments_dir(file), ignore_errors=True)


def attachments_dir(file: Path) -> Path:
    return file.with_suffix(".files")


def _copy_attachment(source: Path, folder: Path) -> str:
    folder.mkdir(parents=True)
    copy = folder / source.name
    if source.is_dir():
        shutil.copytree(source, copy)
    elif source.exists():
        shutil.copy2(source, copy)
    return str(copy)
