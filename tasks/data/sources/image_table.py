"""Images listed in a table: CSV or Parquet with a path (relative to the table's folder), a class
and, if wanted, a split.
"""

from __future__ import annotations

from pathlib import Path

from tasks.data.sources.base import ImageFile, ImageFiles, Rejected
from tasks.data.sources.tabular import check_columns, read_split, read_table
from tasks.settings import DataSettings


def scan(settings: DataSettings) -> ImageFiles:
    """Read the table at `data.path`; an optional column `split` holds train, validation or test."""
    path = Path(settings.path)
    table = read_table(path, settings)
    check_columns(
        table,
        [settings.path_column, settings.label_column],
        keys="data.path_column and data.label_column",
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
            files.append(ImageFile(id=name, path=path.parent / name, label=label, split=split))
    return ImageFiles(root=path.parent, files=files, rejected=rejected)
