"""Reads the files of examples after ingest, local or in a bucket; callers check digests."""

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
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

    Raises:
      DataNotFound: one cannot be read, or has another size than at ingest; names it.
      ObjectStoreFailed: the store could not be reached, or refused the request.
    """
    urls = {split_address(part.uri)[0] for part in parts if is_address(part.uri)}
    if urls:
        yield from _read_objects(parts, {url: open_store(url) for url in urls})
        return
    lock: AbstractContextManager[Any] = _READ_LOCK
    for part in parts:
        # Serialized: two threads that read small files contend for the GIL, which takes longer than
        # reading, unless the disk is slow. The lock is not held while the caller writes: a caller
        # that fails leaves this generator suspended.
        with lock:
            started_at = time.perf_counter()
            value = _read_file(part)
            if time.perf_counter() - started_at > SLOW_READ_S:
                lock = nullcontext()
        yield value


def _read_objects(parts: Sequence[FilePart], buckets: Mapping[str, ObjectStore]) -> Iterator[bytes]:
    """Yield what `read_parts` does: objects of `buckets`, and files that ingest has converted."""

    def read(part: FilePart) -> bytes:
        return _read_object(part, buckets) if is_address(part.uri) else _read_file(part)

    small = (part for part in parts if part.bytes <= READ_AHEAD_BYTES)
    ahead = in_threads(read, small, workers=READERS, ahead=READERS)
    for part in parts:
        yield next(ahead) if part.bytes <= READ_AHEAD_BYTES else read(part)


def _read_object(part: FilePart, buckets: Mapping[str, ObjectStore]) -> bytes:
    url, name = split_address(part.uri)
    store, start = buckets[url], part.offset
    try:
        if start >= 0:
            return bytes(store.read_range(name, start=start, length=part.bytes))
        value = store.read(name)
    except ObjectStoreFailed as error:
        if store.find(name):
            raise
        raise DataNotFound(
            f"{part.uri} (example {part.example_id}) was there at ingest and is gone now; run"
            " `dvc repro`"
        ) from error
    _check_size(value, part)
    return value


def _read_file(part: FilePart) -> bytes:
    """Return a file of known size, or a part of one, in as few system calls as possible."""
    # One byte more than expected shows that a file has grown.
    size, extra = part.bytes, int(part.offset < 0)
    start = max(0, part.offset)
    try:
        descriptor = os.open(part.uri, os.O_RDONLY | os.O_NONBLOCK)
        try:
            value = os.pread(descriptor, size + extra, start)
            # One call reads 2 GiB at most.
            while 0 < len(value) < size and (
                more := os.pread(descriptor, size + extra - len(value), start + len(value))
            ):
                value += more
        finally:
            os.close(descriptor)
    except OSError as error:
        raise DataNotFound(
            f"{part.uri} (example {part.example_id}) was there at ingest and cannot be read now:"
            f" {error.strerror}; run `dvc repro`"
        ) from error
    _check_size(value, part)
    return value


def _check_size(value: bytes, part: FilePart) -> None:
    if len(value) != part.bytes:
        raise DataNotFound(
            f"{part.uri} (example {part.example_id}) has another size than at ingest,"
            f" which was {part.bytes:,} bytes; run `dvc repro`"
        )
