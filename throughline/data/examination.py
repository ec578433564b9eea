"""Looking at every example of a source once: the rows of the manifest that they become, and what is
unusable, with a reason.

A form of source is a function here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import singledispatch
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import pandas as pd

from throughline.data import sources
from throughline.data.documents import write_documents
from throughline.data.encodings import image_files  # noqa: F401 - by which images are examined
from throughline.data.encodings.base import FileEncoding, FileInfo, RejectedValue, StoredFile
from throughline.data.encodings.labels import labeled
from throughline.data.encodings.texts import text_feature
from throughline.data.manifest import COLUMNS, SPLITS, VALUES
from throughline.plan.schema import Schema, find_encoding
from throughline.settings import DataSettings
from throughline.shared.files import digest_blake2b
from throughline.shared.limits import usable_cores
from throughline.shared.progress import in_threads, progress

ROWS_AT_ONCE = 4096
STEPS_PER_BLOCK = 4096  # consecutive time steps that make up one record


@dataclass(frozen=True, kw_only=True)
class Examined:
    """The usable examples of a source as rows of the manifest, whose keys and splits are still
    open; those that are not, with their reasons; names of classes, none where labels are numbers;
    how often something was noticed.
    """

    rows: pd.DataFrame
    schema: Schema
    rejected: list[sources.Rejected] = field(default_factory=list)
    classes: tuple[str, ...] = ()
    notes: Counter = field(default_factory=Counter)


@dataclass(frozen=True, kw_only=True)
class Folder:
    """Where what is examined is written, and the name that it will have when all is complete."""

    path: Path
    final: Path


@singledispatch
def examine(source: object, folder: Folder, settings: DataSettings) -> Examined:
    """Examine every example of a source; writes into the folder what later stages read instead of
    the source.
    """
    raise NotImplementedError(f"no source has the form {type(source).__name__}")


@examine.register
def _(source: sources.Arrays, folder: Folder, settings: DataSettings) -> Examined:
    """Copies the values next to the manifest and digests each example."""
    digests: list[str] = []
    with open_values_file(folder.path, source.values) as copy:
        starts = range(0, len(source.values), ROWS_AT_ONCE)
        for start in progress(starts, total=len(starts), label="ingest", unit="blocks"):
            block = np.ascontiguousarray(source.values[start : start + ROWS_AT_ONCE])
            copy.write(block.data)
            rows = block.reshape(-1).view(np.uint8).data
            size = block.nbytes // max(1, len(block))
            digests += [
                digest_blake2b(bytes(rows[at : at + size])) for at in range(0, block.nbytes, size)
            ]
    size = source.values.dtype.itemsize * int(np.prod(source.values.shape[1:]))
    columns = {
        "id": source.ids,
        "uri": "",
        "row": np.arange(len(digests)),
        "label": source.labels,
        "bytes": size,
        "digest": digests,
    }
    return Examined(
        rows=pd.DataFrame({**columns, "split": [split or "" for split in source.splits]}),
        schema=source.schema,
        rejected=list(source.rejected),
        classes=tuple(source.classes),
    )


@examine.register
def _(source: sources.Series, folder: Folder, settings: DataSettings) -> Examined:
    """Cuts the series by time into train, validation and test, and each of them into blocks of
    consecutive steps.
    """
    with open_values_file(folder.path, source.values) as copy:
        copy.write(np.ascontiguousarray(source.values).data)
    count, split = len(source.values), settings.split
    edges = [
        0,
        round(count * (1 - split.validation - split.test)),
        round(count * (1 - split.test)),
        count,
    ]
    rows = []
    for name, begin, end in zip(SPLITS, edges, edges[1:], strict=False):
        for row in range(begin, end, STEPS_PER_BLOCK):
            block = np.ascontiguousarray(source.values[row : min(row + STEPS_PER_BLOCK, end)])
            digest = digest_blake2b(block.tobytes())
            # The label of a block is its number of time steps.
            rows.append(
                {
                    "id": f"{name}/{row:012d}",
                    "uri": "",
                    "row": row,
                    "label": len(block),
                    "bytes": block.nbytes,
                    "digest": digest,
                    "split": name,
                }
            )
    return Examined(rows=pd.DataFrame(rows), schema=source.schema)


@examine.register
def _(source: sources.Texts, folder: Folder, settings: DataSettings) -> Examined:
    rows, rejected = write_documents(source, folder.path, encoding=settings.encoding)
    return Examined(
        rows=rows,
        schema=labeled(text_feature()),
        rejected=rejected,
        classes=tuple(sorted(set(rows["label"]))),
    )


@examine.register
def _(source: sources.Files, folder: Folder, settings: DataSettings) -> Examined:
    """Examines all files on all cores."""
    encoding = cast("FileEncoding", find_encoding(source.encoding))
    converted = folder.path / "converted"
    converted.mkdir(exist_ok=True)

    def examine_one(file: sources.ExampleFile) -> FileInfo | sources.Rejected:
        stored = StoredFile(path=file.path, root=source.root, offset=file.offset, size=file.size)
        try:
            return inspect(stored, converted)
        except RejectedValue as reason:
            return sources.Rejected(id=file.id, reason=str(reason))

    with encoding.open_inspector(settings) as inspect:
        results = list(
            progress(
                in_threads(examine_one, source.files, workers=usable_cores()),
                total=len(source.files),
                label="ingest",
            )
        )
    rows, rejected, notes, shapes = [], list(source.rejected), Counter(), set()
    for file, result in zip(source.files, results, strict=True):
        if isinstance(result, sources.Rejected):
            rejected.append(result)
            continue
        # A converted copy moves along when the finished folder gets its final name.
        moved = result.path.is_relative_to(folder.path)
        uri = folder.final / result.path.relative_to(folder.path) if moved else result.path
        notes.update(
            [*(["converted to PNG"] if moved else []), *([result.note] if result.note else [])]
        )
        shapes.add(result.shape)
        rows.append(
            {
                "id": file.id,
                "uri": str(uri),
                "row": -1 if moved else file.offset,
                "label": file.label,
                "bytes": result.bytes,
                "digest": result.digest,
                "split": file.split or "",
            }
        )
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    return Examined(
        rows=table,
        schema=labeled(encoding.describe(shapes)),
        rejected=rejected,
        classes=tuple(sorted(set(table["label"])) if source.classes is None else source.classes),
        notes=notes,
    )


@contextmanager
def open_values_file(folder: Path, values: np.ndarray) -> Iterator[BinaryIO]:
    """A .npy file for values of this shape and dtype, open for writing.

    Written, not mapped: on a full disk a write fails with an error, a mapped page with a signal.
    """
    with (folder / VALUES).open("wb") as file:
        np.lib.format.write_array_header_2_0(
            file, {"descr": values.dtype.str, "fortran_order": False, "shape": values.shape}
        )
        yield file
