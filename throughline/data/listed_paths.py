"""Finds the files for paths in a list that do not exist as written.

Such paths lack a suffix or folder, have backslashes, or are of another machine. One rule must turn
them all into files; otherwise the list is refused.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

from throughline.data.encodings.base import FileEncoding
from throughline.data.found import find_suffix
from throughline.plan.schema import find_encoding
from throughline.settings import DataSettings
from throughline.shared.errors import UnreadableSource

Parts = tuple[str, ...]
_SHOWN = 3


def find_listed(
    names: Sequence[str], table: Path, root: Path, settings: DataSettings
) -> tuple[list[str], dict[str, int]]:
    """Return the paths below `root` for names in a table, and the number of names by rule.

    The share `data.max_reject_fraction` of them may have no file; they stay as they are. There is
    no rule if names are paths as written.

    Raises:
      UnreadableSource: too many names have no file, or a name fits several files; says which file
        was looked for, and what is there.
    """
    where = f"{table}: column {settings.path_column}"
    wanted = [*dict.fromkeys(name for name in names if name)]
    may_lack = settings.max_reject_fraction * len(wanted)
    there = {name: name for name in wanted if _is_file(root / name)}
    if len(wanted) - len(there) <= may_lack:
        return list(names), {}
    if there:
        lacking = [name for name in wanted if name not in there]
        raise UnreadableSource(
            f"{where}: {len(lacking):,} of {len(wanted):,} files are not below {root}, such as"
            f" {lacking[0]}; {next(iter(there))} is",
            "bring these files there, or take their rows out of the list",
        )
    files = [*_walk(root)]
    suffixes = cast("FileEncoding", find_encoding("image")).suffixes
    by_name = {name: _split(name) for name in wanted if _split(name)}
    folders = [parts[:-1] for parts in by_name.values()]
    shared = tuple(os.path.commonprefix(folders))  # noqa: RUF071 - of parts, not of letters
    indexes = {False: _index(files, ()), True: _index(files, suffixes)}
    for left_out in range(len(shared) + 1):
        for lacks_suffix, index in indexes.items():
            matches = {
                name: [one for one in index.get(parts[-1], ()) if _ends(one, parts[left_out:-1])]
                for name, parts in by_name.items()
            }
            matches = {name: found for name, found in matches.items() if found}
            if len(wanted) - len(matches) <= may_lack:
                lengths = {name: len(by_name[name]) - left_out for name in matches}
                chosen = _choose(matches, lengths, where, root)
                rule = _describe(chosen, by_name, shared[:left_out], lacks_suffix=lacks_suffix)
                paths = {name: "/".join(parts) for name, parts in chosen.items()}
                return [paths.get(name, name) for name in names], {rule: len(chosen)}
    base = wanted[0].replace("\\", "/").rpartition("/")[2]
    like = [one for one in files if find_suffix(one[-1]) in suffixes]
    near = [one for one in like if _stem(one[-1]).casefold() == _stem(base).casefold()]
    seen = f"there is {'/'.join(min(near or like))}" if like else "there are no such files"
    raise UnreadableSource(
        f"{where}: its paths are not those of files below {root}: {wanted[0]} was looked for, also"
        f" without its folders and with a suffix, and {seen}",
        "set data.path to the folder of both list and files, or write paths relative to the list's"
        " folder into the column",
    )


def _choose(
    matches: Mapping[str, list[Parts]], lengths: Mapping[str, int], where: str, root: Path
) -> dict[str, Parts]:
    """Return one file per name: the one directly below the root if each name has one there.

    `lengths` are the numbers of parts that such a file's path has.
    """
    direct = {
        name: [one for one in several if len(one) == lengths[name]]
        for name, several in matches.items()
    }
    matches = direct if all(direct.values()) else matches
    for name, several in matches.items():
        if several[1:]:
            shown = " or ".join("/".join(one) for one in sorted(several)[:_SHOWN])
            raise UnreadableSource(
                f"{where}: {name} may be {shown}, below {root}",
                f"write whole paths into the column, relative to {root}",
            )
    return {name: several[0] for name, several in matches.items()}


def _split(name: str) -> Parts:
    return tuple(part for part in name.replace("\\", "/").split("/") if part not in ("", "."))


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


def _stem(name: str) -> str:
    return name.rpartition(".")[0] or name


def _index(files: Sequence[Parts], suffixes: Collection[str]) -> dict[str, list[Parts]]:
    """Index files by name; with `suffixes`, only such files, by their names without suffix."""
    index: dict[str, list[Parts]] = defaultdict(list)
    for one in files:
        if not suffixes:
            index[one[-1]].append(one)
        elif find_suffix(one[-1]) in suffixes:
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
