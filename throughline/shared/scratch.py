"""Folders for a process's own temporary files, such as tf.data's caches, removed when it ends.

The folders are in `.throughline/scratch` of the project, on its disk. The next process removes the
folder of a killed process, whose lock is free, and those of other machines after a day.
"""

import os
import secrets
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from throughline.shared.file_lock import hold_if_free
from throughline.shared.files import host_mark, is_forgotten

SCRATCH = Path(".throughline") / "scratch"
LOCK = ".lock"
OWNER = "a process with a scratch folder"


class Scratch:
    """A folder made at its first use, and removed with this object or when the process exits."""

    def __init__(self, root: Path | None = None) -> None:
        self._root = root
        self._folder: Path | None = None

    @property
    def folder(self) -> Path:
        if self._folder is None:
            root = (self._root or Path.cwd()).absolute()
            clear_scratch(root)
            held = ExitStack()
            self._folder = held.enter_context(_new_folder(root / SCRATCH))
            weakref.finalize(self, held.close)
        return self._folder

    def new_folder(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.folder))


@contextmanager
def temporary_files_in_scratch(root: Path) -> Iterator[None]:
    """In the block, put temporary files of Python and TensorFlow into `root`'s scratch folder."""
    scratch, before = Scratch(root), tempfile.tempdir
    tempfile.tempdir = str(scratch.folder)
    try:
        yield
    finally:
        tempfile.tempdir = before


def clear_scratch(root: Path) -> None:
    """Remove ended processes' files from a project's scratch folder."""
    parent = root / SCRATCH
    for name in {one.name.removesuffix(LOCK) for one in parent.glob("*")}:
        # Do not try locks of other machines: some file systems do not share locks.
        if not name.startswith(host_mark()) and not is_forgotten(parent / name):
            continue
        with hold_if_free(parent / f"{name}{LOCK}", OWNER) as held:
            if held is not None:
                shutil.rmtree(parent / name, ignore_errors=True)


@contextmanager
def _new_folder(parent: Path) -> Iterator[Path]:
    while True:
        folder = parent / f"{host_mark()}-{os.getpid()}-{secrets.token_hex(4)}"
        with hold_if_free(folder.with_name(f"{folder.name}{LOCK}"), OWNER) as held:
            if held is None:  # another process removed it as a leftover before it was locked
                continue
            folder.mkdir(mode=0o700)
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            return
