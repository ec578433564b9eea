"""Texts to predict: a document per file, a line of a file, or a row of a table with a column of
texts. They are read and examined as ingest does it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from throughline.data.encodings.base import RejectedValue, StoredFile
from throughline.data.encodings.texts import check_size, inspect_text
from throughline.data.sources import text_folder, text_lines, text_table
from throughline.data.sources.base import Document, Rejected
from throughline.data.sources.tabular import TABLES
from throughline.models.inference import TrainedModel
from throughline.prediction.examples import Example, Examples, Wanted, note_skipped
from throughline.settings import DataSettings

_NUMBERED = re.compile(r"(?:row |(?P<file>.*):)(?P<number>\d{8,})", re.DOTALL)


def read(path: Path, trained: TrainedModel, wanted: Wanted) -> Examples:
    """The texts at `path`; their classes and splits, if there are some, are not looked at."""
    without = {"label_kind": "none", "folders": "classes"}
    settings = trained.spec.data.model_copy(update={"path": str(path), **without})
    suffix = path.suffix.lower()
    lines = wanted.lines and (path.is_dir() or suffix in text_lines.TXT)
    if suffix in TABLES:
        found = text_table.scan(settings, use_splits=False)
    elif lines or suffix in text_lines.JSON:
        found = text_lines.scan(settings, use_splits=False)
    elif path.is_dir():
        found = text_folder.scan(settings)
    else:
        return Examples(items=_inspect([_read_file(path, settings)], path, settings), total=1)
    if path.is_dir():
        note_skipped(path, found.skipped, "texts")
    return Examples(items=_inspect(found.documents, path, settings), total=found.total)


def _read_file(path: Path, settings: DataSettings) -> Document | Rejected:
    """A file as one document."""
    try:
        anywhere = Path(path.absolute().anchor)
        stored = StoredFile(path=path, root=anywhere)
        content = stored.read(lambda _, size: check_size(size, settings.max_bytes))
        return Document(id="", content=content, label="")
    except RejectedValue as reason:
        return Rejected(id="", reason=str(reason))


def _inspect(
    documents: Iterable[Document | Rejected], path: Path, settings: DataSettings
) -> Iterator[Example | Rejected]:
    """The usable ones as UTF-8: the file, and which line or row of it."""
    for document in documents:
        name = _locate(document.id, path)
        if isinstance(document, Rejected):
            yield Rejected(id=name, reason=document.reason)
            continue
        try:
            content = inspect_text(document.content, encoding=settings.encoding)
            yield Example(id=name, value=content)
        except RejectedValue as reason:
            yield Rejected(id=name, reason=str(reason))


def _locate(document_id: str, path: Path) -> str:
    """Where a document is, by its id within `path`: `FILE`, or `FILE:3` of a line or row."""
    if (numbered := _NUMBERED.fullmatch(document_id)) is None:
        return str(path / document_id)
    file = path / numbered["file"] if path.is_dir() else path
    return f"{file}:{int(numbered['number'])}"
