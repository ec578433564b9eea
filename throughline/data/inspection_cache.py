"""Caches ingest's findings about the files of a source, across ingests and kills.

A file is not read again if its size, times and inode (in a bucket: size, time and tag) are
unchanged. As in git's index, a file that changed within the last two seconds is not cached, since
its next change may leave the same times. Entries with a time in the future, and damaged entries,
are ignored. Only the same program with the same settings uses an entry. No output depends on the
cache: if it cannot be read or written, all files are read.
"""

import json
import os
import sqlite3
import stat
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from throughline.data.encodings.base import FileInfo, Root
from throughline.data.found import ExampleFile
from throughline.data.object_folder import ObjectFolder
from throughline.settings import DataSettings
from throughline.shared.files import digest_blake2b, digest_json
from throughline.shared.layout import from_here
from throughline.shared.program import digest_program
from throughline.shared.progress import echo_problem

SETTLED_NS = 2_000_000_000  # the coarsest timestamps in use, those of FAT
FILES_PER_QUERY = 500
# Settings for the place of files, and settings that apply after files are inspected.
NOT_OF_A_FILE = ("path", "fetch", "split", "duplicates", "max_reject_fraction")
OTHERS_KEPT = 3  # databases of other settings to keep, as for runs with changed settings
_SURPLUS = 1000  # entries of missing files that are kept, beyond the number of files
_CREATE = """CREATE TABLE IF NOT EXISTS inspections (
    file BLOB PRIMARY KEY, stamp TEXT, inspected_ns INTEGER, found TEXT, checksum INTEGER
) WITHOUT ROWID"""


def read_stamp(file: ExampleFile, *, now_ns: int) -> str:
    """Return a stamp that changes with the file's contents; empty if none does.

    A file's stamp has its size, times [ns] and inode; it is empty for links, files that are missing
    or not regular, and those that have just changed. An object's stamp has its size, tag and time
    as listed by the store; it is empty without a tag. Both also name the part of the file, if any.
    """
    if one := file.object:
        listed = f"{one.bytes} {one.tag} {one.modified_at.isoformat()} {file.offset} {file.size}"
        return listed if one.tag else ""
    try:
        status = os.lstat(file.path)
    except (OSError, ValueError):
        return ""
    settled = max(status.st_mtime_ns, status.st_ctime_ns) < now_ns - SETTLED_NS
    if not (settled and stat.S_ISREG(status.st_mode)):
        return ""
    times = f"{status.st_mtime_ns} {status.st_ctime_ns}"
    return f"{status.st_size} {times} {status.st_ino} {file.offset} {file.size}"


class InspectionCache:
    """The findings about files of `root`, in a database that any number of processes may use.

    Without a database nothing is cached. `now` returns the time [ns].
    """

    def __init__(self, database: sqlite3.Connection | None, *, root: Root | ObjectFolder) -> None:
        self._database, self._root, self.now = database, root, time.time_ns
        self.damaged = False

    def find(self, files: Sequence[ExampleFile]) -> list[FileInfo | None]:
        """Return the finding about each file; None if changed, not cached, or outside the root."""
        now_ns, found = self.now(), list[FileInfo | None]()
        for start in range(0, len(files), FILES_PER_QUERY):
            part = files[start : start + FILES_PER_QUERY]
            found += [
                _restore(file, info) if self._is_same(file, stamp, now_ns=now_ns) else None
                for file, (stamp, info) in zip(
                    part, self._look_up(part, before_ns=now_ns), strict=True
                )
            ]
        return found

    def _is_same(self, file: ExampleFile, stamp: str, *, now_ns: int) -> bool:
        return (
            stamp != ""
            and stamp == read_stamp(file, now_ns=now_ns)
            and self._root.holds_folder_of(file.path)
        )

    def keep(self, inspected: Sequence[tuple[ExampleFile, str, FileInfo]]) -> None:
        """Cache the findings about files, except converted ones and those without a stamp.

        Stamps must have been read before the files.
        """
        now_ns = self.now()
        rows = [
            (_name(file), stamp, now_ns, _describe(info))
            for file, stamp, info in inspected
            if stamp and info.path == file.path
        ]
        with self._usable() as database:
            if database and rows:
                with database:
                    database.executemany(
                        "INSERT OR REPLACE INTO inspections VALUES (?, ?, ?, ?, ?)",
                        [(*row, _checksum(*row)) for row in rows],
                    )

    def find_stale(
        self, inspected: Sequence[tuple[ExampleFile, str, FileInfo]]
    ) -> tuple[int, list[str]]:
        """Return the number of files with their cached stamp, and the ids of those that differ."""
        kept = self._look_up([file for file, _, _ in inspected], before_ns=self.now())
        same = [
            (file.id, found == _describe(info))
            for (file, stamp, info), (kept_stamp, found) in zip(inspected, kept, strict=True)
            if stamp and stamp == kept_stamp
        ]
        return len(same), [id for id, found in same if not found]

    def forget_others(self, files: Sequence[ExampleFile]) -> None:
        """Delete the entries of files not in `files`, once these make up most of the entries."""
        with self._usable() as database:
            if not database:
                return
            (count,) = database.execute("SELECT count(*) FROM inspections").fetchone()
            if count <= 2 * len(files) + _SURPLUS:
                return
            present = {_name(file) for file in files}
            gone = [
                (name,)
                for (name,) in database.execute("SELECT file FROM inspections")
                if name not in present
            ]
            with database:
                database.executemany("DELETE FROM inspections WHERE file = ?", gone)

    def _look_up(self, files: Sequence[ExampleFile], *, before_ns: int) -> list[tuple[str, str]]:
        """Return stamp and finding of up to `FILES_PER_QUERY` files; both empty if not cached."""
        kept: dict[bytes, tuple[str, str]] = {}
        names = [_name(file) for file in files]
        query = f"SELECT * FROM inspections WHERE file IN ({','.join('?' * len(names))})"
        with self._usable() as database:
            for *row, checksum in database.execute(query, names) if database else ():
                name, stamp, inspected_ns, found = row
                if checksum == _checksum(*row) and inspected_ns <= before_ns:
                    kept[name] = stamp, found
        return [kept.get(_name(file), ("", "")) for file in files]

    @contextmanager
    def _usable(self) -> Iterator[sqlite3.Connection | None]:
        """Yield the database, or None once it has failed; report errors instead of raising them."""
        try:
            yield self._database
        except sqlite3.Error as error:
            self._database = None
            operational = isinstance(error, sqlite3.OperationalError)
            self.damaged = not operational or "decode" in str(error)  # the entry is not text
            echo_problem(f"the inspection cache cannot be used, so all files are read: {error}")


def key_of_inspections(encoding: str, settings: DataSettings) -> str:
    decisive = settings.model_dump(exclude=set(NOT_OF_A_FILE))
    return digest_json([encoding, decisive, digest_program("ingest")])


@contextmanager
def open_inspection_cache(
    folder: Path | None, *, root: Root | ObjectFolder, key: str
) -> Iterator[InspectionCache]:
    """Open the cache of a source, a file in `folder`, for the length of the block.

    Nothing is cached without a folder, or if the file cannot be opened. A damaged file is replaced.
    `key` is a digest of everything that decides the findings about a source's files; caches of the
    source with other keys are deleted, except the 3 last used.
    """
    if folder is None:
        yield InspectionCache(None, root=root)
        return
    name = digest_blake2b(os.fsencode(root.real))
    path = folder / f"{name}-{key}.sqlite"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        database = _open(path)
    except (OSError, sqlite3.Error) as error:
        what = f"the inspection cache {from_here(path)}"
        echo_problem(f"{what} cannot be opened, so all files are read: {error}")
        yield InspectionCache(None, root=root)
        return
    with closing(database):
        cache = InspectionCache(database, root=root)
        yield cache
    if cache.damaged:
        _remove(path)
    with suppress(OSError):  # another process may have removed some
        by_age = sorted(folder.glob(f"{name}*.sqlite"), key=lambda one: one.stat().st_mtime_ns)
        for other in [one for one in by_age if one != path][:-OTHERS_KEPT]:
            _remove(other)
        os.utime(path, ns=(cache.now(), cache.now()))


def _open(path: Path) -> sqlite3.Connection:
    """Open a database that survives a kill, by write-ahead logging; replace a damaged one."""
    for replace in (True, False):
        database = sqlite3.connect(path)
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            database.execute(_CREATE)
        except sqlite3.OperationalError:  # from the disk, or from another process
            database.close()
            raise
        except sqlite3.DatabaseError:
            database.close()
            if not replace:
                raise
            _remove(path)
        else:
            break
    return database


def _remove(path: Path) -> None:
    for one in path.parent.glob(f"{path.name}*"):
        one.unlink(missing_ok=True)


def _name(file: ExampleFile) -> bytes:
    """Return the id as bytes; the file's name may hold any bytes."""
    return file.id.encode("utf-8", "surrogatepass")


def _checksum(file: bytes, stamp: str, inspected_ns: int, found: str) -> int:
    return zlib.crc32(file + f"\n{stamp}\n{inspected_ns}\n{found}".encode())


def _describe(info: FileInfo) -> str:
    return json.dumps([info.bytes, info.digest, info.shape, info.note])


def _restore(file: ExampleFile, found: str) -> FileInfo:
    size, digest, shape, note = json.loads(found)
    return FileInfo(path=file.path, bytes=size, digest=digest, shape=tuple(shape), note=note)
