"""Examines every example of a source once, and turns it into a manifest row or a reject."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import singledispatch
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import pandas as pd

from throughline.data import sources
from throughline.data.encodings import image_files  # noqa: F401 - for ingest's digest
from throughline.data.encodings.array_files import JoinedArrays
from throughline.data.encodings.arrays import table_input
from throughline.data.encodings.base import FileEncoding, FileInfo, Reason, RejectedValue, Root
from throughline.data.encodings.labels import labeled, list_numbers
from throughline.data.encodings.texts import inspect_text, text_feature
from throughline.data.file_inspection import FileInspection
from throughline.data.found import ColumnReading, ExampleFile, ListedColumns, Rejected
from throughline.data.inspection_cache import key_of_inspections, open_inspection_cache
from throughline.data.manifest import COLUMNS, DOCUMENTS, IMAGES, VALUES, digest_rows
from throughline.data.sources.text_table import KeptCells
from throughline.data.splits import split_steps
from throughline.data.tables.image_columns import ImageColumn
from throughline.data.tables.table_columns import read_listing
from throughline.plan.schema import Schema, find_encoding
from throughline.settings import DataSettings
from throughline.shared.errors import UnreadableSource
from throughline.shared.files import digest_blake2b
from throughline.shared.progress import progress

ROWS_AT_ONCE = 4096
IMAGES_AT_ONCE = 64
STEPS_PER_BLOCK = 4096  # consecutive time steps in one record


@dataclass(frozen=True, kw_only=True)
class Examined:
    """The result of examining a source, before keys, class numbers and open splits are assigned.

    Attributes:
      rows: the usable examples, as rows of the manifest, with class names as labels.
      columns: the schema's table input (rows, columns) float32, if it has one.
      classes: names of the classes; empty for numbers to predict and for series.
      notes: numbers of occurrences, by description.
      cuts: as in `Series`.
    """

    rows: pd.DataFrame
    schema: Schema
    columns: np.ndarray | None = None
    rejected: list[Rejected] = field(default_factory=list)
    classes: tuple[str, ...] = ()
    notes: Counter = field(default_factory=Counter)
    readings: Sequence[ColumnReading] = ()
    dialect: Sequence[str] = ()
    warnings: Sequence[str] = ()
    cuts: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Folder:
    """The folder into which ingest writes: `path`, which is renamed to `final` once complete.

    `inspections` is the folder of the inspection cache; with `verify`, all files are read anyway.
    """

    path: Path
    final: Path
    inspections: Path | None = None
    verify: bool = False


@singledispatch
def examine(source: object, folder: Folder, settings: DataSettings) -> Examined:
    """Examine every example of a source, and write the data that replaces it for later stages."""
    raise NotImplementedError(f"no source has the form {type(source).__name__}")


@examine.register
def _(source: sources.Arrays, folder: Folder, settings: DataSettings) -> Examined:
    digests: list[str] = []
    with open_values_file(folder.path / VALUES, source.values) as copy:
        starts = range(0, len(source.values), ROWS_AT_ONCE)
        for start in progress(starts, total=len(starts), label="ingest", unit="blocks"):
            block = np.ascontiguousarray(source.values[start : start + ROWS_AT_ONCE])
            copy.write(block.data)
            digests += digest_rows(block, source.schema.input.columns)
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
    """Cut the series by time into train, validation and test, and each of these into blocks."""
    with open_values_file(folder.path / VALUES, source.values) as copy:
        copy.write(np.ascontiguousarray(source.values).data)
    rows = []
    splits = split_steps(len(source.values), settings.split.model_dump())
    for name, (begin, end) in splits.items():
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
    return Examined(rows=pd.DataFrame(rows), schema=source.schema, cuts=source.cuts)


@examine.register
def _(source: sources.Texts, folder: Folder, settings: DataSettings) -> Examined:
    rows, rejected = write_documents(source, folder.path, encoding=settings.encoding)
    if source.kept:
        return _read_kept_cells(rows, rejected, source.kept)
    return Examined(
        rows=rows,
        schema=labeled(text_feature()),
        rejected=rejected,
        classes=tuple(sorted(set(rows["label"]))),
    )


def write_documents(
    source: sources.Texts, folder: Path, *, encoding: str
) -> tuple[pd.DataFrame, list[Rejected]]:
    """Write the usable documents into one file in `folder`, one by one.

    Returns rows of the manifest, without keys, and the rejected documents. `row` is a document's
    first byte in the file; `cells` are the table cells that the source keeps, and `group` is the
    group of `data.group`.
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
                    "group": document.group,
                }
            )
            end += len(content)
    columns = [*(name for name in COLUMNS if name != "key"), "cells", "group"]
    return pd.DataFrame(rows, columns=columns), rejected


def _read_kept_cells(rows: pd.DataFrame, rejected: list[Rejected], kept: KeptCells) -> Examined:
    """Read documents' cells as a table input, numbers to predict, or both; reject unusable rows."""
    listing = read_listing(kept.make_table(rows["cells"].tolist()))
    unusable = [
        Rejected(id=name, reason=problem)
        for name, problem in zip(rows["id"], listing.problems, strict=True)
        if problem
    ]
    places = [place for place, problem in enumerate(listing.problems) if not problem]
    rows, columns = rows.iloc[places].reset_index(drop=True), listing.columns
    if listing.numbers is not None:
        rows = rows.assign(label=list_numbers(listing.numbers[places]))
    more = [table_input(columns.columns)] if columns else []
    return Examined(
        rows=rows,
        schema=labeled(text_feature(), listing.label_kind, *more, targets=listing.targets),
        columns=columns.values[places] if columns else None,
        rejected=[*rejected, *unusable],
        classes=tuple(sorted(set(rows["label"]))) if listing.label_kind == "class" else (),
        readings=listing.readings,
        dialect=listing.dialect,
        warnings=listing.warnings,
    )


@examine.register
def _(source: sources.Files, folder: Folder, settings: DataSettings) -> Examined:
    encoding = cast("FileEncoding", find_encoding(source.encoding))
    converted = folder.path / "converted"
    converted.mkdir(exist_ok=True)
    key = key_of_inspections(encoding.name, settings)
    local = source.root if source.root.is_dir() else source.root.parent
    inspections = folder.inspections
    if source.column:
        source = pack_images(source, source.column, folder.path)
        local, inspections = folder.path, None
    root = source.objects or Root(local, follow_links=settings.follow_links)
    with (
        open_inspection_cache(inspections, root=root, key=key) as cache,
        encoding.open_inspector(settings) as inspect,
    ):
        inspection = FileInspection(inspect=inspect, cache=cache, root=root, converted=converted)
        findings = inspection.inspect_all(source.files, verify=folder.verify)
    used: list[tuple[ExampleFile, FileInfo, bool]] = []
    rejected, places = list(source.rejected), []
    for place, (file, finding) in enumerate(zip(source.files, findings, strict=True)):
        if isinstance(finding, Rejected):
            rejected.append(finding)
        else:
            used.append((file, finding, finding.path != file.path))
            places.append(place)
    _remove_others(converted, {info.path for _, info, moved in used if moved})
    table = pd.DataFrame(
        {
            "id": [file.id for file, _, _ in used],
            # Files in the folder move along when it gets its final name.
            "uri": [
                str(folder.final / info.path.relative_to(folder.path))
                if moved or source.column
                else root.address(info.path)
                for _, info, moved in used
            ],
            "row": [-1 if moved else file.offset for file, _, moved in used],
            "label": _list_labels(source, [file for file, _, _ in used]),
            "bytes": [info.bytes for _, info, _ in used],
            "digest": [info.digest for _, info, _ in used],
            "split": [file.split or "" for file, _, _ in used],
        }
    )
    notes = Counter("written as PNG" for _, _, moved in used if moved)
    notes.update(info.note for _, info, _ in used if info.note)
    classes = sorted(set(table["label"])) if source.classes is None else source.classes
    value = encoding.describe({info.shape for _, info, _ in used})
    listed = source.listed
    more = [table_input(listed.columns)] if listed else []
    return Examined(
        rows=table,
        schema=labeled(value, source.label_kind, *more, targets=source.targets),
        columns=listed.values[places] if listed else None,
        rejected=rejected,
        classes=tuple(classes) if source.label_kind == "class" else (),
        notes=notes,
    )


def pack_images(source: sources.Files, column: ImageColumn, folder: Path) -> sources.Files:
    """Write the images of a table's column into one file in `folder`; reject those without bytes.

    Returns the source with these images: the `offset` of each, which was its row in the column,
    becomes its first byte in the written file.

    Raises:
      UnreadableSource: no image has bytes, but paths are given.
    """
    by_row = {file.offset: place for place, file in enumerate(source.files)}
    path, row, end = folder / IMAGES, 0, 0
    files, rejected, places = [], list(source.rejected), []
    names = [column.values, *([f"{column.name}.path"] if column.has_paths else [])]
    batches = column.files.read(names, rows=IMAGES_AT_ONCE)
    total = -(-column.files.count_rows() // IMAGES_AT_ONCE)
    with path.open("wb") as packed:
        for _, _, batch in progress(batches, total=total, label="images", unit="batches"):
            paths = batch.column(1) if column.has_paths else None
            for number, value in enumerate(batch.column(0)):
                place = by_row.get(row + number)
                if place is None:
                    continue
                file = source.files[place]
                if not value.is_valid:
                    named = paths[number].as_py() if paths else None
                    only = Reason("bytes missing", f": there is only the path {named}")
                    rejected.append(Rejected(id=file.id, reason=only if named else "image missing"))
                    continue
                data = value.as_buffer()
                packed.write(data)
                files.append(replace(file, path=path, offset=end, size=data.size))
                places.append(place)
                end += data.size
            row += batch.num_rows
    if source.files and not files and rejected[-1].reason.startswith("bytes missing"):
        raise UnreadableSource(
            f"{column.files.path}: column {column.name} holds paths of images without their bytes",
            "save the table with its images (`datasets`: save_to_disk, or push_to_hub with"
            " embed_external_files=True), or name a column that holds only paths in"
            " data.path_column",
        )
    listed = source.listed
    if listed:
        listed = ListedColumns(columns=listed.columns, values=listed.values[places])
    return replace(source, files=files, rejected=rejected, listed=listed)


def _list_labels(
    source: sources.Files, files: Sequence[ExampleFile]
) -> list[str] | list[float] | list[tuple[float, ...]]:
    if source.label_kind == "class":
        return [file.label for file in files]
    if source.targets > 1:
        return [file.numbers for file in files]
    return [file.numbers[0] for file in files]


def _remove_others(folder: Path, used: Collection[Path]) -> None:
    """Remove converted copies that are not `used`, which an interrupted run has left."""
    for path in folder.iterdir():
        if path not in used:
            path.unlink()


@contextmanager
def open_values_file(path: Path, values: np.ndarray | JoinedArrays) -> Iterator[BinaryIO]:
    """Write the header of a .npy file for `values`; the block writes the values themselves.

    The file is not mapped, since a full disk would then kill the process, not raise an error.
    """
    with path.open("wb") as file:
        np.lib.format.write_array_header_2_0(
            file, {"descr": values.dtype.str, "fortran_order": False, "shape": values.shape}
        )
        yield file
