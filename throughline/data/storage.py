"""Prepared data in an object store; one process fetches a file while others wait."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from throughline.settings import StorageSettings
from throughline.shared.errors import DiskRefused, ObjectStoreFailed
from throughline.shared.file_lock import hold
from throughline.shared.files import PARTIAL, flush
from throughline.shared.layout import Layout
from throughline.shared.object_store import ObjectStore
from throughline.shared.progress import echo_fact

SILENT_S = 5.0  # wait for another process before it is reported
BLOCK_BYTES = 512  # per block of st_blocks


@dataclass(frozen=True, kw_only=True)
class Storage:
    """The URL of shards and columns in an object store, and the folder to fetch them into."""

    url: str
    cache: Path

    @classmethod
    def of(cls, settings: StorageSettings, layout: Layout) -> Storage | None:
        """Return the storage at `settings.url`, or None if that is not set."""
        if not settings.url:
            return None
        return cls(url=settings.url, cache=layout.project / settings.cache)


def has_size(path: Path, size: int) -> bool:
    return path.exists() and path.stat().st_size == size


@contextmanager
def hold_fetch(path: Path, what: str) -> Iterator[None]:
    """Hold the lock for fetching `what` into the file `path`, and create the file's folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    who = f"another process, which fetches {what} into {path.parent}"
    with hold(
        path.with_suffix(".lock"),
        f"fetches {what}",
        lambda _: echo_fact(f"waits for {who}"),
        silent_s=SILENT_S,
    ):
        yield


@contextmanager
def open_unfinished(path: Path, size: int, *, begin: int = 0, end: int) -> Iterator[int]:
    """Open `path.partial` of `size` bytes, with room on the disk for the bytes [begin, end).

    Yields its descriptor. On success, the file is flushed and renamed to `path`; else it stays.

    Raises:
      DiskRefused: the disk lacks room; says both sizes.
    """
    unfinished = name_unfinished(path)
    descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        check_space(descriptor, unfinished, end - begin)
        os.ftruncate(descriptor, size)
        if end > begin:  # not if all texts are empty
            os.posix_fallocate(descriptor, begin, end - begin)
        yield descriptor
    finally:
        os.close(descriptor)
    flush(unfinished)
    os.replace(unfinished, path)
    flush(path.parent)


def name_unfinished(path: Path) -> Path:
    return path.with_name(path.name + PARTIAL)


def check_space(descriptor: int, path: Path, size: int) -> None:
    """Raise DiskRefused if the disk lacks room for `size` bytes of an open file."""
    needed = size - os.fstat(descriptor).st_blocks * BLOCK_BYTES
    free = shutil.disk_usage(path.parent).free
    if needed > free:
        raise DiskRefused(
            f"{path.parent} needs {needed / 2**20:,.1f} MiB more for"
            f" {path.name.removesuffix(PARTIAL)}, but {free / 2**20:,.1f} MiB are free; free some"
            " space, or set storage.cache to a folder on another disk"
        )


def check_put(store: ObjectStore, prefix: str, names: Iterable[str]) -> None:
    """Raise ObjectStoreFailed if the store lacks objects that were put below a prefix.

    Somebody may have removed them, or a worker may have put them into another store of that name.
    """
    listed = {one.name for one in store.list(prefix)}
    if lacking := sorted({*names} - listed):
        raise ObjectStoreFailed(
            f"{store.address(prefix)} lacks {len(lacking):,} of the objects that were put there,"
            f" such as {lacking[0]}; make sure that all workers have the same endpoint in"
            " their environment and nobody removes objects, and run the same command again"
        )
