"""The lock of a folder that one process alone may write results into.

DVC and flows see to that for what they start; this is for commands that are started by hand. It is
a file in that folder, for locks of folders do not reach other machines over NFS or Lustre. A holder
that is gone, even by kill -9, holds nothing.
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
      AlreadyRunning: another process holds it.
    """
    with hold_if_free(folder / LOCK, work) as held:
        if held is None:
            raise AlreadyRunning(
                f"another process is {work} and writes into {from_here(folder)}; wait until it has"
                " ended, or end it, and run the same command again"
            )
        yield
