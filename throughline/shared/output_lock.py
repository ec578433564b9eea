"""The lock of a folder into which only one process may write results.

DVC and flows ensure this for what they start; the lock is for commands started by hand. It is a
file in that folder, because locks of folders do not work across machines over NFS or Lustre. A
process that has ended, even by kill -9, holds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from throughline.shared.errors import AlreadyRunning
from throughline.shared.file_lock import hold_if_free
from throughline.shared.layout import from_here

LOCK = ".lock"


@contextmanager
def hold_outputs(folder: Path, work: str) -> Iterator[None]:
    """Hold the lock of a folder for the length of the block; `work` says what writes there.

    Raises:
      AlreadyRunning: Another process holds the lock.
    """
    with hold_if_free(folder / LOCK, work) as held:
        if held is None:
            raise AlreadyRunning(
                f"another process is {work} and writes into {from_here(folder)}; wait until it has"
                " ended, or end it, and run the same command again"
            )
        yield
