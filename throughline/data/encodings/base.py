"""What encodings share: those whose values are files, each examined once, and reading a file that
anybody may have put there.
"""

from __future__ import annotations

import errno
import os
import stat
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, ClassVar, Protocol

from throughline.plan.schema import Encoding, Feature, Storage
from throughline.settings import DataSettings
from throughline.shared.errors import UnreadableSource

if TYPE_CHECKING:
    from throughline.data.found import ExampleFile


class Reason(str):
    """Why something cannot be used as an example, as text: its `cause`, by which it is counted, and
    after that the `detail`, which is of this example alone.
    """

    cause: str
    detail: str

    def __new__(cls, cause: str, detail: str = "") -> Reason:
        self = super().__new__(cls, cause + detail)
        self.cause, self.detail = cause, detail
        return self

    def __getnewargs__(self) -> tuple[str, str]:
        return self.cause, self.detail


class RejectedValue(Exception):
    """Why something cannot be used as an example, `cause` and `detail` as of its `reason`."""

    def __init__(self, cause: str, detail: str = "") -> None:
        super().__init__(cause, detail)
        self.reason = Reason(cause, detail)

    def __str__(self) -> str:
        return self.reason


# Errors that say something of a file, and will say it again.
OF_THE_FILE = (
    errno.ENOENT,
    errno.EACCES,
    errno.EPERM,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENXIO,
    errno.EISDIR,
    errno.ENOTDIR,
)


class UnreadableFile(RejectedValue):
    """The same of a file that this process was not given the bytes of: another may read it."""


class InputFile(Protocol):
    """A file, or what stands for one, that is to be examined."""

    @property
    def path(self) -> Path:
        """Where it is, or its name."""
        ...

    @property
    def is_part(self) -> bool:
        """Whether it is a part of a file of many."""
        ...

    def read(self, check: Callable[[BinaryIO | None, int], None]) -> bytes:
        """Its bytes; `check` gets the open file, if any, and its size, and refuses what is not to
        be read.

        Raises:
          RejectedValue: the reason.
        """
        ...


class Root:
    """A folder out of which no file may lead but, with `follow_links`, by a link; its path, and the
    one without links. Each folder below it is looked at once.
    """

    stamped_by: ClassVar[str] = "sizes, times and inodes"

    def __init__(self, path: Path, *, follow_links: bool = False) -> None:
        self.path, self.real, self.follow_links = path, os.path.realpath(path), follow_links
        self._holds: dict[str, bool] = {}

    def address(self, path: Path) -> str:
        """Where a file is, by the manifest."""
        return str(path)

    def open_all(self, files: Iterable[ExampleFile]) -> Iterator[InputFile]:
        """Files to be examined, in their order."""
        for file in files:
            yield StoredFile(
                path=file.path,
                root=self.path,
                offset=file.offset,
                size=file.size,
                in_root=self.holds_folder_of(file.path),
                follow_links=self.follow_links,
            )

    def holds_folder_of(self, path: Path) -> bool:
        """Whether the folder of a file is this one or below it, links followed."""
        folder = str(path).rpartition(os.sep)[0] or (os.sep if path.is_absolute() else "")
        if folder not in self._holds:
            try:
                real = Path(os.path.realpath(folder))
            except ValueError:  # no path of this system: it has a NUL
                return False
            self._holds[folder] = real.is_relative_to(self.real)
        return self._holds[folder]


@dataclass(frozen=True, kw_only=True)
class StoredFile:
    """A file below `root`, not yet examined, or `size` bytes of one from byte `offset` on. Of one
    `in_root` it is known that its folder leads nowhere else; with `follow_links` it may be a link
    to a file elsewhere that is of this user, of the one of `root`, or of root.
    """

    path: Path
    root: Path
    offset: int = -1
    size: int = 0
    in_root: bool = False
    follow_links: bool = False

    @property
    def is_part(self) -> bool:
        """Whether it is a part of a file of many."""
        return self.offset >= 0

    def read(self, check: Callable[[BinaryIO | None, int], None]) -> bytes:
        """The bytes of a regular file that leads nowhere else, or of the part of one. `check` gets
        the open file, None for a part, and its size, and refuses what is not to be read.

        Raises:
          RejectedValue: the reason.
        """
        try:
            if self.is_part:
                check(None, self.size)
                with self.path.open("rb") as file:
                    return os.pread(file.fileno(), self.size, self.offset)
            with os.fdopen(self._open(), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise RejectedValue("is no regular file")
                check(file, status.st_size)
                file.seek(0)
                return file.read(status.st_size)
        except RuntimeError as error:  # of Python 3.11 and 3.12
            raise RejectedValue("cannot be read", ": a loop of links") from error
        except OSError as error:
            if error.errno not in OF_THE_FILE:
                raise UnreadableSource(
                    f"{self.path}: cannot be read: {error.strerror}",
                    "that is the disk's fault, or the machine's, and not the file's: run the stage"
                    " again when that is over",
                ) from error
            if error.errno == errno.ENOENT and self.path.is_symlink():
                target = self.path.readlink()
                raise UnreadableFile("link to nothing", f": {target} is not there") from error
            raise UnreadableFile("cannot be read", f": {error.strerror}") from error
        except ValueError as error:
            raise RejectedValue("is no path", f": {error}") from error

    def _open(self) -> int:
        """A descriptor of the file. Whether it leads outside costs more than reading a small one,
        and is asked only where it may: of links, and in folders that are not known.
        """
        # Neither a pipe nor what has just become one is opened waiting for its writer.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        if self.in_root:
            try:
                return os.open(self.path, flags | os.O_NOFOLLOW)
            except OSError as error:
                if error.errno != errno.ELOOP:  # no link
                    raise
        if not self.path.resolve().is_relative_to(self.root.resolve()):
            self._check_link()
        return os.open(self.path, flags)

    def _check_link(self) -> None:
        """Refuse to read outside of the root what no link in it leads to, and what nobody who put
        the link there needs to own.
        """
        named = Path(os.path.abspath(self.path)).is_relative_to(os.path.abspath(self.root))  # noqa: PTH100 - links are not to be followed
        if not (self.follow_links and named):
            raise RejectedValue("leads outside the data root")
        status = self.path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise RejectedValue("is a link to what is no regular file")
        if status.st_uid not in (0, os.geteuid(), self.root.stat().st_uid):
            raise RejectedValue("is a link to a file of another user")


@dataclass(frozen=True, kw_only=True, slots=True)  # there may be millions
class FileInfo:
    """A usable file: which one is to be read, a converted copy or itself, the digest of its bytes,
    and the shape of what it decodes to. `note` is worth knowing.
    """

    path: Path
    bytes: int
    digest: str
    shape: tuple[int, ...]
    note: str | None = None


Inspect = Callable[[InputFile, Path], FileInfo]


class FileEncoding(Encoding):
    """An encoding whose values are files, as people have them: known by their suffixes, each
    examined by ingest, stored byte for byte and decoded later.
    """

    storage: ClassVar[Storage] = "files"
    compressed: ClassVar[bool] = True
    suffixes: ClassVar[frozenset[str]]

    @abstractmethod
    def looks_like(self, name: str, first: bytes) -> bool:
        """Whether a file of another suffix is such a value, by its name and first bytes."""

    @abstractmethod
    def open_inspector(self, settings: DataSettings) -> AbstractContextManager[Inspect]:
        """What examines a file, from any thread, as long as the block. It raises RejectedValue, and
        writes what must be converted into the folder that it is given.
        """

    @abstractmethod
    def describe(self, shapes: Collection[tuple[int, ...]]) -> Feature:
        """The feature that files make which decode to these shapes."""
