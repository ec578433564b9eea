"""Reads the files of examples after ingest, local or in a bucket; callers check digests."""

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from throughline.data.object_folder import READ_AHEAD_BYTES, READERS
from throughline.shared.data_url import is_address, split_address
from throughline.shared.errors import DataNotFound, ObjectStoreFailed
from throughline.shared.object_store import ObjectStore, open_store
from throughline.shared.progress import in_threads

SLOW_READ_S = 1e-3  # slower disks and networks are read several files at a time
_READ_LOCK = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class FilePart:
    """An example's file, by path or URL: all of it if `offset` is -1, else `bytes` from there."""

    example_id: str
    uri: str
    offset: int
    bytes: int


def read_parts(parts: Sequence[FilePart]) -> Iterator[bytes]:
    """Yield the contents of files, in order; small ones are read ahead if any is in a bucket.

    Raises DataNotFound if one is gone or has another size than at ingest, and ObjectStoreFailed.
    """
    urls = {split_address(part.uri)[0] for part in parts if is_address(part.uri)}
    buckets = {url: open_store(url) for url in urls}
    if buckets:
        small = (part for part in parts if part.bytes <= READ_AHEAD_BYTES)
        read = partial(_read, buckets=buckets)
        ahead = in_threads(read, small, workers=READERS, ahead=READERS)
        for part in parts:
            yield next(ahead) if part.bytes <= READ_AHEAD_BYTES else read(part)
        return
    lock: AbstractContextManager[Any] = _READ_LOCK
    for part in parts:
        # Serialized: two threads that read small files contend for the GIL, which takes longer than
        # reading, unless the disk is slow. The lock is not held while the caller writes: a caller
        # that fails leaves this generator suspended.
        with lock:
            started_at = time.perf_counter()
            value = _read(part, buckets)
            if time.perf_counter() - started_at > SLOW_READ_S:
                lock = nullcontext()
        yield value


def _read(part: FilePart, buckets: Mapping[str, ObjectStore]) -> bytes:
    """Read an object of one of the `buckets`, or a file, such as one that ingest has converted."""
    where = f"{part.uri} (example {part.example_id})"
    if is_address(part.uri):
        url, name = split_address(part.uri)
        store = buckets[url]
        try:
            if part.offset >= 0:
                return bytes(store.read_range(name, start=part.offset, length=part.bytes))
            value = store.read(name)
        except ObjectStoreFailed as error:
            if store.find(name):
                raise
            raise DataNotFound(
                f"{where} was there at ingest and is gone now; run `dvc repro`"
            ) from error
    else:
        try:
            value = _read_file(part)
        except OSError as error:
            raise DataNotFound(
                f"{where} was there at ingest and cannot be read now: {error.strerror}; run"
                " `dvc repro`"
            ) from error
    if len(value) != part.bytes:
        raise DataNotFound(
            f"{where} has another size than at ingest, which was {part.bytes:,} bytes; run"
            " `dvc repro`"
        )
    return value


def _read_file(part: FilePart) -> bytes:
    size = part.bytes + (part.offset < 0)  # a further byte shows that a file has grown
    with open(part.uri, "rb", buffering=0, opener=_open_at_once) as file:
        file.seek(max(0, part.offset))
        value = file.read(size)
        # One call reads 2 GiB at most.
        while 0 < len(value) < part.bytes and (more := file.read(size - len(value))):
            value += more
    return value


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # even a pipe
