"""The lock of a folder that one process alone may write results into.

DVC and flows see to that for what they start; this is for commands that are started by hand. It is
the kernel's: a holder that is gone, even by kill -9, holds nothing, and no file is left.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from throughline.shared.errors import AlreadyRunning
from throughline.shared.layout import from_here


@contextmanager
def hold_outputs(folder: Path, work: str) -> Iterator[None]:
    """Hold the lock of a folder for the length of the block; `work` says what writes there.

    Raises:
      AlreadyRunning: another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise AlreadyRunning(
            f"another process is {work} and writes into {from_here(folder)}; wait until it has"
            " ended, or end it, and run the same command again"
        ) from None
    try:
        yield
    finally:
        os.close(descriptor)
