"""Examines the documents of a source and writes them as UTF-8 next to the manifest."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from throughline.data.encodings.base import RejectedValue
from throughline.data.encodings.texts import inspect_text
from throughline.data.found import Rejected, Texts
from throughline.data.manifest import COLUMNS, DOCUMENTS
from throughline.shared.files import digest_blake2b
from throughline.shared.progress import progress


def write_documents(
    source: Texts, folder: Path, *, encoding: str
) -> tuple[pd.DataFrame, list[Rejected]]:
    """Write the usable documents into one file in `folder`, one by one.

    Returns the rows of the manifest, and the rejected documents. `row` is a document's first byte;
    `cells` are the table cells that the source keeps.
    """
    rows, rejected, end = [], [], 0
    with (folder / DOCUMENTS).open("wb") as file:
        for document in progress(source.documents, total=source.total, label="ingest"):
            if isinstance(document, Rejected):
                rejected.append(document)
                continue
            try:
                content = inspect_text(document.content, encoding=encoding)
            except RejectedValue as error:
                rejected.append(Rejected(id=document.id, reason=error.reason))
                continue
            file.write(content)
            rows.append(
                {
                    "id": document.id,
                    "uri": "",
                    "row": end,
                    "label": document.label,
                    "bytes": len(content),
                    "digest": digest_blake2b(content),
                    "split": document.split or "",
                    "cells": document.cells,
                }
            )
            end += len(content)
    columns = [*(name for name in COLUMNS if name != "key"), "cells"]
    return pd.DataFrame(rows, columns=columns), rejected
