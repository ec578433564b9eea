"""Texts to predict, read as ingest does it: files, lines of a file, or rows of a table."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from throughline.data.encodings.base import RejectedValue, StoredFile
from throughline.data.encodings.texts import check_size, inspect_text
from throughline.data.found import Document, Rejected, Texts
from throughline.data.sources import text_folder, text_lines, text_table
from throughline.data.tables.table_columns import code_rows
from throughline.models.inference import TrainedModel
from throughline.prediction.examples import (
    NO_COLUMNS,
    Example,
    Examples,
    Wanted,
    note_skipped,
)
from throughline.prediction.tables import note_all, read_as_trained
from throughline.settings import DataSettings
from throughline.settings.source_kinds import TABLES
from throughline.shared.errors import UnreadableSource

_NUMBERED = re.compile(r"(?:row |(?P<file>.*):)(?P<number>\d{8,})", re.DOTALL)


def read(path: Path, trained: TrainedModel, wanted: Wanted) -> Examples:
    """Read the texts at `path`; their classes and splits, if any, are ignored."""
    without = {"label_kind": "none", "layout": "class"}
    settings = read_as_trained(trained).model_copy(update={"path": str(path), **without})
    suffix = path.suffix.lower()
    lines = wanted.lines and (path.is_dir() or suffix in text_lines.TXT)
    alone = path.is_dir() or lines or suffix not in (*TABLES, *text_lines.JSON)
    if trained.spec.schema.table_input and alone:
        raise UnreadableSource(f"{path} {NO_COLUMNS}")
    if suffix in TABLES:
        found = text_table.scan(settings, use_splits=False)
    elif lines or suffix in text_lines.JSON:
        found = text_lines.scan(settings, use_splits=False)
    elif path.is_dir():
        found = text_folder.scan(settings)
    else:
        one = Texts(documents=[_read_file(path, settings)], total=1)
        return Examples(items=_inspect(one, path, trained), total=1)
    if path.is_dir():
        note_skipped(path, found.skipped, "texts")
    return Examples(items=_inspect(found, path, trained), total=found.total)


def _read_file(path: Path, settings: DataSettings) -> Document | Rejected:
    stored = StoredFile(path=path, root=Path(path.absolute().anchor))
    try:
        content = stored.read(lambda _, size: check_size(size, settings.max_bytes))
        return Document(id="", content=content, label="")
    except RejectedValue as reason:
        return Rejected(id="", reason=str(reason))


def _with_columns(
    found: Texts, trained: TrainedModel
) -> Iterator[tuple[Document | Rejected, np.ndarray | None]]:
    """Yield documents, each with its columns if the model needs any (all are read first then)."""
    more = trained.spec.schema.table_input
    if more is None or found.kept is None:
        for document in found.documents:
            yield document, None
        return
    documents = [*found.documents]
    rows = [one.cells for one in documents if isinstance(one, Document)]
    table = found.kept.make_table(rows, trained=more.columns)
    note_all(table.path, table.describe_points(more.columns.names[: more.columns.numeric]))
    coded = zip(*code_rows(table, more.columns), strict=True)
    for document in documents:
        if isinstance(document, Rejected):
            yield document, None
            continue
        columns, problem = next(coded)
        yield Rejected(id=document.id, reason=problem) if problem else document, columns


def _inspect(found: Texts, path: Path, trained: TrainedModel) -> Iterator[Example | Rejected]:
    encoding = trained.spec.data.encoding
    for document, columns in _with_columns(found, trained):
        name = _locate(document.id, path)
        if isinstance(document, Rejected):
            yield Rejected(id=name, reason=document.reason)
            continue
        try:
            content = inspect_text(document.content, encoding=encoding)
            yield Example(id=name, value=content, columns=columns)
        except RejectedValue as reason:
            yield Rejected(id=name, reason=str(reason))


def _locate(document_id: str, path: Path) -> str:
    """Return the place of a document in `path` by its id: `FILE`, or `FILE:3` for a line or row."""
    if (numbered := _NUMBERED.fullmatch(document_id)) is None:
        return str(path / document_id)
    file = path / numbered["file"] if path.is_dir() else path
    return f"{file}:{int(numbered['number'])}"
