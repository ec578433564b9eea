"""Lists the files at a local `data.path`, and checks after ingest that they have not changed.

DVC computes the digest of all files after the stage, so it would treat a file that arrives during
ingest as one that ingest has read. Such a change is refused.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from throughline.data.split_names import find_left_out
from throughline.shared.errors import UnreadableSource

LINK = " link"  # at the end of a file's description
POINTER = b"version https://git-lfs"  # first bytes of the pointer that Git LFS puts for a file
_POINTER_SIZES = frozenset(map(str, range(115, 150)))  # bytes: three lines with a digest and a size


@dataclass(frozen=True, kw_only=True)
class LocalFiles:
    """The files at a path as they were listed: by folder, their names, sizes and times.

    Not listed are the folder `out`, which ingest writes, hidden files and folders, which no source
    reads, and files that are reached only through a link to a folder.
    """

    path: Path
    out: Path
    listed: Mapping[str, str]

    def names(self) -> Iterator[str]:
        for name, _ in self._describe_files():
            yield name

    def links(self) -> Iterator[Path]:
        return (
            Path(name) for name, described in self._describe_files() if described.endswith(LINK)
        )

    def _describe_files(self) -> Iterator[tuple[str, str]]:
        for folder, lines in self.listed.items():
            for line in lines.split("\0"):
                name, _, described = line.partition("/")
                yield f"{folder}/{name}", described

    def refuse_pointers(self, leave_out: Sequence[str]) -> None:
        """Refuse pointers that Git LFS left in place of files, except for those left out."""
        found = [
            name
            for name, described in self._describe_files()
            if described.partition(" ")[0] in _POINTER_SIZES
            and not find_left_out(os.path.relpath(name, self.path), leave_out)
            and _begins_like_pointer(name)
        ]
        if found:
            raise UnreadableSource(
                f"{min(found)} is a pointer of Git LFS"
                + (f", one of {len(found):,}" if found[1:] else ""),
                "get the files themselves with `git lfs pull`",
            )

    def check_unchanged(self) -> None:
        """List the files again; raise UnreadableSource if one was added, changed or removed."""
        now = dict(_list_all(self.path, self.out))
        changed = [
            f"{folder}/{name}"
            for folder in sorted(self.listed.keys() | now.keys())
            for name in _find_changed(self.listed.get(folder, ""), now.get(folder, ""))
        ]
        if changed:
            more = f" and {len(changed) - 1:,} more" if changed[1:] else ""
            shown = os.fsencode(changed[0]).decode(errors="backslashreplace")
            raise UnreadableSource(
                f"{shown}{more} changed while ingest was reading; run the same command again"
            )


def list_files(path: Path, *, out: Path) -> LocalFiles:
    """List the files at a path, if there are any; takes some microseconds per file."""
    return LocalFiles(path=path, out=out, listed=dict(_list_all(path, out)))


def _list_all(path: Path, out: Path) -> Iterator[tuple[str, str]]:
    """Yield each folder with files, at or below a path, and their names, sizes [bytes], times [ns].

    The files of a folder are one string, which takes a tenth of the memory of separate values.
    """
    own, folders = str(out.absolute()), [str(path)]
    if not path.is_dir():
        yield str(path.parent), f"{path.name}/{_describe(path)}"
        return
    while folders:
        folder, lines = folders.pop(), list[str]()
        with suppress(OSError), os.scandir(folder) as entries:  # ingest rejects unreadable files
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if not entry.is_dir():
                    lines.append(f"{entry.name}/{_describe(entry)}")
                # Folders next to `out` whose names begin like its name are incomplete outputs.
                elif not (entry.is_symlink() or str(Path(entry.path).absolute()).startswith(own)):
                    folders.append(entry.path)
        if lines:
            lines.sort()
            yield folder, "\0".join(lines)


def _describe(file: Path | os.DirEntry[str]) -> str:
    """Return size [bytes], time [ns], and whether it is a link; empty for missing files."""
    try:
        status = file.stat()
    except OSError:
        return ""
    return f"{status.st_size} {status.st_mtime_ns}{LINK if file.is_symlink() else ''}"


def _begins_like_pointer(name: str) -> bool:
    with suppress(OSError), Path(name).open("rb") as file:
        return file.read(len(POINTER)) == POINTER
    return False


def _find_changed(before: str, after: str) -> list[str]:
    if before == after:
        return []
    differing = set(before.split("\0")) ^ set(after.split("\0"))
    return sorted({line.partition("/")[0] for line in differing if line})
