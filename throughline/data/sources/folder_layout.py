"""Decides which level of a file's path names its split, and which its class.

`data.layout` gives the levels; with `auto`, folder names do, if they can be read in only one way.
"""

import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from throughline.data.split_names import SPLITS_BY_WORD, UNLABELED, WORD, SplitName, read_name
from throughline.shared.errors import UnreadableSource

ANY, ANY_NUMBER = "*", "**"
_SHOWN, _NAMED = 3, 5  # folders
_FOLD = re.compile(r"(fold|split|part|batch|chunk|subset)s?[\W_]*\d+$", re.IGNORECASE)
_PICTURES = frozenset(("image", "images", "img", "imgs", "jpegimages", "photos"))
_MASKS = {
    *("mask", "masks", "label", "labels", "annotation", "annotations", "groundtruth", "gt"),
    *("segmentation", "segmentations", "trimaps"),
}


@dataclass(frozen=True, kw_only=True)
class Place:
    """Split (or `UNLABELED`) and class in a folder's path, or the reason why files are unusable."""

    split: str | None = None
    label: str = ""
    problem: str = ""


def read_layout(
    counts: Mapping[str, int], *, layout: str, root: str, classes: bool
) -> Mapping[str, Place]:
    """Return the place of each folder by its path below the root; `counts` has numbers of files."""
    if layout != "auto":
        return {folder: _apply(layout, folder) for folder in counts}
    return _Reading(counts, root, classes=classes).read()


def cut_name_pattern(layout: str) -> tuple[str, re.Pattern[str] | None]:
    """Return the layout of folders, and the pattern of files' names, if they contain the class.

    >>> cut_name_pattern("split/class.*.jpg")[1].fullmatch("cat.0.jpg")[1]
    'cat'
    """
    folders, _, last = layout.rpartition("/")
    if last == "class" or "class" not in last:
        return layout, None
    before, after = (re.escape(part).replace(r"\*", ".*") for part in last.split("class", 1))
    return folders or ANY_NUMBER, re.compile(f"{before}(.+){after}")


def _apply(layout: str, folder: str) -> Place:
    """Read a path by a pattern; the class is all parts that no other part of the pattern takes."""
    pattern, parts = layout.split("/"), folder.split("/") if folder else []
    if pattern[-1] == ANY_NUMBER:
        pattern = pattern[:-1]
        parts = parts[: len(pattern)]
    more = len(parts) - len(pattern)
    if more and "class" in pattern:
        at = pattern.index("class")
        pattern = [*pattern[:at], *["class"] * (more + 1), *pattern[at + 1 :]]
    names = defaultdict[str, list[str]](list)
    for kind, part in zip(pattern, parts, strict=False):
        names[kind].append(part)
    split = read_name("/".join(names["split"])).split
    if "split" in pattern and split not in SPLITS_BY_WORD.values():
        return Place(problem="is outside any split's folder")
    if more < 0:
        return Place(problem="is outside any class folder")
    return Place(split=split, label="/".join(names["class"]))


class _Reading:
    def __init__(self, counts: Mapping[str, int], root: str, *, classes: bool) -> None:
        self._counts, self._root, self._classes = counts, root, classes
        parts = {folder: tuple(filter(None, folder.split("/"))) for folder in counts}
        self._names: dict[str, SplitName] = {
            part: read_name(part) for path in parts.values() for part in path
        }
        self._below = defaultdict[tuple[str, ...], set[str]](set)  # folders in each folder, by name
        for path in parts.values():
            for at, part in enumerate(path):
                self._below[path[:at]].add(part)
        self._parts = {folder: self._undouble(path) for folder, path in parts.items()}
        # Folders without subfolders; files next to class folders tell nothing about these.
        self._leaves = {folder for folder, path in parts.items() if not self._below.get(path)}
        self._levels = range(max(map(len, self._parts.values()), default=0))
        # Number of upper levels that all folders share: they name the dataset.
        self._common = next(
            (at for at in self._levels if len({self._at(one, at) for one in self._leaves}) > 1),
            len(self._levels),
        )

    def read(self) -> Mapping[str, Place]:
        if self._classes:
            self._refuse_masks()
        levels = [level for level in self._levels if self._names_splits(level)]
        if not levels and self._levels and self._names_splits(-1):
            levels = [-1]
        if levels:
            places = {folder: self._read_folder(folder, levels) for folder in self._counts}
            if self._classes:
                self._check(places)
            return places
        self._refuse_mixed()
        if self._classes:
            self._refuse_other_shapes()
        paths = {folder: folder.split("/") for folder in self._counts}
        return {
            folder: Place(label="/".join(path[min(self._common, len(path) - 1) :]))
            for folder, path in paths.items()
        }

    def _undouble(self, path: Sequence[str]) -> tuple[str, ...]:
        """Return a path without parts that archives repeat, as in `train/train/cat`."""
        return tuple(
            part
            for at, part in enumerate(path)
            if not at
            or not self._names[part].split
            or self._names[part].split != self._names[path[at - 1]].split
            or len(self._below[tuple(path[:at])]) > 1
        )

    def _at(self, folder: str, level: int) -> str | None:
        parts = self._parts[folder]
        return parts[level] if -len(parts) <= level < len(parts) else None

    def _values(self, level: int) -> list[str]:
        return sorted({value for one in self._counts if (value := self._at(one, level))})

    def _names_splits(self, level: int) -> bool:
        values = {self._at(folder, level) for folder in self._leaves}
        if None in values:
            return False
        names = [self._names[value] for value in values if value]
        splits = {name.split for name in names}
        if None in splits or splits == {UNLABELED}:
            return False
        rests = {name.rest for name in names}
        # `my_train` alone may be anything; `my_train` and `my_test` are two splits of one thing.
        return rests == {""} or (len(rests) == 1 and len(splits) > 1)

    def _read_folder(self, folder: str, levels: Sequence[int]) -> Place:
        parts = self._parts[folder]
        if folder not in self._leaves and any(self._at(folder, level) is None for level in levels):
            return Place(problem="is outside any class folder")
        levels = [level % len(parts) for level in levels]
        splits = {self._names[parts[level]].split for level in levels}
        if len(splits) > 1:
            raise self._refuse(f"the path {folder} names several splits", "rename all but one")
        common = min(self._common, levels[0])
        label = "/".join(part for at, part in enumerate(parts) if at >= common and at not in levels)
        return Place(split=splits.pop(), label=label)

    def _check(self, places: Mapping[str, Place]) -> None:
        """Refuse splits without class folders, or that share no class with the training split."""
        by_split = defaultdict[str, set[str]](set)
        for place in places.values():
            if place.split and place.split != UNLABELED:
                by_split[place.split].add(place.label.casefold())
        if not any(map(any, by_split.values())):
            named = min(folder for folder, place in places.items() if place.split)
            raise self._refuse(
                f"{named} is named as a split and holds files without a class folder",
                "set data.layout: class if these folders are classes, or split/class.*.jpg if names"
                " such as cat.1.jpg hold the class; else list the files and their labels in a table"
                " for data.source: image_table",
            )
        trained = by_split.pop("train", set())
        for split, labels in by_split.items():
            if trained and not trained & labels:
                one = min(folder for folder, place in places.items() if place.split == split)
                path = one.split("/")
                named = next(at for at, part in enumerate(path) if self._names[part].split)
                what = (
                    f"{min(labels)} but no class of the training split"
                    if any(labels)
                    else "files without a class folder"
                )
                raise self._refuse(
                    f"{one}, for {split}, holds {what}",
                    f"leave it out with data.leave_out: [{'/'.join(path[: named + 1])}], list its"
                    " files and their labels in a table for data.source: image_table, or set"
                    " data.layout to how folders are to be read, such as split/class/**",
                )

    def _refuse_mixed(self) -> None:
        """Refuse levels where only some names are splits, or names such as cat_train, cat_test."""
        for level in self._levels:
            values = self._values(level)
            plain = [
                value
                for value in values
                if self._names[value].split in SPLITS_BY_WORD.values()
                and not self._names[value].rest
            ]
            others = [value for value in values if value not in plain]
            if plain and others and (level == 0 or len(plain) > 1):
                raise self._refuse(
                    f"{plain[0]} is named as a split, but {others[0]} is not",
                    f"set data.leave_out: {self._folders_named(others, level)} or"
                    f" {self._folders_named(plain, level)}, whichever is not to be used, or"
                    " data.layout: class if all are classes",
                )
            alike = defaultdict[tuple[str, ...], dict[str, str]](dict)
            for folder in sorted(self._counts):
                path, value = self._parts[folder], self._at(folder, level)
                if value and (split := self._names[value].split):
                    without = (*path[:level], self._names[value].rest, *path[level + 1 :])
                    alike[without].setdefault(split, folder)
            for same in alike.values():
                if len(same) > 1:
                    raise self._refuse(
                        f"{' and '.join(same.values())} look like one class in two splits",
                        "set data.layout: class if they are classes; else move the files of a"
                        " split into a folder of its name: train/CLASS, test/CLASS",
                    )

    def _folders_named(self, names: Sequence[str], level: int) -> str:
        paths = {
            "/".join(folder.split("/")[: level + 1])
            for folder in sorted(self._counts)
            if self._at(folder, level) in names
        }
        return f"[{', '.join(sorted(paths)[:_NAMED])}{', …' if len(paths) > _NAMED else ''}]"

    def _refuse_masks(self) -> None:
        for level in self._levels:
            values = self._values(level)
            words = {word.lower() for value in values for word in WORD.findall(value)}
            if words & _MASKS and _PICTURES.intersection(map(str.lower, values)):
                raise self._refuse(
                    "images and their masks or labels are in folders next to each other, as for"
                    " segmentation or detection",
                    "a source of class folders needs a folder per class; set data.layout: class if"
                    " these are classes",
                )

    def _refuse_other_shapes(self) -> None:
        """Refuse folders that are known to mean something else than classes."""
        self._refuse_repeated()
        for level in self._levels:
            values = self._values(level)
            if len(values) > 1 and all(map(_FOLD.match, values)):
                pattern = "/".join([*[ANY] * (level + 1), "class"])
                deeper = any(len(parts) > level + 1 for parts in self._parts.values())
                joined = f"data.layout: {pattern} to read all of them together, or " * deeper
                raise self._refuse(
                    f"{' and '.join(values[:2])} seem to be parts of the data, not classes",
                    f"set {joined}data.layout: class if they are classes",
                )
            names = [value for value in values if self._names[value].split == UNLABELED]
            if names and len(values) > 1:
                raise self._refuse(
                    f"{names[0]} is named as data without labels",
                    f"set data.leave_out: [{names[0]}], or data.layout: class if it is a class",
                )

    def _refuse_repeated(self) -> None:
        """Refuse folders that hold folders of the same names: either level may be the classes."""
        above = defaultdict[str, list[str]](list)  # by name, the folders that hold one
        for folder in sorted(self._leaves):
            parent, _, name = folder.rpartition("/")
            above[name].append(parent)
        repeated = [name for name, parents in sorted(above.items()) if len(parents) > 1]
        if len(repeated) <= 1:
            return
        one, other = above[repeated[0]][:2]
        parts = one.split("/")
        shared = os.path.commonprefix([parts, other.split("/")])  # noqa: RUF071 - of parts
        inner = "/".join([*[ANY] * len(parts), "class"])
        outer = "/".join([*[ANY] * len(shared), "class", ANY_NUMBER])
        raise self._refuse(
            f"{one} and {other} hold folders of the same names, {' and '.join(repeated[:2])}",
            f"set data.layout: {inner} if these are the classes, {outer} if the folders above are,"
            " or class if each path is one; name folders of splits train, validation and test;"
            " data.leave_out names folders that are not to be used",
        )

    def _refuse(self, problem: str, remedy: str) -> UnreadableSource:
        return UnreadableSource(
            f"{self._root}: {problem}", f"{remedy}. These folders were found:\n{self._draw()}"
        )

    def _draw(self) -> str:
        """Draw some of the folders, as different as possible, with their numbers of files."""
        ordered = sorted(self._counts)
        others = (
            other
            for level in range(2)
            for one, other in pairwise(ordered)
            if self._at(one, level) != self._at(other, level)
        )
        shown = sorted([*dict.fromkeys([*ordered[:1], *others])][:_SHOWN])
        width = max(map(len, shown), default=0)
        lines = [f"  {folder or '.':<{width}}  {self._counts[folder]:,} files" for folder in shown]
        more = len(ordered) - len(shown)
        return "\n".join([*lines, *([f"  … and {more:,} more folders"] if more else [])])
