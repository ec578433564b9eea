"""Files in class folders: the class of a file is its folder's path below the root, so names may be
nested (`bird/owl`). Not a source itself: images and texts use it.

Nothing is passed over in silence but hidden files and other kinds of file: what cannot be listed or
followed is rejected with its reason.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.data.sources.base import Rejected
from tasks.errors import DataNotFound


@dataclass(frozen=True, kw_only=True)
class ClassFile:
    """A file in the folder of its class, not yet looked into."""

    id: str
    path: Path
    label: str


@dataclass(frozen=True, kw_only=True)
class ClassFolders:
    """The files below a root, what cannot be listed, and the class folders that hold none."""

    files: Sequence[ClassFile]
    rejected: Sequence[Rejected]
    empty: Sequence[str]


def list_class_folders(
    root: Path, suffixes: Collection[str], *, what: str, classes: bool = True
) -> ClassFolders:
    """List the files with these suffixes below `root`; `what` they are, for errors. Without
    `classes` those in `root` itself are examples, too.

    Raises:
      DataNotFound: there is no such folder, or no class folder with such a file in it.
    """
    if not root.is_dir():
        raise DataNotFound(
            f"{root} is not a folder; `data.path` must be a folder"
            + (" with one sub-folder per class" if classes else f" of {what}")
        )
    listing = _Listing(root, suffixes, in_root=not classes)
    listing.list_all()
    if not listing.files:
        shown = "".join(f"; {item.id}: {item.reason}" for item in listing.rejected[:1])
        raise DataNotFound(
            f"{root} holds no {'class folder with ' if classes else ''}{what}"
            f" ({', '.join(sorted(suffixes))}){shown}"
        )
    return ClassFolders(files=listing.files, rejected=listing.rejected, empty=listing.empty)


class _Listing:
    """What has been found below a root so far."""

    def __init__(self, root: Path, suffixes: Collection[str], *, in_root: bool) -> None:
        self.root, self.suffixes, self.in_root = root, suffixes, in_root
        self.files: list[ClassFile] = []
        self.rejected: list[Rejected] = []
        self.empty: list[str] = []
        self._listed: set[Path] = set()
        self._links: list[Path] = []

    def list_all(self) -> None:
        """Real folders first; then links to folders that were not among them, each of which is
        listed once.
        """
        self._list_below(self.root)
        while self._links:
            link = self._links.pop(0)
            target = link.resolve()
            if not target.is_relative_to(self.root.resolve()):
                self._reject(link, "folder is a link that leads outside the data root")
            elif target in self._listed:
                self._reject(
                    link,
                    f"folder is a link to {target.relative_to(self.root.resolve())}, which is"
                    " listed itself",
                )
            else:
                self._list_below(link)

    def _list_below(self, start: Path) -> None:
        for name, folders, names in os.walk(start, onerror=self._unreadable):
            folder = Path(name)
            self._listed.add(folder.resolve())
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            self._links += [folder / name for name in folders if (folder / name).is_symlink()]
            chosen = sorted(
                name
                for name in names
                if Path(name).suffix.lower() in self.suffixes and not name.startswith(".")
            )
            self._add(folder, chosen)
            if not chosen and not folders and folder != self.root:
                self.empty.append(_readable(folder.relative_to(self.root)))

    def _add(self, folder: Path, names: Sequence[str]) -> None:
        label = folder.relative_to(self.root).as_posix()
        for name in names:
            if folder == self.root and not self.in_root:
                self._reject(folder / name, "is outside any class folder")
            elif _readable(folder / name) != str(folder / name):
                self._reject(folder / name, "the name is no UTF-8")
            else:
                example_id = (folder / name).relative_to(self.root).as_posix()
                self.files.append(ClassFile(id=example_id, path=folder / name, label=label))

    def _unreadable(self, error: OSError) -> None:
        self._reject(Path(error.filename), f"folder cannot be read: {error.strerror}")

    def _reject(self, path: Path, reason: str) -> None:
        self.rejected.append(Rejected(id=_readable(path.relative_to(self.root)), reason=reason))


def _readable(path: Path) -> str:
    """A path as text; bytes that are no UTF-8 are written as escapes."""
    return str(path).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
