"""Base of encodings whose values are files, and safe reading of files of any origin."""

from __future__ import annotations

import errno
import os
import stat
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, ClassVar

from throughline.plan.schema import Encoding, Feature, Storage
from throughline.settings import DataSettings
from throughline.shared.errors import UnreadableSource
from throughline.shared.object_store import ObjectStore, StoredObject

if TYPE_CHECKING:
    from throughline.data.found import ExampleFile


class Reason(str):
    """Why an example cannot be used: a `cause` to count by, and a `detail` of the example."""

    cause: str
    detail: str

    def __new__(cls, cause: str, detail: str = "") -> Reason:
        self = super().__new__(cls, cause + detail)
        self.cause, self.detail = cause, detail
        return self

    def __getnewargs__(self) -> tuple[str, str]:
        return self.cause, self.detail


class RejectedValue(Exception):
    """A value cannot be used as an example; `reason` says why."""

    def __init__(self, cause: str, detail: str = "") -> None:
        super().__init__(cause, detail)
        self.reason = Reason(cause, detail)

    def __str__(self) -> str:
        return self.reason


# Errors that the file itself causes, so that they will occur again.
OF_THE_FILE = {
    *(errno.ENOENT, errno.EACCES, errno.EPERM, errno.ELOOP),
    *(errno.ENAMETOOLONG, errno.ENXIO, errno.EISDIR, errno.ENOTDIR),
}


class UnreadableFile(RejectedValue):
    """This process could not read a file; another process may be able to."""


class Root:
    """A folder; paths below it must not lead outside, except by links with `follow_links`.

    `real` is its path with all links resolved. Each folder below it is resolved only once.
    """

    stamped_by: ClassVar[str] = "sizes, times and inodes"

    def __init__(self, path: Path, *, follow_links: bool = False) -> None:
        self.path, self.real, self.follow_links = path, os.path.realpath(path), follow_links
        self._holds: dict[str, bool] = {}

    def address(self, path: Path) -> str:
        return str(path)

    def open_all(self, files: Iterable[ExampleFile]) -> Iterator[InputFile]:
        for file in files:
            yield StoredFile(
                path=file.path,
                root=self.path,
                offset=file.offset,
                size=file.size,
                in_root=self.holds_folder_of(file.path),
                follow_links=self.follow_links,
            )

    def refuse_links(self, paths: Iterable[Path]) -> None:
        """Raise UnreadableSource for the first link that may not be read."""
        for path in paths:
            try:
                StoredFile(path=path, root=self.path, follow_links=self.follow_links).check_link()
            except RejectedValue as error:
                allow = "" if self.follow_links else ", or set data.follow_links: true to read it"
                raise UnreadableSource(
                    f"{path} {error}", f"put a copy of the file in its place{allow}"
                ) from error

    def holds_folder_of(self, path: Path) -> bool:
        """Return whether a file's folder, with links resolved, is this one or below it."""
        folder = str(path).rpartition(os.sep)[0] or (os.sep if path.is_absolute() else "")
        if folder not in self._holds:
            try:
                real = Path(os.path.realpath(folder))
            except ValueError:  # the path has a NUL character
                return False
            self._holds[folder] = real.is_relative_to(self.real)
        return self._holds[folder]


@dataclass(frozen=True, kw_only=True)
class StoredFile:
    """A file below `root`, or `size` bytes of it from byte `offset` on; not yet examined.

    `in_root`: its folder is known to be in the root. With `follow_links`, the file may be a link
    to a file elsewhere that belongs to this user, to the owner of `root`, or to the superuser.
    """

    path: Path
    root: Path
    offset: int = -1
    size: int = 0
    in_root: bool = False
    follow_links: bool = False

    @property
    def is_part(self) -> bool:
        return self.offset >= 0

    def read(self, check: Callable[[BinaryIO | None, int], None]) -> bytes:
        """Return the bytes of a regular file in the root, or of the part.

        `check` gets the open file (None for a part) and the size; it may raise RejectedValue.

        Raises:
          RejectedValue: the file cannot be used or read.
          UnreadableSource: the disk or the machine failed, not the file.
        """
        try:
            if self.is_part:
                check(None, self.size)
                with self.path.open("rb") as file:
                    return os.pread(file.fileno(), self.size, self.offset)
            with os.fdopen(self._open(), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise RejectedValue("is not a regular file")
                check(file, status.st_size)
                file.seek(0)
                return file.read(status.st_size)
        except RuntimeError as error:  # in Python 3.11 and 3.12
            raise RejectedValue("cannot be read", ": a loop of links") from error
        except OSError as error:
            if error.errno not in OF_THE_FILE:
                raise UnreadableSource(
                    f"{self.path}: cannot be read: {error.strerror}",
                    "the disk or the machine failed, not the file: run the stage again once they"
                    " work",
                ) from error
            if error.errno == errno.ENOENT and self.path.is_symlink():
                target = self.path.readlink()
                raise UnreadableFile("link to nothing", f": {target} is not there") from error
            raise UnreadableFile("cannot be read", f": {error.strerror}") from error
        except ValueError as error:
            raise RejectedValue("is not a valid path", f": {error}") from error

    def _open(self) -> int:
        """Return a descriptor of the file.

        Checking whether a path leads outside costs more than reading a small file. So only links,
        and files whose folder is not known to be in the root, are checked.
        """
        # Opening a pipe, or a file just replaced by one, must not wait for its writer.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        if self.in_root:
            try:
                return os.open(self.path, flags | os.O_NOFOLLOW)
            except OSError as error:
                if error.errno != errno.ELOOP:  # not a link
                    raise
        self.check_link()
        return os.open(self.path, flags)

    def check_link(self) -> None:
        """Refuse a file outside the root, unless a link that `follow_links` allows leads to it.

        A link to a folder does not count, since DVC does not watch the files below it. A user who
        added a link may lack permission to read its target, so files of other users are refused.
        """
        root = self.root.resolve()
        if self.path.resolve().is_relative_to(root):
            return
        if not (self.follow_links and self.path.parent.resolve().is_relative_to(root)):
            raise RejectedValue("leads outside the data root")
        status = self.path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise RejectedValue("is a link to something that is not a regular file")
        if status.st_uid not in (0, os.geteuid(), self.root.stat().st_uid):
            raise RejectedValue("is a link to a file of another user")


@dataclass(frozen=True, kw_only=True)
class ObjectFile:
    """A stored object as a file to examine; `data` is set if it is small and was read ahead."""

    store: ObjectStore
    object: StoredObject
    data: bytes | None = None
    is_part: ClassVar[bool] = False

    @property
    def path(self) -> Path:
        return Path(self.object.name)

    def read(self, check: Callable[[BinaryIO | None, int], None]) -> bytes:
        """Return the bytes; `check` is called with the size first, then with the content, too."""
        check(None, self.object.bytes)
        data = self.store.read_as_listed(self.object) if self.data is None else self.data
        check(BytesIO(data), len(data))
        return data


InputFile = StoredFile | ObjectFile


@dataclass(frozen=True, kw_only=True, slots=True)  # there may be millions
class FileInfo:
    """A usable file, or its converted copy; `shape` is the shape of the decoded value."""

    path: Path
    bytes: int
    digest: str
    shape: tuple[int, ...]
    note: str | None = None


Inspect = Callable[[InputFile, Path], FileInfo]


class FileKind(Encoding):
    """An encoding whose values may be files of their own, recognized by suffix or content."""

    suffixes: ClassVar[frozenset[str]]

    @abstractmethod
    def looks_like(self, name: str, first: bytes) -> bool:
        """Return whether name and first bytes look like this encoding, whatever the suffix."""


class FileEncoding(FileKind):
    """An encoding whose values are files: examined by ingest, stored as they are, decoded later."""

    storage: ClassVar[Storage] = "files"
    compressed: ClassVar[bool] = True

    @abstractmethod
    def open_inspector(self, settings: DataSettings) -> AbstractContextManager[Inspect]:
        """Open a function that examines a file, from any thread, within the block.

        The function raises RejectedValue for unusable files; its second argument is a folder for
        converted copies.
        """

    @abstractmethod
    def describe(self, shapes: Collection[tuple[int, ...]]) -> Feature:
        """Return the feature of files that decode to these shapes."""
