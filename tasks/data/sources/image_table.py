"""Images listed in a table: CSV or Parquet with a path (relative to the table's folder), a class and, if wanted, a split."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from tasks.data.sources.forms import ImageFile, ImageFiles, Rejected
from tasks.data.sources.frames import check_columns, read_frame
from tasks.settings import DataSettings

SPLITS = frozenset({"train", "validation", "test"})


def find(settings: DataSettings) -> ImageFiles:
    """Read the table at `data.path`; an optional column `split` holds train, validation or test."""
    path = Path(settings.path)
    table = read_frame(path, as_text=True)
    check_columns(table, [settings.path_column, settings.label_column], path=path, keys="data.path_column and data.label_column")
    files, rejected = [], []
    for number, row in enumerate(table.to_dict("records"), start=1):
        name, label, split = row[settings.path_column], row[settings.label_column], row.get("split")
        split = None if bool(pd.isna(split)) else str(split)
        where = f"row {number}: {name}"
        if bool(pd.isna(name)) or not str(name).strip():
            rejected.append(Rejected(id=f"row {number}", reason="path missing"))
        elif bool(pd.isna(label)) or not str(label).strip():
            rejected.append(Rejected(id=where, reason="label missing"))
        elif split is not None and split not in SPLITS:
            rejected.append(Rejected(id=where, reason=f"split {split} is none of train, validation, test"))
        else:
            files.append(ImageFile(id=str(name), path=path.parent / str(name), label=str(label), split=split))
    return ImageFiles(root=path.parent, files=files, rejected=rejected)
