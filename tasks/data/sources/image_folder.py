"""Images in class folders: the class of a file is its folder's path below the root, so names may be
nested (`bird/owl`).

Nothing is passed over in silence but hidden files and other kinds of file: what cannot be listed or
followed is rejected with its reason.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tasks.data.sources.base import ImageFile, ImageFiles, Rejected
from tasks.errors import DataNotFound
from tasks.settings import DataSettings

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp"})


class _Listing:
    """What has been found below a root so far."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files: list[ImageFile] = []
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
            images = sorted(
                name
                for name in names
                if Path(name).suffix.lower() in SUFFIXES and not name.startswith(".")
            )
            self._add(folder, images)
            if not images and not folders and folder != self.root:
                self.empty.append(_readable(folder.relative_to(self.root)))

    def _add(self, folder: Path, images: Sequence[str]) -> None:
        label = folder.relative_to(self.root).as_posix()
        for name in images:
            if folder == self.root:
                self._reject(folder / name, "is outside any class folder")
            elif _readable(folder / name) != str(folder / name):
                self._reject(folder / name, "the name is no UTF-8")
            else:
                self.files.append(ImageFile(id=f"{label}/{name}", path=folder / name, label=label))

    def _unreadable(self, error: OSError) -> None:
        self._reject(Path(error.filename), f"folder cannot be read: {error.strerror}")

    def _reject(self, path: Path, reason: str) -> None:
        self.rejected.append(Rejected(id=_readable(path.relative_to(self.root)), reason=reason))


def _readable(path: Path) -> str:
    """A path as text; bytes that are no UTF-8 are written as escapes."""
    return str(path).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def scan(settings: DataSettings) -> ImageFiles:
    """List the image files below `data.path`, and what cannot be listed.

    Raises:
      DataNotFound: there is no such folder, or no class folder with images in it.
    """
    root = Path(settings.path)
    if not root.is_dir():
        raise DataNotFound(
            f"{root} is not a folder; `data.path` must be a folder with one sub-folder per class"
        )
    listing = _Listing(root)
    listing.list_all()
    if not listing.files:
        shown = "".join(f"; {item.id}: {item.reason}" for item in listing.rejected[:1])
        raise DataNotFound(
            f"{root} holds no class folder with images ({', '.join(sorted(SUFFIXES))}){shown}"
        )
    return ImageFiles(
        root=root, files=listing.files, rejected=listing.rejected, empty_classes=listing.empty
    )
