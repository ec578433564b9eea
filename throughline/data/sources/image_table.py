"""Images listed in a table: CSV or Parquet with a path (relative to the table's folder), a class
and, if wanted, a split. `data.path` is the folder that holds both, of which every file is watched,
or the table alone.
"""

from __future__ import annotations

from pathlib import Path

from throughline.data.sources.base import ExampleFile, Files, Rejected
from throughline.data.sources.tabular import TABLES, check_columns, read_split, read_table
from throughline.settings import DataSettings
from throughline.shared.errors import DataNotFound

UNWATCHED = "DVC does not watch the images: data.path names the table, not the folder of both"


def scan(settings: DataSettings) -> Files:
    """Read the table at or in `data.path`; an optional column `split` holds train, validation or
    test.

    Raises:
      DataNotFound: a folder holds no table, or several.
    """
    path = _find_table(Path(settings.path))
    table = read_table(path, settings)
    check_columns(
        table,
        {"data.path_column": [settings.path_column], "data.label_column": [settings.label_column]},
    )
    files, rejected = [], []
    names, labels = table.cells(settings.path_column), table.cells(settings.label_column)
    splits = table.cells("split") if "split" in table.columns else [""] * len(table)
    for number, (name, label, named) in enumerate(zip(names, labels, splits, strict=True), start=1):
        split, problem = read_split(named)
        where = f"row {number}: {name}"
        if not name:
            rejected.append(Rejected(id=f"row {number}", reason="path missing"))
        elif not label:
            rejected.append(Rejected(id=where, reason="label missing"))
        elif problem is not None:
            rejected.append(Rejected(id=where, reason=problem))
        else:
            files.append(ExampleFile(id=name, path=path.parent / name, label=label, split=split))
    watched = path != Path(settings.path)
    warnings = [] if watched else [UNWATCHED]
    return Files(root=path.parent, files=files, rejected=rejected, warnings=warnings)


def _find_table(path: Path) -> Path:
    if not path.is_dir():
        return path
    tables = sorted(one for one in path.iterdir() if one.suffix.lower() in TABLES)
    if len(tables) != 1:
        names = ", ".join(table.name for table in tables) or "none"
        raise DataNotFound(
            f"data.path: {path} holds {len(tables)} tables ({names}); expected one, of"
            f" {', '.join(sorted(TABLES))}, next to the images that it lists"
        )
    return tables[0]
