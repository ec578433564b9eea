"""Folders for what a process writes to disk for itself alone, such as tf.data's caches: removed
when it ends, or by the next process.

They are in `.throughline/scratch` of the project, on its disk, not in the system's temporary
directory, where nothing would clear them. A process that is killed leaves its own; the kernel's
lock on a folder shows whether its process is alive.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SCRATCH = Path(".throughline") / "scratch"


class Scratch:
    """A folder that is made when it is first asked for, and removed with this object, at the latest
    when the process exits.
    """

    def __init__(self, root: Path | None = None) -> None:
        self._root = root
        self._folder: Path | None = None

    @property
    def folder(self) -> Path:
        """Its absolute path."""
        if self._folder is None:
            root = (self._root or Path.cwd()).absolute()
            clear_scratch(root)
            self._folder, descriptor = _create(root / SCRATCH)
            weakref.finalize(self, _remove, self._folder, descriptor)
        return self._folder

    def new_folder(self) -> Path:
        """Return a new, empty folder within it."""
        return Path(tempfile.mkdtemp(dir=self.folder))


@contextmanager
def temporary_files_in_scratch(root: Path) -> Iterator[None]:
    """Put Python's temporary files into the scratch folder for the length of the block: TensorFlow
    writes some of its own.
    """
    scratch, before = Scratch(root), tempfile.tempdir
    tempfile.tempdir = str(scratch.folder)
    try:
        yield
    finally:
        tempfile.tempdir = before


def clear_scratch(root: Path) -> None:
    """Remove what processes that are gone have left in a project's scratch folder."""
    for folder in (root / SCRATCH).glob("*"):
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue  # another process is clearing it
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            pass  # its process lives
        finally:
            os.close(descriptor)


def _create(parent: Path) -> tuple[Path, int]:
    """Make a folder and lock it; returns it with the file descriptor that holds the lock."""
    parent.mkdir(parents=True, exist_ok=True)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=parent))
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue  # taken for a leftover before it was locked
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if folder.exists():
            return folder, descriptor
        os.close(descriptor)


def _remove(folder: Path, descriptor: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(descriptor)
