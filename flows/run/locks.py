"""Locks between runs: of a workspace and of the project, alone or with that of the machine, which
is in `throughline/shared/machine_lock.py`.

All are the kernel's, so that a holder that is gone, even by kill -9, holds nothing. A lock's file
descriptor can be passed on to the supervisors of a stage (`supervise.py`); the lock is then free
when nothing of the run is left, not already when the flow is gone.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime
from pathlib import Path

from throughline.shared.machine_lock import hold_machine

POLL_S = 0.2


@contextmanager
def hold(path: Path, owner: str, on_wait: Callable[[str], object]) -> Iterator[int]:
    """Hold the lock `path` for the length of the block; yields its file descriptor.

    `owner` is what others are shown who wait for it; `on_wait` is called once, with who holds it
    since when, if this process has to wait. The file goes when the lock is released.
    """
    waiting = False
    while True:
        with hold_if_free(path, owner) as descriptor:
            if descriptor is not None:
                yield descriptor
                return
        if not waiting:
            on_wait(describe_holder(path))
        waiting = True
        time.sleep(POLL_S)


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


@contextmanager
def hold_if_free(path: Path, owner: str) -> Iterator[int | None]:
    """Hold the lock `path` for the length of the block, as `hold` does, or yield None at once where
    another holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = _acquire(path)
    if descriptor is None:
        yield None
        return
    try:
        since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        os.ftruncate(descriptor, 0)
        os.pwrite(
            descriptor,
            json.dumps({"owner": owner, "pid": os.getpid(), "since": since}).encode(),
            0,
        )
        yield descriptor
    finally:
        # Before it is released: who opens the file from now on gets another one.
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _acquire(path: Path) -> int | None:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        if _is_current(descriptor, path):
            return descriptor
        os.close(descriptor)


def _is_current(descriptor: int, path: Path) -> bool:
    """Whether a file that has been locked is still the one at `path`: its last holder may have
    removed it meanwhile.
    """
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def describe_holder(path: Path) -> str:
    """Who holds a lock, since when, in words; the file is empty for an instant after its holder has
    locked it.
    """
    try:
        known = json.loads(path.read_text())
        return f"{known['owner']} (process {known['pid']}, since {known['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another run"
