"""Finds the files for paths in a list that do not exist as written.

Such paths lack a suffix or folder, have backslashes, or are of another machine. One rule must turn
them all into files; otherwise the list is refused.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import cast

from throughline.data.encodings.base import FileEncoding
from throughline.plan.schema import find_encoding
from throughline.settings import DataSettings
from throughline.shared.errors import UnreadableSource

Parts = tuple[str, ...]
_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class PathList:
    """The cells of `column` in the list `table`: paths of files below `root` with these suffixes.

    The share `may_lack` of them may have no file.
    """

    table: Path
    column: str
    root: Path
    names: Sequence[str]
    suffixes: Collection[str]
    may_lack: float

    def find_files(self) -> tuple[Mapping[str, str], str]:
        """Return the path below the root of each name that has one, and the rule that found them.

        The rule is empty if names are paths as written.

        Raises:
          UnreadableSource: too many names have no file, or a name fits several files; says which
            file was looked for, and what is there.
        """
        names = [*dict.fromkeys(name for name in self.names if name)]
        there = {name: name for name in names if _is_file(self.root / name)}
        if self._are_most(there, names):
            return there, ""
        files = [*_walk(self.root)]
        if there:
            self._refuse_missing(there, names)
        by_name = {
            name: tuple(filter(_is_part, name.replace("\\", "/").split("/"))) for name in names
        }
        by_name = {name: parts for name, parts in by_name.items() if parts}
        shared = _find_shared([parts[:-1] for parts in by_name.values()])
        indexes = {False: _index(files, ()), True: _index(files, self.suffixes)}
        for left_out in range(len(shared) + 1):
            for lacks_suffix, index in indexes.items():
                found = {
                    name: [
                        one for one in index.get(parts[-1], ()) if _ends(one, parts[left_out:-1])
                    ]
                    for name, parts in by_name.items()
                }
                found = {name: matches for name, matches in found.items() if matches}
                if self._are_most(found, names):
                    chosen = self._choose(found, by_name, left_out)
                    rule = _describe(chosen, by_name, shared[:left_out], lacks_suffix=lacks_suffix)
                    return {name: "/".join(parts) for name, parts in chosen.items()}, rule
        self._refuse_all(names[0], files)
        return {}, ""

    def _are_most(self, found: Mapping[str, object], names: Sequence[str]) -> bool:
        return len(names) - len(found) <= self.may_lack * len(names)

    def _choose(
        self, found: Mapping[str, list[Parts]], by_name: Mapping[str, Parts], left_out: int
    ) -> dict[str, Parts]:
        """Return one file per name: the one directly below the root if each name has one there."""
        direct = {
            name: [one for one in matches if len(one) == len(by_name[name]) - left_out]
            for name, matches in found.items()
        }
        matches = direct if all(direct.values()) else found
        for name, several in matches.items():
            if several[1:]:
                shown = " or ".join("/".join(one) for one in sorted(several)[:_SHOWN])
                raise UnreadableSource(
                    f"{self.table}: column {self.column}: {name} may be {shown}, below {self.root}",
                    f"write whole paths into the column, relative to {self.root}",
                )
        return {name: several[0] for name, several in matches.items()}

    def _refuse_missing(self, there: Mapping[str, str], names: Sequence[str]) -> None:
        lacking = [name for name in names if name not in there]
        raise UnreadableSource(
            f"{self.table}: column {self.column}: {len(lacking):,} of {len(names):,} files are not"
            f" below {self.root}, such as {lacking[0]}; {next(iter(there))} is",
            "bring these files there, or take their rows out of the list",
        )

    def _refuse_all(self, name: str, files: Sequence[Parts]) -> None:
        base = name.replace("\\", "/").rpartition("/")[2]
        like = [one for one in files if _suffix(one[-1]) in self.suffixes]
        near = [one for one in like if _stem(one[-1]).casefold() == _stem(base).casefold()]
        there = f"there is {'/'.join(min(near or like))}" if like else "there are no such files"
        raise UnreadableSource(
            f"{self.table}: column {self.column}: its paths are not those of files below"
            f" {self.root}: {name} was looked for, also without its folders and with a suffix, and"
            f" {there}",
            "set data.path to the folder of both list and files, or write paths relative to the"
            " list's folder into the column",
        )


def find_listed(
    names: Sequence[str], table: Path, root: Path, settings: DataSettings
) -> tuple[list[str], dict[str, int]]:
    """Return the paths below `root` for names in a table, and the number of names by rule."""
    found, rule = PathList(
        table=table,
        column=settings.path_column,
        root=root,
        names=names,
        suffixes=cast("FileEncoding", find_encoding("image")).suffixes,
        may_lack=settings.max_reject_fraction,
    ).find_files()
    return [found.get(name, name) for name in names], {rule: len(found)} if rule else {}


def _is_file(path: Path) -> bool:
    """Return whether something other than a folder is there, even a broken link."""
    try:
        return os.path.lexists(path) and not path.is_dir()
    except ValueError:  # has a NUL, as no path may
        return False


def _walk(root: Path) -> Iterator[Parts]:
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        above = Path(folder).relative_to(root).parts
        yield from ((*above, name) for name in names if not name.startswith("."))


def _is_part(part: str) -> bool:
    return part not in ("", ".")


def _find_shared(folders: Sequence[Parts]) -> Parts:
    first, last = min(folders), max(folders)
    same = (one == other for one, other in zip(first, last, strict=False))
    return tuple(part for part, _ in zip(first, takewhile(bool, same), strict=False))


def _stem(name: str) -> str:
    return name.rpartition(".")[0] or name


def _suffix(name: str) -> str:
    return name[len(_stem(name)) :].lower()


def _index(files: Sequence[Parts], suffixes: Collection[str]) -> dict[str, list[Parts]]:
    """Index files by name; with `suffixes`, only such files, by their names without suffix."""
    index: dict[str, list[Parts]] = defaultdict(list)
    for one in files:
        if not suffixes:
            index[one[-1]].append(one)
        elif _suffix(one[-1]) in suffixes:
            index[_stem(one[-1])].append(one)
    return index


def _ends(path: Parts, folders: Parts) -> bool:
    above = path[:-1]
    return not folders or above[-len(folders) :] == folders


def _describe(
    chosen: Mapping[str, Parts],
    by_name: Mapping[str, Parts],
    left_out: Parts,
    *,
    lacks_suffix: bool,
) -> str:
    said = ["backslashes divide their folders"] if any("\\" in name for name in chosen) else []
    if left_out:
        said.append(f"{'/'.join(left_out)} is of another place and was left out")
    if lacks_suffix:
        added = sorted({one[-1][len(by_name[name][-1]) :] for name, one in chosen.items()})
        said.append(f"they lack their suffix: {', '.join(added)} was added")
    depth = {name: len(one) - len(by_name[name]) + len(left_out) for name, one in chosen.items()}
    added = sorted({"/".join(one[: depth[name]]) for name, one in chosen.items() if depth[name]})
    if added:
        more = ", …" if added[_SHOWN:] else ""
        said.append(f"they lack their folder: {', '.join(added[:_SHOWN])}{more} was added")
    return "names in the list are no paths: " + "; ".join(said)
