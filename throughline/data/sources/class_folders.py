"""Files in class folders: the class of a file is its folder's path below the root, so names may be
nested (`bird/owl`). Folders named as splits hold the class folders of that split. Not a source
itself: images and texts use it.

Nothing is passed over in silence but hidden files: what cannot be listed or followed is rejected
with its reason, other kinds of file are counted.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from throughline.data.object_folder import ObjectFolder, find_folder_marks
from throughline.data.sources.base import ExampleFile, Rejected, find_suffix, is_utf8, readable
from throughline.data.sources.split_names import SPLITS_BY_WORD, leave_validation_open
from throughline.settings import DataSettings
from throughline.shared.errors import DataNotFound, UnreadableSource

_SHOWN = 4


@dataclass(frozen=True, kw_only=True)
class ClassFolders:
    """The files below a root, what cannot be listed, the class folders that hold none, and how many
    files of other kinds there are by suffix.
    """

    files: Sequence[ExampleFile]
    rejected: Sequence[Rejected]
    empty: Sequence[str]
    skipped: Mapping[str, int]


def list_class_folders(
    settings: DataSettings,
    suffixes: Collection[str],
    *,
    what: str,
    classes: bool = True,
    objects: ObjectFolder | None = None,
) -> ClassFolders:
    """List the files with these suffixes below `data.path`, or `objects`; `what` they are, for
    errors. Without `classes` those in that folder itself are examples, too.

    Raises:
      DataNotFound: there is no such folder, or no class folder with such a file in it.
      UnreadableSource: folders may be read as classes or as splits; names the key that decides.
    """
    root = Path(settings.path)
    if objects.single if objects else not root.is_dir():
        raise DataNotFound(
            f"{settings.path} is not a folder; `data.path` must be a folder"
            + (" with one sub-folder per class" if classes else f" of {what}")
        )
    listing = _Listing(Path() if objects else root, suffixes, in_root=not classes)
    if objects:
        listing.take(objects)
    else:
        listing.list_all()
    if not listing.files:
        shown = "".join(f"; {item.id}: {item.reason}" for item in listing.rejected[:1])
        raise DataNotFound(
            f"{settings.path} holds no {'class folder with ' if classes else ''}{what}"
            f" ({', '.join(sorted(suffixes))}){shown}"
        )
    files = listing.files
    if has_splits(files, settings, classes=classes):
        files, outside = divide_by_split(files, classes=classes)
        listing.rejected += outside
    if settings.class_level == "top":
        files = [replace(file, label=file.label.partition("/")[0]) for file in files]
    return ClassFolders(
        files=files,
        rejected=listing.rejected,
        empty=listing.empty,
        skipped=dict(listing.skipped.most_common()),
    )


def has_splits(files: Sequence[ExampleFile], settings: DataSettings, *, classes: bool) -> bool:
    """Whether the folders below the root are splits: as `data.folders` says, or if all of them are
    named so and hold class folders.

    Raises:
      UnreadableSource: only some are, or they hold files themselves.
    """
    if settings.folders != "auto":
        return settings.folders == "splits"
    tops = sorted({file.label.partition("/")[0] for file in files})
    named = [top for top in tops if top.lower() in SPLITS_BY_WORD]
    if not named:
        _refuse_hidden_splits({file.label for file in files}, settings)
        return False
    flat = sorted({file.label for file in files if file.label in named})
    if len(named) == len(tops) and (not flat or not classes):
        return True
    why = (
        f"{named[0]} is named as a split, {next(top for top in tops if top not in named)} is not"
        if len(named) < len(tops)
        else f"{flat[0]} is named as a split and holds files without a class folder"
    )
    raise UnreadableSource(
        f"{settings.path}: {why}",
        "set data.folders: classes if"
        f" {', '.join(tops[:_SHOWN])}{' …' if len(tops) > _SHOWN else ''} are classes, or splits if"
        " they hold a folder per class for training, validation and test",
    )


def _refuse_hidden_splits(labels: Collection[str], settings: DataSettings) -> None:
    """Refuse folders whose names hold words of several splits and that hold the same classes, such
    as training_set/cat and test_set/cat: as classes they would all be trained on.
    """
    seen: dict[tuple[str, ...], dict[str, str]] = {}
    for label in sorted(labels):
        parts = label.split("/")
        for depth, part in enumerate(parts[:-1]):
            words = re.findall("[a-z]+", part.lower())
            splits = {SPLITS_BY_WORD[word] for word in words if word in SPLITS_BY_WORD}
            if len(splits) == 1:
                others = seen.setdefault((*parts[:depth], "", *parts[depth + 1 :]), {})
                others[splits.pop()] = label
                if len(others) > 1:
                    raise UnreadableSource(
                        f"{settings.path}: {' and '.join(others.values())} look like one class in"
                        " two splits",
                        "name these folders train, validation and test, directly below data.path;"
                        " or set data.folders: classes if they are classes",
                    )


def divide_by_split(
    files: Sequence[ExampleFile], *, classes: bool
) -> tuple[list[ExampleFile], list[Rejected]]:
    """Files with their split by the first folder and their class by those below it, and what is in
    no split's class folder.

    Where no folder is for validation, the files for training leave that open: some are assigned.
    """
    divided, outside = [], []
    named = [SPLITS_BY_WORD.get(file.label.partition("/")[0].lower()) for file in files]
    for file, name, split in zip(files, named, leave_validation_open(named), strict=True):
        label = file.label.partition("/")[2]
        if name is None:
            outside.append(Rejected(id=file.id, reason="is outside any split's folder"))
        elif classes and not label:
            outside.append(Rejected(id=file.id, reason="is outside any class folder"))
        else:
            divided.append(replace(file, label=label, split=split))
    return divided, outside


class _Listing:
    """What has been found below a root so far."""

    def __init__(self, root: Path, suffixes: Collection[str], *, in_root: bool) -> None:
        self.root, self.suffixes, self.in_root = root, suffixes, in_root
        self.files: list[ExampleFile] = []
        self.rejected: list[Rejected] = []
        self.empty: list[str] = []
        self.skipped: Counter[str] = Counter()
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

    def take(self, folder: ObjectFolder) -> None:
        """The objects of a folder, as if they were files."""
        objects, names = {one.name: one for one in folder.objects}, {self.root: list[str]()}
        marks = find_folder_marks(folder.objects)
        for name in objects:
            path, is_folder = Path(name), name in marks
            if any(part.startswith(".") for part in path.parent.parts):
                continue
            marked = [path] if is_folder and not path.name.startswith(".") else []
            for above in (*marked, *path.parents):
                names.setdefault(above, [])
            if not is_folder:
                names[path.parent].append(path.name)
        with_folders = {path.parent for path in names if path != self.root}
        for path in sorted(names):
            self._take_names(path, names[path], is_leaf=path not in with_folders)
        self.files = [replace(file, object=objects[file.id]) for file in self.files]

    def _list_below(self, start: Path) -> None:
        for name, folders, names in os.walk(start, onerror=self._unreadable):
            folder = Path(name)
            self._listed.add(folder.resolve())
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            self._links += [folder / name for name in folders if (folder / name).is_symlink()]
            self._take_names(folder, names, is_leaf=not folders)

    def _take_names(self, folder: Path, names: Sequence[str], *, is_leaf: bool) -> None:
        """The files of one folder, which is a leaf where it has no folders."""
        visible = sorted(name for name in names if not name.startswith("."))
        chosen = [name for name in visible if find_suffix(name) in self.suffixes]
        self._add(folder, chosen)
        self.skipped.update(
            find_suffix(name) or "without a suffix"
            for name in sorted(set(visible).difference(chosen))
        )
        if not chosen and is_leaf and folder != self.root:
            self.empty.append(readable(folder.relative_to(self.root)))

    def _add(self, folder: Path, names: Sequence[str]) -> None:
        label = folder.relative_to(self.root).as_posix()
        above = "" if folder == self.root else f"{label}/"
        is_text = readable(folder) == str(folder)
        for name in names:
            if not above and not self.in_root:
                self._reject(folder / name, "is outside any class folder")
            elif not (is_text and is_utf8(name)):
                self._reject(folder / name, "the name is no UTF-8")
            else:
                self.files.append(ExampleFile(id=above + name, path=folder / name, label=label))

    def _unreadable(self, error: OSError) -> None:
        self._reject(Path(error.filename), f"folder cannot be read: {error.strerror}")

    def _reject(self, path: Path, reason: str) -> None:
        self.rejected.append(Rejected(id=readable(path.relative_to(self.root)), reason=reason))
