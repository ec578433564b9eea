"""Folders for what a process writes to disk for itself alone, such as tf.data's caches: removed
when it ends, or by the next process.

They are in `.throughline/scratch` of the project, on its disk, not in the system's temporary
directory, where nothing would clear them. A process that is killed leaves its own; the lock next to
a folder shows whether its process is alive. Where several machines share the project, each clears
its own, and what another one has left for a day.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from throughline.shared.file_lock import hold_if_free
from throughline.shared.host_mark import host_mark, is_forgotten

SCRATCH = Path(".throughline") / "scratch"
LOCK = ".lock"
OWNER = "a process with a scratch folder"


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
            held = ExitStack()
            self._folder = held.enter_context(_new_folder(root / SCRATCH))
            weakref.finalize(self, held.close)
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
    parent = root / SCRATCH
    for name in {one.name.removesuffix(LOCK) for one in parent.glob("*")}:
        # The lock of another machine's is not tried: not all file systems share locks.
        if not name.startswith(host_mark()) and not is_forgotten(parent / name):
            continue
        with hold_if_free(parent / f"{name}{LOCK}", OWNER) as held:
            if held is not None:
                shutil.rmtree(parent / name, ignore_errors=True)


@contextmanager
def _new_folder(parent: Path) -> Iterator[Path]:
    """A new folder, locked, for the length of the block."""
    while True:
        folder = parent / f"{host_mark()}-{os.getpid()}-{secrets.token_hex(4)}"
        with hold_if_free(folder.with_name(f"{folder.name}{LOCK}"), OWNER) as held:
            if held is None:  # it was taken for a leftover before it was locked
                continue
            folder.mkdir(mode=0o700)
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            return
