"""Checkpoints on disk that stay usable after a kill or a power failure at any instant.

The newest two of a training are kept. Each is a folder: it is written under a temporary name,
flushed and renamed; only then is the oldest removed. A checkpoint that is proven damaged, or does
not fit the model, is reported and set aside, and the one before it is used. Any other error, such
as a full disk or device, ends the training and leaves all checkpoints in place.
"""

import contextlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import tensorflow as tf

from throughline.shared.errors import MissingInput
from throughline.shared.files import (
    digest_file,
    digest_json,
    dump_json,
    flush,
    read_json,
    write_json,
)
from throughline.shared.layout import from_here
from throughline.shared.progress import echo_problem

MAX_TO_KEEP = 2
MAX_OTHERS = 3  # kept trainings with other settings, data or code
# Errors that show that a file is missing, invalid or altered.
DAMAGED = (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError, MissingInput)
# Errors that TensorFlow raises if intact files do not hold these variables.
UNFITTING = (
    AssertionError,
    ValueError,
    tf.errors.DataLossError,
    tf.errors.InvalidArgumentError,
    tf.errors.NotFoundError,
)
STATE = "state.json"
VARIABLES = "variables"
RUN = ("run_id", "unsent")  # keys of a state: the MLflow run, or its tag if the server lacks it


@dataclass(frozen=True, kw_only=True)
class StoredCheckpoint:
    """A checkpoint whose files are verified, with the state that was stored in it."""

    folder: Path
    state: Mapping[str, Any]

    def read(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()


class CheckpointStore:
    """The checkpoints of one training, in a folder of their own below `root`.

    `fingerprint` maps each part that defines the training (data, code, settings, …) to its digest.
    A training never resumes from another training's checkpoints: the newest few of those trainings
    are kept, and the differences reported. `root` is removed when a training completes.
    """

    def __init__(self, root: Path, fingerprint: Mapping[str, str]) -> None:
        self._root, self.fingerprint = root, dict(fingerprint)
        self._folder = root / f"work-{digest_json(self.fingerprint)[:16]}"

    @property
    def run(self) -> dict[str, Any]:
        """The MLflow run of the newest usable checkpoint, by `run_id` or `unsent`, if any."""
        return {key: one.state.get(key) for one in self._usable_checkpoints[:1] for key in RUN}

    def restore(
        self,
        variables: Sequence[tf.Variable],
        *,
        check: Callable[[StoredCheckpoint], object] = lambda saved: None,
    ) -> StoredCheckpoint | None:
        """Load the newest checkpoint that fits, and that `check` accepts; return it, or None."""
        if not self._usable_checkpoints:
            return None
        initial = [variable.numpy() for variable in variables]
        for saved in self._usable_checkpoints:
            try:
                tf.train.Checkpoint(variables=list(variables)).read(
                    str(saved.folder / VARIABLES)
                ).assert_consumed()
                check(saved)
            except UNFITTING as error:
                _set_aside(saved.folder, f"cannot be loaded ({first_line(error)})")
                for variable, value in zip(variables, initial, strict=True):
                    variable.assign(value)
                continue
            return saved
        echo_problem("no checkpoint can be used; training starts from the beginning")
        return None

    def write(
        self,
        variables: Sequence[tf.Variable],
        state: Mapping[str, Any],
        members: Mapping[str, bytes],
        *,
        position: tuple[int, int],
    ) -> None:
        """Write a checkpoint at a `position` (epoch, step), then remove all but the newest two.

        `members` are further files by name; NaN and infinity in `state` are read back as strings.
        """
        epoch, step = position
        for folder in (self._root, self._folder):
            if not folder.exists():
                folder.mkdir(parents=True)
                flush(folder.parent)
        temporary, final = self._folder / ".writing", self._folder / f"at-{epoch:06d}-{step:010d}"
        # An interrupted training left this; if it were usable, this training would have resumed it.
        for stale in (temporary, final):
            shutil.rmtree(stale, ignore_errors=True)
        temporary.mkdir()
        tf.train.Checkpoint(variables=list(variables)).write(str(temporary / VARIABLES))
        for name, content in members.items():
            (temporary / name).write_bytes(content)
        files = {path.name: digest_file(path) for path in sorted(temporary.iterdir())}
        whole = {"work": self.fingerprint, "files": files, "state": dict(state)}
        whole = json.loads(dump_json(whole))  # as a restore will read it
        write_json(temporary / STATE, {**whole, "digest": digest_json(whole)})
        for path in temporary.iterdir():
            flush(path)
        flush(temporary)
        temporary.rename(final)
        flush(self._folder)
        for stale in _positions(self._folder)[MAX_TO_KEEP:]:
            shutil.rmtree(stale, ignore_errors=True)

    @cached_property
    def _usable_checkpoints(self) -> list[StoredCheckpoint]:
        """The verified checkpoints of this training, newest first; damaged ones are set aside."""
        usable = []
        for folder in _positions(self._folder):
            try:
                state = _read_verified(folder)["state"]
                usable.append(StoredCheckpoint(folder=folder, state=state))
            except DAMAGED as error:
                _set_aside(folder, f"is damaged ({first_line(error)})")
        self._keep_others()
        return usable

    def _keep_others(self) -> None:
        """Report why the newest other training is not resumed; keep the newest `MAX_OTHERS`."""
        others = [folder for folder in self._root.glob("work-*") if folder != self._folder]
        others.sort(key=lambda folder: folder.stat().st_mtime_ns, reverse=True)
        for folder in others[MAX_OTHERS:]:
            shutil.rmtree(folder, ignore_errors=True)
        for folder in [one for other in others[:1] for one in _positions(other)[:1]]:
            with contextlib.suppress(*DAMAGED):
                work = _read_verified(folder)["work"]
                differing = sorted({part for part, _ in self.fingerprint.items() ^ work.items()})
                echo_problem(
                    f"an interrupted training is not continued, because its {', '.join(differing)}"
                    f" differ{'s' if len(differing) == 1 else ''}; its checkpoints are kept until a"
                    f" training completes: {from_here(folder.parent)}"
                )


def list_checkpoints(root: Path) -> list[tuple[Path, Mapping[str, Any]]]:
    """List the checkpoints of all trainings below `root` whose `STATE` is sound, each with it."""
    found = []
    for folder in (each for work in sorted(root.glob("work-*")) for each in _positions(work)):
        with contextlib.suppress(*DAMAGED):
            found.append((folder, read_json(folder / STATE)))
    return found


def _positions(folder: Path) -> list[Path]:
    """List a training's checkpoints, newest first: the numbers in their names have equal length."""
    return sorted(folder.glob("at-*-*"), reverse=True)


def _read_verified(folder: Path) -> dict[str, Any]:
    """Verify a checkpoint's files and return the content of `STATE`; or raise one of DAMAGED."""
    content = read_json(folder / STATE)
    if content.pop("digest") != digest_json(content):
        raise ValueError(f"{STATE} has changed since it was written")
    for name, digest in content["files"].items():
        if digest_file(folder / name) != digest:
            raise ValueError(f"{name} has changed since it was written")
    return content


def _set_aside(folder: Path, reason: str) -> None:
    aside = folder.with_name(f"aside-{folder.name}")
    echo_problem(f"the checkpoint {from_here(folder)} {reason}; it is set aside as {aside.name}")
    shutil.rmtree(aside, ignore_errors=True)
    folder.rename(aside)


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
