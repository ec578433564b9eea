"""Checkpoints on disk that a kill or a power failure at any instant leaves usable: the newest two
of one piece of work.

Each is a folder of its own: written under a temporary name, every file flushed, the folder flushed,
renamed, and the folder around it flushed. Only then does the oldest go. One that is damaged or does
not fit is reported, and the one before it is used.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tasks.errors import MissingInput
from tasks.files import digest_file, digest_json, read_json, write_json
from tasks.progress import echo_problem

MAX_TO_KEEP = 2
STATE = "state.json"
VARIABLES = "variables"
_NAME = re.compile(r"at-(\d+)-(\d+)")


@dataclass(frozen=True, kw_only=True)
class StoredCheckpoint:
    """A checkpoint whose files are what was written, and what its state says."""

    folder: Path
    state: Mapping[str, Any]


class CheckpointStore:
    """The checkpoints of one piece of work in `folder`; `fingerprint` names its parts (data, code,
    settings, …), each with its digest.

    A checkpoint of other work is never resumed from: it is removed, and the parts that differ are
    named.
    """

    def __init__(self, folder: Path, fingerprint: Mapping[str, str]) -> None:
        self._folder, self._fingerprint = folder, dict(fingerprint)

    @property
    def run_id(self) -> str | None:
        """The MLflow run of the newest checkpoint; None where there is none."""
        return self._usable_checkpoints[0].state["run_id"] if self._usable_checkpoints else None

    def restore(self, variables: Sequence[tf.Variable]) -> Mapping[str, Any] | None:
        """Load the newest checkpoint that can be loaded into `variables` and return its state; None
        where there is none: nothing is changed.
        """
        if not self._usable_checkpoints:
            return None
        initial = [np.asarray(variable) for variable in variables]
        for saved in self._usable_checkpoints:
            try:
                tf.train.Checkpoint(variables=list(variables)).read(
                    str(saved.folder / VARIABLES)
                ).assert_consumed()
            except Exception as error:  # noqa: BLE001 - whatever a damaged or unfitting file makes TensorFlow raise, it must not block
                _discard(saved.folder, f"cannot be loaded ({_first_line(error)})")
                for variable, value in zip(variables, initial, strict=True):
                    variable.assign(value)
                continue
            return saved.state
        echo_problem("no checkpoint can be used; training starts from the beginning")
        return None

    def write(
        self, variables: Sequence[tf.Variable], state: Mapping[str, Any], *, epoch: int, step: int
    ) -> None:
        """Write a checkpoint at a position, then remove all but the newest ones. `state` is
        anything that JSON holds.
        """
        created = not self._folder.exists()
        self._folder.mkdir(parents=True, exist_ok=True)
        if created:
            _flush(self._folder.parent)
        temporary, final = self._folder / ".writing", self._folder / f"at-{epoch:06d}-{step:010d}"
        # Of an interrupted training; what was usable at this position has been resumed from.
        for stale in (temporary, final):
            shutil.rmtree(stale, ignore_errors=True)
        temporary.mkdir()
        tf.train.Checkpoint(variables=list(variables)).write(str(temporary / VARIABLES))
        files = {path.name: digest_file(path) for path in sorted(temporary.iterdir())}
        content = {"work": self._fingerprint, "files": files, "state": dict(state)}
        write_json(temporary / STATE, {**content, "digest": digest_json(content)})
        for path in temporary.iterdir():
            _flush(path)
        _flush(temporary)
        temporary.rename(final)
        _flush(self._folder)
        for stale in _positions(self._folder)[MAX_TO_KEEP:]:
            shutil.rmtree(stale, ignore_errors=True)

    @cached_property
    def _usable_checkpoints(self) -> list[StoredCheckpoint]:
        """The usable ones of this work, the newest first; what is of no use is reported and
        removed.
        """
        usable, other = [], False
        for folder in _positions(self._folder):
            try:
                content = _read_verified(folder)
            except (OSError, ValueError, KeyError, TypeError, MissingInput) as error:
                _discard(folder, f"is damaged ({_first_line(error)})")
                continue
            differing = sorted(
                part
                for part in {*self._fingerprint, *content["work"]}
                if self._fingerprint.get(part) != content["work"].get(part)
            )
            if not differing:
                usable.append(StoredCheckpoint(folder=folder, state=content["state"]))
                continue
            if not other:
                _discard(
                    folder,
                    f"is of another training, its {', '.join(differing)}"
                    f" differ{'s' if len(differing) == 1 else ''}",
                )
                echo_problem("training starts from the beginning")
            other = True
            shutil.rmtree(folder, ignore_errors=True)
        return usable


def _positions(folder: Path) -> list[Path]:
    """Folders of checkpoints, the furthest first."""
    found = [
        (tuple(map(int, match.groups())), path)
        for path in folder.glob("at-*")
        if (match := _NAME.fullmatch(path.name))
    ]
    return [path for _, path in sorted(found, reverse=True)]


def _read_verified(folder: Path) -> dict[str, Any]:
    """What was written into a checkpoint's folder next to the variables.

    Raises:
      ValueError, OSError, KeyError: a file is not what was written.
    """
    content = read_json(folder / STATE)
    if content.pop("digest") != digest_json(content):
        raise ValueError(f"{STATE} is not what was written")
    for name, digest in content["files"].items():
        if digest_file(folder / name) != digest:
            raise ValueError(f"{name} is not what was written")
    return content


def _discard(folder: Path, reason: str) -> None:
    echo_problem(f"the checkpoint {folder} {reason}; it is removed")
    shutil.rmtree(folder, ignore_errors=True)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"


def _flush(path: Path) -> None:
    """Have the disk hold a file's data, or a folder's entries."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
