"""Locks between runs: of a folder that they share, alone or with that of the machine, which is in
`throughline/shared/machine_lock.py`.

A lock's file descriptor is passed on to the supervisors of a stage (`supervise.py`), so that it is
free when nothing of the run is left, not already when the flow is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from throughline.shared.file_lock import hold, hold_if_free
from throughline.shared.machine_lock import hold_machine

STATE_DIR = ".throughline"


def lock_path(project: Path, name: str) -> Path:
    """File of one of the project's locks."""
    return project / STATE_DIR / "locks" / f"{name}.lock"


def hold_briefly(project: Path, name: str, owner: str) -> AbstractContextManager[int]:
    """Hold one of the project's locks that are held for moments only; yields its descriptor."""
    return hold(lock_path(project, name), owner, lambda who: None)


@contextmanager
def hold_folder(
    path: Path | None, owner: str, on_wait: Callable[[str], object]
) -> Iterator[tuple[int, ...]]:
    """Hold the lock of a folder that runs share; yields its descriptor, none where they do not
    share it.
    """
    if path is None:
        yield ()
    else:
        with hold(path, owner, on_wait) as descriptor:
            yield (descriptor,)


@contextmanager
def hold_machine_and_folder(
    path: Path | None, owner: str, on_wait: Callable[[str], object]
) -> Iterator[tuple[int, ...]]:
    """Hold the machine's lock, and that of a folder where runs share it; yields their descriptors.

    `on_wait` is called with who does what whenever this process has to wait. While the folder is
    another's, the machine is free for whoever measures elsewhere.
    """
    while True:
        # First the machine's: the folder is not locked while this run waits for another folder's.
        with (
            hold_machine(lambda who: on_wait(f"{who} is measuring on this machine")) as machine,
            hold_if_free(path, owner) if path else nullcontext(machine) as folder,
        ):
            if folder is not None:
                yield tuple({machine, folder})
                return
        with hold_folder(path, owner, lambda who: on_wait(f"{who} is running here")):
            pass
