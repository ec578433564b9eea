"""Files that are either complete or absent: atomic writes, resumable folders, digests.

Every stage writes next to its destination and renames at the end, so that a kill or a power failure
leaves the old output or the new one. The next start removes leftovers of a kill.
"""

import ctypes
import dataclasses
import errno
import glob
import hashlib
import io
import json
import math
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from throughline.shared.errors import expect_current_schema

PARTIAL = ".partial"
DIGITS = 12  # digits of the key's digest in the name of a partial folder
OLD = ".old"
THROWN = ".thrown"
COPIED_BYTES = 1 << 20  # at a time
AT_FDCWD = -100
RENAME_EXCHANGE = 2
# Another machine's files are leftovers after this time: nobody here can ask if its process lives.
FORGOTTEN_S = 86_400.0
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
PROCESSES = Path("/proc/self/ns/pid")
# Groups: the host (missing in names of earlier versions) and the process.
_TEMPORARY = re.compile(r"\..*\.(?:([0-9a-f]{8})-)?(\d+)-[0-9a-f]{16}\.tmp(\.\w+)?")


def digest_blake2b(*parts: bytes) -> str:
    """Return a 128-bit hexadecimal BLAKE2b digest of the parts, each delimited by its length."""
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.hexdigest()


def digest_blake3(data: bytes | memoryview) -> str:
    """Return the 128-bit hexadecimal BLAKE3 digest; 7 times as fast as BLAKE2b for megabytes."""
    return blake3(data).hexdigest(length=16)


def digest_file(path: Path) -> str:
    """Return the BLAKE3 digest of a file."""
    state, buffer = blake3(), memoryview(bytearray(COPIED_BYTES))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            state.update(buffer[:count])
    return state.hexdigest(length=16)


class HashingWriter(io.FileIO):
    """A new file that computes its BLAKE3 digest while it is written."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "wb")
        self._state = blake3()

    def write(self, data: Any) -> int:
        count = super().write(data)
        self._state.update(memoryview(data)[:count])
        return count

    @property
    def digest(self) -> str:
        return self._state.hexdigest(length=16)


def digest_json(value: Any) -> str:
    """Return the digest of a JSON-able value, independent of the order of keys."""
    return digest_blake2b(json.dumps(value, sort_keys=True, default=str).encode())


@cache
def host_mark() -> str:
    """Return eight hexadecimal digits that identify this machine's boot and process namespace."""
    try:
        known = f"{BOOT_ID.read_text().strip()} {PROCESSES.readlink()}"
    except OSError:  # no /proc
        known = os.uname().nodename
    return hashlib.blake2b(known.encode(), digest_size=4).hexdigest()


def is_forgotten(path: Path) -> bool:
    """Return whether a file or folder is missing or has not changed for a day."""
    try:
        return time.time() - path.lstat().st_mtime > FORGOTTEN_S
    except OSError:
        return True


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to `path`; on success flush and rename it, on failure remove it.

    Threads and processes may write the same file at once. Raises FileNotFoundError if the file's
    partial folder was removed; it is not made again.
    """
    if gone := [one for one in path.parents if one.name.endswith(PARTIAL) and not one.exists()]:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(gone[0]))
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn = f"{host_mark()}-{os.getpid()}-{secrets.token_hex(8)}"
    temporary = path.with_name(f".{path.name}.{drawn}.tmp")
    try:
        yield temporary
        flush(temporary)
        os.replace(temporary, path)
        # A partial folder is flushed as a whole later.
        if not any(parent.name.endswith(PARTIAL) for parent in path.parents):
            flush(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def clear_leftovers(folder: Path) -> None:
    """Remove ended processes' temporary files directly in a folder; other hosts' after a day."""
    for path in folder.glob(".*.tmp*"):
        if match := _TEMPORARY.fullmatch(path.name):
            own = match[1] == host_mark()
            if not _is_alive(int(match[2])) if own else is_forgotten(path):
                path.unlink(missing_ok=True)


def copy_whole(source: Path, path: Path, *, digest: str) -> bool:
    """Copy a file atomically if it exists and has this BLAKE3 digest; return whether it did."""
    if not source.is_file():
        return False
    with suppress(_Damaged), atomic_file(path) as temporary:
        with HashingWriter(temporary) as file, source.open("rb") as data:
            shutil.copyfileobj(data, file, COPIED_BYTES)
        if file.digest != digest:
            raise _Damaged
        return True
    return False


class _Damaged(Exception):
    """The copied bytes have another digest."""


def write_json(path: Path, value: Any) -> None:
    with atomic_file(path) as temporary:
        temporary.write_text(dump_json(value) + "\n")


def dump_json(value: Any, *, indent: int | None = 2) -> str:
    """Return a value (dataclasses included) as JSON; NaN and infinities as words in quotes."""
    try:
        return json.dumps(value, indent=indent, default=_to_jsonable, allow_nan=False)
    except ValueError:
        return json.dumps(_name_non_finite(value), indent=indent, allow_nan=False)


def read_json(path: Path) -> Any:
    """Read a JSON file of a stage; MissingInput, which names the stage, or DamagedFile."""
    with expect_current_schema(path):
        return json.loads(path.read_bytes())


@contextmanager
def resumable_folder(path: Path, *, key: str) -> Iterator[Path]:
    """Yield a folder `NAME.DIGEST.partial` next to `path`, with the files of an interrupted run.

    On success, the folder replaces `path`; after a failure or kill, it stays for a run of the
    *same* work (equal `key`). Folders of other work are removed, even if a process writes there.
    """
    for old in (path.with_name(f".{path.name}{OLD}"), *path.parent.glob(f".{path.name}.*{OLD}")):
        # `replace_folder` has left this if it was killed between two renames.
        if old.exists() and not path.exists():
            os.replace(old, path)
        shutil.rmtree(old, ignore_errors=True)
    digest, name = digest_blake2b(key.encode())[:DIGITS], glob.escape(path.name)
    partial = path.with_name(f"{path.name}.{digest}{PARTIAL}")
    for pattern in (f".{name}.*{THROWN}", f"{name}.{DIGITS * '?'}{PARTIAL}"):
        for other in path.parent.glob(pattern):
            if other != partial:
                with suppress(FileNotFoundError):  # another process has removed it
                    shutil.rmtree(_throw_away(other, path), ignore_errors=True)
    partial.mkdir(parents=True, exist_ok=True)
    for folder in (partial, *(one for one in partial.rglob("*") if one.is_dir())):
        clear_leftovers(folder)
    yield partial
    for file in partial.rglob(".*.tmp*"):  # of any machine
        if _TEMPORARY.fullmatch(file.name):
            file.unlink(missing_ok=True)
    replace_folder(partial, path)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder next to `path`; on success it replaces `path`, else it is removed."""
    with resumable_folder(path, key=secrets.token_hex(16)) as folder:
        try:
            yield folder
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


@contextmanager
def atomic_files(folder: Path) -> Iterator[Path]:
    """Yield an empty folder whose members replace those of `folder` on success, one by one."""
    new = folder / PARTIAL
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        yield new
        for path in sorted(new.iterdir()):
            if path.is_dir():
                replace_folder(path, folder / path.name)
            else:
                flush(path)
                os.replace(path, folder / path.name)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def replace_folder(new: Path, path: Path) -> None:
    """Put folder `new` in place of `path`, flushed to disk, so that `path` is always complete.

    On file systems that cannot exchange paths, `path` is missing for an instant; after a kill then,
    the next start restores it.
    """
    flush_folder(new)
    if not path.exists():
        os.replace(new, path)
        flush(path.parent)
        return
    new = _throw_away(new, path)  # a kill may leave the old folder by this name
    if not _exchange(new, path):
        old = path.with_name(f".{path.name}{OLD}")
        shutil.rmtree(old, ignore_errors=True)
        os.replace(path, old)
        os.replace(new, path)
        new = old
    flush(path.parent)
    shutil.rmtree(new, ignore_errors=True)


def flush_folder(folder: Path) -> None:
    """Make sure that all files and folders below a folder have reached the disk."""
    for parent, _, names in os.walk(folder):
        for name in names:
            if not Path(parent, name).is_symlink():
                flush(Path(parent, name))
        flush(Path(parent))


def flush(path: Path) -> None:
    """Make sure that a file, or the names in a folder, have reached the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems cannot flush a folder
            raise
    finally:
        os.close(descriptor)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two paths in one step; return whether this system can do that."""
    rename = ctypes.CDLL(None, use_errno=True).renameat2
    if rename(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))


def _throw_away(folder: Path, path: Path) -> Path:
    """Rename a folder so that no part of it passes for unfinished work on `path`."""
    return folder.rename(folder.with_name(f".{path.name}.{secrets.token_hex(8)}{THROWN}"))


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _name_non_finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _name_non_finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_name_non_finite(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, str | int | float):
        return value
    return _name_non_finite(_to_jsonable(value))


def _to_jsonable(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no JSON form")
