"""What is at a local `data.path`: listed before ingest looks at it, and compared when it has read
all.

DVC takes the digest of all that is there when the stage has ended. So a file that arrives while
ingest reads would be taken for one that it has read; it is refused instead, as in a bucket
(`object_folder.py`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from throughline.shared.errors import UnreadableSource


@dataclass(frozen=True, kw_only=True)
class LocalFiles:
    """The files at a path as they were listed, `out` excepted, which ingest itself writes: of each
    folder their names, sizes and times. Hidden ones, which no source reads, and those that only a
    link to a folder leads to are left out.
    """

    path: Path
    out: Path
    listed: Mapping[str, str]

    def check_unchanged(self) -> None:
        """List the files once more.

        Raises:
          UnreadableSource: some have been added, changed or removed; names one.
        """
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
                f"{shown}{more} changed while ingest was reading; run the same command again, by"
                " which files that have been read are not read again"
            )


def list_files(path: Path, *, out: Path) -> LocalFiles:
    """List the files at a path, which takes some microseconds of each; none where nothing is."""
    return LocalFiles(path=path, out=out, listed=dict(_list_all(path, out)))


def _list_all(path: Path, out: Path) -> Iterator[tuple[str, str]]:
    """Each folder at or below a path, and its files with sizes [bytes] and times [ns] in one text,
    which takes a tenth of the memory of as many values; of a file alone its folder.
    """
    own, folders = str(out.absolute()), [str(path)]
    if not path.is_dir():
        yield str(path.parent), f"{path.name}/{_describe(path)}"
        return
    while folders:
        folder, lines = folders.pop(), list[str]()
        with suppress(OSError), os.scandir(folder) as entries:  # ingest rejects what it cannot read
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if not entry.is_dir():
                    lines.append(f"{entry.name}/{_describe(entry)}")
                # Next to `out` are those of its name that are not complete.
                elif not (entry.is_symlink() or str(Path(entry.path).absolute()).startswith(own)):
                    folders.append(entry.path)
        if lines:
            lines.sort()
            yield folder, "\0".join(lines)


def _describe(file: Path | os.DirEntry[str]) -> str:
    """Size [bytes] and time [ns]; nothing of a link to nothing, and of what has just gone."""
    try:
        status = file.stat()
    except OSError:
        return ""
    return f"{status.st_size} {status.st_mtime_ns}"


def _find_changed(before: str, after: str) -> list[str]:
    """The names of a folder's files that are in one text alone, or differ."""
    if before == after:
        return []
    differing = set(before.split("\0")) ^ set(after.split("\0"))
    return sorted({line.partition("/")[0] for line in differing if line})
