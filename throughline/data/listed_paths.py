"""Finds the files that a list names by paths that do not exist as written.

Such paths lack a suffix or folder, have backslashes, differ in case or suffix, or come from another
machine. A single rule must find them all, up to the allowed rejects, or the list is refused.
"""

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

from throughline.data.encodings.base import FileEncoding
from throughline.data.found import find_suffix
from throughline.plan.schema import find_encoding
from throughline.settings import DataSettings
from throughline.shared.errors import UnreadableSource

Parts = tuple[str, ...]
_SHOWN = 3
_EXACT, _NO_SUFFIX, _OTHER = "as written", "no suffix", "other suffix or case"


def find_listed(
    names: Sequence[str], table: Path, root: Path, settings: DataSettings
) -> tuple[list[str], dict[str, int]]:
    """Return the paths below `root` for names in a table, and {rule: number of names it found}.

    A share of `data.max_reject_fraction` of the names may have no file; these stay as they are. No
    rule is needed ({}) if names are paths as written.

    Raises:
      UnreadableSource: too many names have no file, or a name fits several files; says which file
        was looked for, and which files exist.
    """
    where = f"{table}: column {settings.path_column}"
    wanted = [*dict.fromkeys(name for name in names if name)]
    may_lack = settings.max_reject_fraction * len(wanted)
    there = {name for name in wanted if _is_file(root / name)}
    lacking = [name for name in wanted if name not in there]
    if len(lacking) <= may_lack:
        return list(names), {}
    files = [*_walk(root)]
    suffixes = cast("FileEncoding", find_encoding("image")).suffixes
    by_name = {name: _split(name) for name in lacking if _split(name)}
    folders = [_split(name)[:-1] for name in wanted]
    shared = tuple(os.path.commonprefix(folders))  # noqa: RUF071 - of parts, not of letters
    like = [one for one in files if find_suffix(one[-1]) in suffixes]
    indexes = {_EXACT: _index(files, _EXACT)}
    indexes |= {spelling: _index(like, spelling) for spelling in (_NO_SUFFIX, _OTHER)}
    for left_out in range(len(shared) + 1):
        for spelling, index in indexes.items():
            matches = {
                name: _match(parts[left_out:], index, spelling) for name, parts in by_name.items()
            }
            matches = {name: found for name, found in matches.items() if found}
            if len(lacking) - len(matches) <= may_lack:
                lengths = {name: len(by_name[name]) - left_out for name in matches}
                chosen = _choose(matches, lengths, where, root)
                rule = _describe(chosen, by_name, shared[:left_out], spelling)
                paths = {name: "/".join(parts) for name, parts in chosen.items()}
                return [paths.get(name, name) for name in names], {rule: len(chosen)}
    if there:
        raise UnreadableSource(
            f"{where}: {root} has {len(there):,} of {len(wanted):,} files, such as {min(there)},"
            f" but not {lacking[0]}",
            "add the missing files, or remove their rows from the list",
        )
    base = wanted[0].replace("\\", "/").rpartition("/")[2]
    near = [one for one in like or files if _stem(one[-1]).casefold() == _stem(base).casefold()]
    seen = "/".join(min(near or like)) if like else "no images"
    remedy = (
        "set data.path to the folder of both list and files, write paths relative to the list's"
        " folder into the column, or set data.path_column to another one"
    )
    if near and not like:
        seen = f"no images, but {'/'.join(min(near))}"
        remedy = f"convert such files to PNG: only {', '.join(sorted(suffixes))} are read"
    raise UnreadableSource(
        f"{where}: too many paths lead to no file below {root}, even without their folders or with"
        f" another suffix; the first is {wanted[0]}, and {root} holds {seen}",
        remedy,
    )


def _choose(
    matches: Mapping[str, list[Parts]], lengths: Mapping[str, int], where: str, root: Path
) -> dict[str, Parts]:
    """Return one file per name; refuse names that fit several files.

    If every name has a match with as many path parts as `lengths` says, only such matches count.
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
                f"{where}: {name} fits several files below {root}: {shown}",
                f"write whole paths into the column, relative to {root}",
            )
    return {name: several[0] for name, several in matches.items()}


def _split(name: str) -> Parts:
    return tuple(part for part in name.replace("\\", "/").split("/") if part not in ("", "."))


def _is_file(path: Path) -> bool:
    """Return whether a path exists and is no folder; it may be a broken link."""
    try:
        return os.path.lexists(path) and not path.is_dir()
    except ValueError:  # the path has a NUL character
        return False


def _walk(root: Path) -> Iterator[Parts]:
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        above = Path(folder).relative_to(root).parts
        yield from ((*above, name) for name in names if not name.startswith("."))


def _stem(name: str) -> str:
    return name.rpartition(".")[0] or name


def _index(files: Sequence[Parts], spelling: str) -> dict[str, list[Parts]]:
    index: dict[str, list[Parts]] = defaultdict(list)
    for one in files:
        name = one[-1] if spelling == _EXACT else _stem(one[-1])
        index[_fold(name, spelling)].append(one)
    return index


def _match(wanted: Parts, index: Mapping[str, list[Parts]], spelling: str) -> list[Parts]:
    """Return the files whose paths end like `wanted`; `spelling` names differences that count."""
    *folders, name = (_fold(part, spelling) for part in wanted)
    if spelling == _OTHER and find_suffix(name):
        name = _stem(name)
    depth = len(folders) + 1
    return [
        one
        for one in index.get(name, ())
        if [_fold(part, spelling) for part in one[-depth:-1]] == folders
    ]


def _fold(name: str, spelling: str) -> str:
    return name.casefold() if spelling == _OTHER else name


def _describe(
    chosen: Mapping[str, Parts],
    by_name: Mapping[str, Parts],
    left_out: Parts,
    spelling: str,
) -> str:
    said = ["backslashes separate their folders"] if any("\\" in name for name in chosen) else []
    if left_out:
        said.append(f"{'/'.join(left_out)} is from another place and was left out")
    if spelling == _OTHER:
        said.append("files differ in suffix or case")
    elif spelling == _NO_SUFFIX:
        added = sorted({one[-1][len(by_name[name][-1]) :] for name, one in chosen.items()})
        said.append(f"they lack their suffix (added: {', '.join(added)})")
    depth = {name: len(one) - len(by_name[name]) + len(left_out) for name, one in chosen.items()}
    added = sorted({"/".join(one[: depth[name]]) for name, one in chosen.items() if depth[name]})
    if added:
        more = ", …" if added[_SHOWN:] else ""
        said.append(f"they lack their folder (added: {', '.join(added[:_SHOWN])}{more})")
    return "names in the list are not paths of files: " + "; ".join(said)
