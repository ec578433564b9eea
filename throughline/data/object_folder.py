"""Reads the objects below a URL in an object store as the folder of a source.

Objects are listed once, and again when all have been read. DVC lists them itself, so it would
treat objects that change meanwhile as if ingest had read them; such changes are refused.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar

from throughline.data.encodings.base import InputFile, ObjectFile, StoredFile
from throughline.shared.data_url import find_single, open_below
from throughline.shared.errors import (
    DataNotFound,
    DiskRefused,
    ObjectStoreFailed,
    UnexpectedFiles,
    UnreadableSource,
)
from throughline.shared.object_store import ObjectStore, StoredObject
from throughline.shared.progress import in_threads, progress

if TYPE_CHECKING:
    from throughline.data.found import ExampleFile

READERS = 8  # threads that read objects, for one thread that uses them
READ_AHEAD_BYTES = 4 << 20  # larger objects are not read ahead
RANGE_BYTES = 8 << 20  # part of an object that is copied at a time
LEVELS = 2  # levels of folders searched for enough folders to list in parallel


@dataclass(frozen=True, kw_only=True)
class ObjectFolder:
    """The objects below a store's URL, or the single one there; `copy` is the folder of copies."""

    store: ObjectStore
    objects: Sequence[StoredObject]
    single: bool = False
    copy: Path | None = None
    stamped_by: ClassVar[str] = "sizes, times and tags"

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the listing: another process is given the objects that it reads."""
        return {**self.__dict__, "objects": ()}

    @property
    def real(self) -> str:
        return self.store.url

    def holds_folder_of(self, path: Path) -> bool:
        """Return True: a bucket has no links."""
        return True

    def address(self, path: Path) -> str:
        return self.store.address((path.relative_to(self.copy) if self.copy else path).as_posix())

    def open_all(self, files: Iterable[ExampleFile]) -> Iterator[InputFile]:
        """Yield the files to examine, in order; the next small objects are read ahead.

        Raises:
          ObjectStoreFailed: one cannot be read, or has changed since it was listed; names it.
        """
        return in_threads(self._open, files, workers=READERS, ahead=READERS)

    def _open(self, file: ExampleFile) -> InputFile:
        if self.copy:
            return StoredFile(
                path=file.path, root=self.copy, offset=file.offset, size=file.size, in_root=True
            )
        one = file.object
        assert one  # noqa: S101 - without copies, every file is an object
        small = 0 < one.bytes <= READ_AHEAD_BYTES
        data = self.store.read_as_listed(one) if small else None if one.bytes else b""
        return ObjectFile(store=self.store, object=one, data=data)

    def copy_into(self, folder: Path) -> ObjectFolder:
        """Copy all objects into an empty folder under their names, reading ranges in parallel.

        Raises:
          ObjectStoreFailed: one cannot be read, or has changed since it was listed; names it.
          DiskRefused: the disk has no room for all of them; says both sizes.
          UnreadableSource: an object's name is impossible for a file, or already taken.
        """
        needed, free = sum(one.bytes for one in self.objects), shutil.disk_usage(folder).free
        if needed > free:
            raise DiskRefused(
                f"{folder} needs {needed / 2**20:,.1f} MiB for a copy of {self.store.url}, but"
                f" only {free / 2**20:,.1f} MiB are free; free some space"
            )
        parts, marks = [], find_folder_marks(self.objects)
        for one in self.objects:
            path = folder / one.name
            if one.name in marks and one.bytes == 0:
                path.mkdir(parents=True, exist_ok=True)
                continue
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch(exist_ok=False)  # fails for equal names if case is ignored
            except OSError as error:
                raise UnreadableSource(
                    f"{self.store.address(one.name)} cannot be copied to a file of this name:"
                    f" {error.strerror}; rename the object"
                ) from error
            parts += [(one, path, start) for start in range(0, one.bytes, RANGE_BYTES)]
        copied = in_threads(self._copy_range, parts, workers=READERS)
        for _ in progress(copied, total=len(parts), label="copy", unit="ranges"):
            pass
        return ObjectFolder(store=self.store, objects=self.objects, single=self.single, copy=folder)

    def _copy_range(self, part: tuple[StoredObject, Path, int]) -> None:
        one, path, start = part
        length = min(RANGE_BYTES, one.bytes - start)
        data = self.store.read_as_listed(one, start=start, length=length)
        descriptor = os.open(path, os.O_WRONLY)
        try:
            write_at(descriptor, data, start)
        finally:
            os.close(descriptor)

    def check_unchanged(self) -> None:
        """List the objects again; raise ObjectStoreFailed if one was added, changed or removed."""
        now = [self.store.find(self.objects[0].name)] if self.single else list_all(self.store)
        before = {one.name: one for one in self.objects}
        after = {one.name: one for one in now if one}
        changed = sorted(
            name
            for name in before.keys() | after.keys()
            if _content(before.get(name)) != _content(after.get(name))
        )
        if changed:
            more = f" and {len(changed) - 1:,} more" if changed[1:] else ""
            raise ObjectStoreFailed(
                f"{self.store.address(changed[0])}{more} changed while ingest was reading; run the"
                " same command again"
            )


def _content(one: StoredObject | None) -> tuple[int, str] | None:
    return (one.bytes, one.tag) if one else None


def write_at(descriptor: int, data: bytes | memoryview, begin: int) -> None:
    """Write all bytes into an open file from byte `begin` on, in as many calls as it takes."""
    written = 0
    while written < len(data):
        written += os.pwrite(descriptor, data[written:], begin + written)


def open_folder(path: str) -> ObjectFolder:
    """List the objects below `data.path`, or the single object of this name.

    Raises:
      DataNotFound: there is no such object.
      ObjectStoreFailed: the store was not reached, refused the request, or has no such bucket.
      UnexpectedFiles: an object has the name of the folder.
    """
    store = open_below(path)
    objects = list_all(store)
    if objects:
        _refuse_namesake(path)
        return ObjectFolder(store=store, objects=objects)
    store, single = find_single(path)
    return ObjectFolder(store=store, objects=(single,), single=True)


def _refuse_namesake(path: str) -> None:
    """Refuse a folder if an object has its very name: DVC would watch that object alone."""
    with suppress(DataNotFound, ObjectStoreFailed):  # asking may be forbidden
        store, single = find_single(path)
        raise UnexpectedFiles(
            f"data.path: {store.address(single.name)} is an object, and there are objects below"
            " that name, too; remove or rename the one or the others"
        )


def list_all(store: ObjectStore) -> list[StoredObject]:
    """Return all objects of a store, sorted by name; folders are listed in parallel."""
    folders, found = [""], list[StoredObject]()
    for _ in range(LEVELS):
        if len(folders) < READERS:
            listed = [store.list_folder(name) for name in folders]
            folders = [name for names, _ in listed for name in names]
            found += chain.from_iterable(objects for _, objects in listed)
    below = in_threads(lambda name: list(store.list(name)), folders, workers=READERS)
    return sorted(chain(found, chain.from_iterable(below)), key=lambda one: one.name)


def find_folder_marks(objects: Sequence[StoredObject]) -> set[str]:
    """Return the names of folder marks: empty objects above other objects or without a suffix."""
    above = {folder.as_posix() for one in objects for folder in PurePosixPath(one.name).parents}
    return {
        one.name
        for one in objects
        if one.bytes == 0 and (one.name in above or not PurePosixPath(one.name).suffix)
    }
