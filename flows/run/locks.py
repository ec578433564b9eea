"""Locks between runs: of a folder that they share, and of the machine.

A stage's supervisors inherit the descriptors, so a lock stays until no process of its run is left.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from throughline.shared.file_lock import hold, hold_if_free
from throughline.shared.machine_lock import hold_machine

STATE_DIR = ".throughline"


def lock_path(project: Path, name: str) -> Path:
    return project / STATE_DIR / "locks" / f"{name}.lock"


def hold_briefly(project: Path, name: str, owner: str) -> AbstractContextManager[int]:
    """Hold a lock of the project that is never held for long; yield its file descriptor."""
    return hold(lock_path(project, name), owner, lambda who: None)


@contextmanager
def hold_machine_and_folder(
    path: Path, owner: str, on_wait: Callable[[str], object]
) -> Iterator[tuple[int, int]]:
    """Hold the machine's lock and a folder's; yield their file descriptors.

    Calls `on_wait` with who is waited for. Releases the machine while another holds the folder.
    """
    while True:
        # The machine first, so that the folder stays unlocked while this run waits for the machine.
        with (
            hold_machine(lambda who: on_wait(f"{who} is measuring on this machine")) as machine,
            hold_if_free(path, owner) as folder,
        ):
            if folder is not None:
                yield machine, folder
                return
        with hold(path, owner, lambda who: on_wait(f"{who} is running here")):
            pass
