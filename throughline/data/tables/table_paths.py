"""Finds the files of a table at a path, and the splits given by their names."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from throughline.data.found import ABOUT
from throughline.data.split_names import split_files
from throughline.data.tables import delimited, table_files
from throughline.settings import DataSettings
from throughline.settings.source_kinds import DELIMITED
from throughline.shared.errors import DataNotFound, UnreadableSource
from throughline.shared.wording import name_some

_SHOWN = 4
# Suffixes of files that may hold more rows.
_DATA = DELIMITED | table_files.SUFFIXES
_DATA |= {".txt", ".dat", ".data", ".tab", ".jsonl", ".ndjson", ".xlsx", ".xls", ".feather", ".orc"}
_DATA |= {".npy", ".tar", ".zip", ".gz", ".bz2", ".xz", ".zst"}


def open_files(path: Path, settings: DataSettings) -> table_files.TableFiles | None:
    """Open the Parquet or Arrow files at `path`; None for CSV; DataNotFound if it has no table."""
    files = table_files.find_table_files(path) if path.exists() else []
    if not (files or path.is_file() or (path.is_dir() and _list_delimited(path))):
        state = "does not exist"
        if path.is_dir():
            names = sorted(one.name for one in path.iterdir() if not one.name.startswith("."))
            state = f"holds no table, but {name_some(names, most=_SHOWN) or 'nothing'}"
        raise DataNotFound(
            f"{path} {state}; `data.path` must be a CSV, Parquet or Arrow file, or a folder of such"
            " files; a single file may have any suffix"
        )
    if not files:
        return None
    if files == [path]:
        return table_files.open_table_files(path, {path: None}, label=settings.label_columns[0])
    splits, left_out = split_files(path, files, settings.leave_out, count=table_files.count_rows)
    found = table_files.open_table_files(path, splits, label=settings.label_columns[0])
    warnings = [*find_others(path, files), *found.warnings]
    return replace(found, left_out=left_out, warnings=warnings)


def find_delimited(
    path: Path, settings: DataSettings
) -> tuple[dict[Path, str | None], Mapping[str, int], Sequence[str]]:
    """Return the delimited files at or in `path`, numbers of left-out lines, and warnings.

    Several files name the splits, unless a column `split` exists. All need equal columns.
    """
    if path.is_file():
        return {path: None}, {}, ()
    files = _list_delimited(path)
    splits, left_out = split_files(path, files, settings.leave_out, count=delimited.count_lines)
    kinds = defaultdict[frozenset[str], list[str]](list)
    for file in splits:
        with delimited.open_delimited(file, settings, errors="surrogateescape") as text:
            kinds[frozenset(text.header)].append(file.name)
    if len(kinds) > 1:
        common = frozenset.intersection(*kinds)
        shown = "; ".join(
            f"{name_some(names, most=2)} ({name_some(sorted(header - common), most=4) or 'none'})"
            for header, names in kinds.items()
        )
        raise UnreadableSource(
            f"{path}: its tables have different columns, besides common ones: {shown}",
            f"set data.path to one of them, {path}/NAME, or data.leave_out: [NAME, …] to leave"
            " others out",
        )
    has_column = any("split" in header for header in kinds)
    splits = dict.fromkeys(splits) if has_column or len(splits) == 1 else splits
    return splits, left_out, find_others(path, files)


def find_others(folder: Path, read: Collection[Path]) -> list[str]:
    """Return a warning about files in and below a folder that may hold data and are not `read`."""
    others = [
        one.relative_to(folder).as_posix()
        for one in table_files.list_visible(folder, _DATA)
        if one not in read and not ABOUT.fullmatch(one.name)
    ]
    some = name_some(others, most=_SHOWN)
    return [f"other files of data are left out: {some}"] if others else []


def _list_delimited(folder: Path) -> list[Path]:
    visible = (one for one in folder.iterdir() if not one.name.startswith("."))
    return sorted(one for one in visible if one.suffix.lower() in DELIMITED and one.is_file())
