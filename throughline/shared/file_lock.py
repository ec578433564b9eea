"""File locks that one process holds at a time, and that tell waiting processes who holds them.

They are kernel locks: a process that has ended, even by kill -9, holds nothing. A lock's file
descriptor can be passed on to other processes; the lock is free when the last of them has ended.
"""

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from throughline.shared.errors import AlreadyRunning
from throughline.shared.layout import from_here

POLL_S = 0.2
OUTPUT_LOCK = ".lock"
Held = TypeVar("Held")


def hold(
    path: Path, owner: str, on_wait: Callable[[str], object], *, silent_s: float = 0.0
) -> AbstractContextManager[int]:
    """Hold the lock `path` for the block, yield its file descriptor; then remove the file.

    Waiting processes are shown `owner`. If this one waits for longer than `silent_s`, `on_wait` is
    called once with a description of the holder.
    """
    return hold_when_free(
        lambda: hold_if_free(path, owner), lambda: on_wait(describe_holder(path)), silent_s=silent_s
    )


@contextmanager
def hold_when_free(
    attempt: Callable[[], AbstractContextManager[Held | None]],
    on_wait: Callable[[], object],
    *,
    silent_s: float = 0.0,
) -> Iterator[Held]:
    """Repeat `attempt` until it yields a lock, and hold it; call `on_wait` after `silent_s`."""
    started_at, waits = time.monotonic(), False
    while True:
        with attempt() as held:
            if held is not None:
                yield held
                return
        if not waits and time.monotonic() >= started_at + silent_s:
            waits = True
            on_wait()
        time.sleep(POLL_S)


@contextmanager
def hold_if_free(path: Path, owner: str) -> Iterator[int | None]:
    """Hold the lock `path` for the block like `hold`; yield None if another process has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = _acquire(path)
    if descriptor is None:
        yield None
        return
    try:
        since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        os.ftruncate(descriptor, 0)
        os.pwrite(
            descriptor, json.dumps({"owner": owner, "pid": os.getpid(), "since": since}).encode(), 0
        )
        yield descriptor
    finally:
        os.close(descriptor)
        with suppress(OSError):  # the folder may be gone
            # Remove the file before the lock is released, so that a process that opens this path
            # later gets a new file. If the lock cannot be taken again, another process holds it, or
            # inherited it; the file then stays.
            if (again := _acquire(path)) is not None:
                path.unlink(missing_ok=True)
                os.close(again)


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
    """Return whether a locked file is still at `path`: its last holder may have removed it."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def describe_holder(path: Path) -> str:
    """Describe who holds a lock, and since when; "another run" until the holder has written it."""
    try:
        known = json.loads(path.read_text())
        return f"{known['owner']} (process {known['pid']}, since {known['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another run"


@contextmanager
def hold_outputs(folder: Path, work: str) -> Iterator[None]:
    """Hold the lock of a folder into which only one process may write results; or AlreadyRunning.

    DVC and flows ensure this for their stages; the lock is for commands started by hand. It is a
    file, because NFS and Lustre lock no folders across machines. `work` names the writer's work.
    """
    with hold_if_free(folder / OUTPUT_LOCK, work) as held:
        if held is None:
            raise AlreadyRunning(
                f"another process is {work} and writes into {from_here(folder)}; wait until it has"
                " ended, or end it, and run the same command again"
            )
        yield
