"""Files in class folders: each is an example. Used by sources of images and of texts.

A file's class is its folder's path below the root (`bird/owl`), without levels that name a split
and upper levels that all share. Hidden files are skipped silently. Entries that cannot be listed or
followed are rejected with a reason, and files of other kinds are counted.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import cast

from throughline.data.encodings.base import FileKind, Reason
from throughline.data.found import (
    ABOUT,
    ExampleFile,
    Files,
    Rejected,
    find_suffix,
    is_utf8,
    readable,
)
from throughline.data.object_folder import ObjectFolder, find_folder_marks
from throughline.data.sources.folder_layout import cut_name_pattern, read_layout
from throughline.data.split_names import UNLABELED, find_left_out, leave_validation_open, read_name
from throughline.plan.schema import find_encoding
from throughline.settings import DataSettings
from throughline.settings.source_kinds import SOURCES
from throughline.shared.errors import DataNotFound, UnreadableSource
from throughline.shared.layout import ORIGIN
from throughline.shared.object_store import StoredObject
from throughline.shared.wording import name_some

_FIRST_BYTES = 1024
_KINDS_SHOWN, _FEW = 5, 3
# Suffixes of files that accompany examples; a file without a suffix may be a README.
_ACCOMPANYING = {
    *("", ".txt", ".md", ".json", ".csv", ".tsv", ".xml", ".yaml", ".yml", ".toml", ".html"),
    *(".pdf", ".py", ".ipynb", ".log", ".db", ".ini", ".mat", ".feat", ".vocab", ".zip", ".url"),
}
_MASK = re.compile(r"(.+)[_-](mask|seg|segmentation|label|gt)(?:_\d+)?", re.IGNORECASE)


def scan(settings: DataSettings, objects: ObjectFolder | None = None) -> Files:
    """List the files of the source's encoding below `data.path`, or in `objects`."""
    kind = cast("FileKind", find_encoding(SOURCES[settings.source].encoding))
    return list_class_folders(settings, kind, objects=objects)


def list_class_folders(
    settings: DataSettings,
    kind: FileKind,
    *,
    classes: bool = True,
    objects: ObjectFolder | None = None,
) -> Files:
    """List the examples below `data.path`, or in `objects`.

    Without `classes`, files directly in the root are examples, too.
    """
    root = Path(settings.path)
    if objects.single if objects else not root.is_dir():
        raise DataNotFound(
            f"{settings.path} is not a folder; `data.path` must be a folder"
            + (" with one sub-folder per class" if classes else f" of {kind.noun}")
        )
    in_root = not classes or cut_name_pattern(settings.layout)[1] is not None
    listing = _Listing(Path() if objects else root, settings, kind, in_root=in_root)
    if objects:
        listing.take(objects)
    else:
        listing.list_all()
    if not listing.files:
        shown = "".join(f"; {item.id}: {item.reason}" for item in listing.rejected[:1])
        raise DataNotFound(
            f"{settings.path} holds no {'class folder with ' if classes else ''}{kind.noun}"
            f" ({', '.join(sorted(kind.suffixes))}){shown}"
        )
    files = _read_folders(listing, settings, classes=classes)
    counts = Counter(file.id.rpartition("/")[0] for file in files)
    warnings = []
    for folder, kinds in listing.others.items():
        if find_left_out(folder, settings.leave_out):
            continue
        if classes and not counts[folder]:
            raise UnreadableSource(
                f"{settings.path}: the folder {folder} holds {name_kinds(kinds)} and no"
                f" {kind.noun}",
                f"convert these files, or set data.leave_out: [{folder}]",
            )
        if kinds.total() > counts[folder]:
            read = f"{counts[folder]:,} read"
            warnings.append(f"folder {folder}: {name_kinds(kinds)} left out, {read}")
    lists = [name for name in listing.lists if not find_left_out(name, settings.leave_out)]
    if lists:
        table = "text_table" if settings.source == "text_folder" else "image_table"
        warnings.append(
            f"{name_some(sorted(lists), most=4)}: named as splits, and not read; if they list the"
            " official splits, make a table of the files with a column split (data.source:"
            f" {table})"
        )
    return Files(
        root=root,
        files=files,
        encoding=kind.name,
        objects=objects,
        rejected=listing.rejected,
        empty_classes=listing.empty,
        skipped=dict(listing.skipped.most_common()),
        left_out=dict(listing.left_out),
        warnings=warnings,
    )


def _read_folders(listing: _Listing, settings: DataSettings, *, classes: bool) -> list[ExampleFile]:
    """Give files the splits and classes that their folders name; reject or count the others.

    If no folder is for validation, training files get no split, so that ingest assigns some to it.
    """
    listing.files = [file for file in listing.files if not listing.leaves_out(file.id)]
    listing.rejected = [one for one in listing.rejected if not listing.leaves_out(one.id)]
    _refuse_masks(listing.files, settings.path)
    counts = Counter(file.label for file in listing.files)
    layout, named = cut_name_pattern(settings.layout)
    in_folders = classes and not named
    places = read_layout(counts, layout=layout, root=settings.path, classes=in_folders)
    files, splits = [], []
    for file in listing.files:
        place = places[file.label]
        problem = place.problem or (
            "is outside any class folder" if in_folders and not place.label else ""
        )
        label = place.label
        if named and not problem:
            found = named.fullmatch(file.id.rpartition("/")[2])
            label = found[1] if found else ""
            problem = "" if found else f"its name is not as in data.layout: {settings.layout}"
        if place.split == UNLABELED:
            top = file.label.partition("/")[0]
            listing.left_out[f"{top} is named as data without labels"] += 1
        elif problem:
            listing.rejected.append(Rejected(id=file.id, reason=problem))
        else:
            same = label == file.label  # `replace` takes seconds for millions of files
            files.append(file if same else replace(file, label=label))
            splits.append(place.split)
    return [
        replace(file, split=split) if split else file
        for file, split in zip(files, leave_validation_open(splits), strict=True)
    ]


def _refuse_masks(files: Sequence[ExampleFile], root: str) -> None:
    """Refuse images that come with masks, such as 1.png with 1_mask.png."""
    names = {file.id.rpartition(".")[0] for file in files}
    found = [mask for mask in map(_MASK.fullmatch, sorted(names)) if mask and mask[1] in names]
    if len(found) > _FEW:
        mask, name = found[0][0].rpartition("/")[2], found[0][1].rpartition("/")[2]
        raise UnreadableSource(
            f"{root}: {len(found):,} files are masks of others, as {mask} is, and not examples",
            f"set data.leave_out: ['*{mask.removeprefix(name)}.*']",
        )


def name_kinds(kinds: Mapping[str, int]) -> str:
    """Describe the numbers of files by suffix, the commonest first.

    >>> name_kinds({".heic": 60, "": 1})
    '60 .heic, 1 without a suffix'
    """
    ordered = Counter(kinds).most_common()
    named = [f"{count:,} {suffix or 'without a suffix'}" for suffix, count in ordered]
    return name_some(named, most=_KINDS_SHOWN)


def _refuse_folder_link(link: Path, target: Path, name: str) -> None:
    why, remedy = "which holds the link", "remove the link"
    if not link.parent.resolve().is_relative_to(target):
        why = "and DVC does not see changes below such links"
        remedy = f"run `rm {link} && cp -rs {target} {link}`, which links the files"
    raise UnreadableSource(
        f"{link} is a link to the folder {target}, {why}",
        f"{remedy}, or set data.leave_out: [{name}]",
    )


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"  # macOS adds this folder to archives


class _Listing:
    def __init__(
        self, root: Path, settings: DataSettings, kind: FileKind, *, in_root: bool
    ) -> None:
        self.root, self.in_root = root, in_root
        self._settings, self._kind = settings, kind
        self.others: dict[str, Counter[str]] = {}  # unread files that may be examples, by folder
        self.files: list[ExampleFile] = []
        self.rejected: list[Rejected] = []
        self.empty: list[str] = []
        self.skipped: Counter[str] = Counter()
        self.lists: list[str] = []  # unread files that are named as splits
        self.left_out: Counter[str] = Counter()
        self._objects: Mapping[str, StoredObject] = {}

    def list_all(self) -> None:
        """List real folders, then folders below the root that links lead to, if not listed yet."""
        starts, listed, root = [self.root], set[Path](), self.root.resolve()
        for start in starts:  # links are added while it is read
            target, name = start.resolve(), start.relative_to(self.root).as_posix()
            if start != self.root and self.leaves_out(name):
                continue
            if not target.is_relative_to(root):
                if self._settings.follow_links:
                    _refuse_folder_link(start, target, name)
                self._reject(start, "folder is a link that leads outside the data root")
                continue
            if target in listed:
                cause = "folder is a link to a folder that is listed itself"
                self._reject(start, Reason(cause, f": {target.relative_to(root)}"))
                continue
            for path, folders, names in os.walk(start, onerror=self._unreadable):
                folder = Path(path)
                listed.add(folder.resolve())
                folders[:] = sorted(name for name in folders if not _is_hidden(name))
                starts += [folder / name for name in folders if (folder / name).is_symlink()]
                self._take_names(folder, names, is_leaf=not folders)

    def take(self, folder: ObjectFolder) -> None:
        self._objects, names = {one.name: one for one in folder.objects}, {self.root: list[str]()}
        marks = find_folder_marks(folder.objects)
        for name in self._objects:
            path = Path(name)
            marked = [path] if name in marks else []
            for above in (*marked, *path.parents):
                names.setdefault(above, [])
            if not marked:
                names[path.parent].append(path.name)
        visible = sorted(path for path in names if not any(map(_is_hidden, path.parts)))
        with_folders = {path.parent for path in visible if path != self.root}
        for path in visible:
            self._take_names(path, names[path], is_leaf=path not in with_folders)

    def leaves_out(self, name: str) -> bool:
        """Return whether a file or folder is to be left out; if so, count it."""
        named = find_left_out(name, self._settings.leave_out)
        if named:
            self.left_out[f"data.leave_out: {named}"] += 1
        return bool(named)

    def _take_names(self, folder: Path, names: Sequence[str], *, is_leaf: bool) -> None:
        visible = sorted(name for name in names if not _is_hidden(name))
        chosen = [name for name in visible if self._is_one(folder, name)]
        self._add(folder, chosen)
        others = sorted(set(visible).difference(chosen, {ORIGIN}))
        for name in others:
            if (folder / name).is_symlink() and not (folder / name).exists():
                self._reject(folder / name, "link to nothing")
        skipped = [find_suffix(name) for name in others]
        self.skipped.update(suffix or "without a suffix" for suffix in skipped)
        below = readable(folder.relative_to(self.root))
        self.lists += [
            f"{below}/{name}"
            for name in others
            if read_name(name.partition(".")[0]).words or "trainval" in name.lower()
        ]
        unread = Counter(suffix for suffix in skipped if suffix not in _ACCOMPANYING)
        if unread.total() > 1 and is_leaf and folder != self.root:
            self.others[below] = unread
        elif not chosen and is_leaf and folder != self.root:
            self.empty.append(below)

    def _is_one(self, folder: Path, name: str) -> bool:
        """Return whether a file is an example: by its suffix, before any `?`, or first bytes."""
        if ABOUT.fullmatch(name):
            return False
        if find_suffix(name.partition("?")[0]) in self._kind.suffixes:
            return True
        path = folder / name
        other = find_suffix(name) in _ACCOMPANYING and "." in name
        # Objects are recognized by their names alone.
        if other or folder == self.root or self._objects or not path.is_file():
            return False
        with suppress(OSError), path.open("rb") as file:
            return self._kind.looks_like(name, file.read(_FIRST_BYTES))
        return False

    def _add(self, folder: Path, names: Sequence[str]) -> None:
        label = folder.relative_to(self.root).as_posix()
        above = "" if folder == self.root else f"{label}/"
        is_text = readable(folder) == str(folder)
        for name in names:
            if not above and not self.in_root:
                self._reject(folder / name, "is outside any class folder")
            elif not (is_text and is_utf8(name)):
                self._reject(folder / name, "the name is not UTF-8")
            else:
                stored = self._objects.get(above + name)
                self.files.append(
                    ExampleFile(id=above + name, path=folder / name, label=label, object=stored)
                )

    def _unreadable(self, error: OSError) -> None:
        self._reject(Path(error.filename), Reason("folder cannot be read", f": {error.strerror}"))

    def _reject(self, path: Path, reason: str) -> None:
        self.rejected.append(Rejected(id=readable(path.relative_to(self.root)), reason=reason))
