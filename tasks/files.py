"""Files that are either complete or absent: atomic writes, resumable folders, digests.

Every stage writes beside its destination and renames at the end, so that a kill at any instant leaves the old
output or none. A resumable folder keeps finished members across a kill, as long as the work is still the same.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

KEY_FILE = ".key"


def digest_bytes(*parts: bytes) -> str:
    """Return a 128-bit hexadecimal BLAKE2b digest of the parts, each delimited by its length."""
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.hexdigest()


def digest_content(data: bytes | memoryview) -> str:
    """Return the 128-bit hexadecimal BLAKE3 digest of stored bytes: for megabytes it is seven times as fast as BLAKE2b."""
    return blake3(data).hexdigest(length=16)


def digest_file(path: Path, *, block: int = 1 << 20) -> str:
    """Return the digest of a file's bytes, as `digest_content`, read in blocks of `block` bytes."""
    state, buffer = blake3(), memoryview(bytearray(block))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            state.update(buffer[:count])
    return state.hexdigest(length=16)


class DigestedFile(io.FileIO):
    """A new file whose digest, as `digest_file`, is known when it has been written, without reading it again."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "wb")
        self._state = blake3()

    def write(self, data: Any) -> int:
        """Write some of the bytes, and say how many."""
        count = super().write(data)
        self._state.update(memoryview(data)[:count])
        return count

    @property
    def digest(self) -> str:
        """Of all that has been written."""
        return self._state.hexdigest(length=16)


def digest_json(value: Any) -> str:
    """Return the digest of a JSON-able value, independent of the order of keys."""
    return digest_bytes(json.dumps(value, sort_keys=True, default=str).encode())


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it is flushed to disk and renamed, on failure removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        _flush(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write a value (dataclasses included) as indented JSON, atomically."""
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, default=_plain) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file written by `write_json`."""
    return json.loads(path.read_text())


@contextmanager
def resumable_folder(path: Path, *, key: str) -> Iterator[Path]:
    """Yield `path`.partial, keeping what an interrupted run of the *same* work (equal `key`) left there.

    On success the folder replaces `path` by rename. On failure or kill it stays, to be continued. A partial folder
    with another key is thrown away.
    """
    partial = path.with_name(path.name + ".partial")
    if partial.exists() and _key_of(partial) != key:
        shutil.rmtree(partial)
    partial.mkdir(parents=True, exist_ok=True)
    (partial / KEY_FILE).write_text(key)
    yield partial
    replace_folder(partial, path)
    (path / KEY_FILE).unlink()


def replace_folder(new: Path, path: Path) -> None:
    """Put folder `new` where `path` is; what stood there is removed only after the new one is in place."""
    old = path.with_name(f".{path.name}.{os.getpid()}.old")
    if path.exists():
        os.replace(path, old)
    os.replace(new, path)
    shutil.rmtree(old, ignore_errors=True)


def _key_of(partial: Path) -> str | None:
    key_file = partial / KEY_FILE
    return key_file.read_text() if key_file.exists() else None


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} has no JSON form")
