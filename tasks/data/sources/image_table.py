"""Images listed in a table: CSV or Parquet with a path (relative to the table's folder), a class
and, if wanted, a split.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from tasks.data.sources.base import ImageFile, ImageFiles, Rejected
from tasks.data.sources.tabular import check_columns, read_frame, read_split
from tasks.settings import DataSettings


def scan(settings: DataSettings) -> ImageFiles:
    """Read the table at `data.path`; an optional column `split` holds train, validation or test."""
    path = Path(settings.path)
    table = read_frame(path, as_text=True)
    check_columns(
        table,
        [settings.path_column, settings.label_column],
        path=path,
        keys="data.path_column and data.label_column",
    )
    files, rejected = [], []
    for number, row in enumerate(table.to_dict("records"), start=1):
        name, label = row[settings.path_column], row[settings.label_column]
        split, problem = read_split(row.get("split"))
        where = f"row {number}: {name}"
        if bool(pd.isna(name)) or not str(name).strip():
            rejected.append(Rejected(id=f"row {number}", reason="path missing"))
        elif bool(pd.isna(label)) or not str(label).strip():
            rejected.append(Rejected(id=where, reason="label missing"))
        elif problem is not None:
            rejected.append(Rejected(id=where, reason=problem))
        else:
            files.append(
                ImageFile(id=str(name), path=path.parent / str(name), label=str(label), split=split)
            )
    return ImageFiles(root=path.parent, files=files, rejected=rejected)
