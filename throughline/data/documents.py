"""The documents of a source, examined one by one and written back to back as UTF-8 next to the
manifest.
"""

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
    """Write the usable documents into `folder`; one at a time is in memory.

    Returns a row of the manifest for each, whose `row` is the document's first byte, next to its
    `cells` that the source keeps, and the documents that are rejected.
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
