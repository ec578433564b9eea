"""Texts in class folders: a document per file, whose class is its folder's path."""

from collections.abc import Iterator
from pathlib import Path
from typing import cast

from throughline.data.encodings.base import FileKind, RejectedValue, Root
from throughline.data.encodings.texts import check_encoding, check_size
from throughline.data.found import Document, Files, Rejected, Texts
from throughline.data.object_folder import ObjectFolder
from throughline.data.sources.class_folders import list_class_folders
from throughline.data.sources.text_table import label_or_none
from throughline.plan.schema import find_encoding
from throughline.settings import DataSettings


def scan(settings: DataSettings, objects: ObjectFolder | None = None) -> Texts:
    """List the text files below `data.path`, or in `objects`; they are read one by one."""
    check_encoding(settings.encoding)
    kind, classes = cast("FileKind", find_encoding("text")), settings.label_kind != "none"
    listed = list_class_folders(settings, kind, classes=classes, objects=objects)
    root = objects or Root(Path(settings.path), follow_links=settings.follow_links)
    return Texts(
        documents=_documents(listed, root, settings),
        total=len(listed.files) + len(listed.rejected),
        empty_classes=listed.empty_classes,
        skipped=listed.skipped,
        left_out=listed.left_out,
        warnings=listed.warnings,
    )


def _documents(
    listed: Files, root: Root | ObjectFolder, settings: DataSettings
) -> Iterator[Document | Rejected]:
    yield from listed.rejected
    for file, stored in zip(listed.files, root.open_all(listed.files), strict=True):
        try:
            content = stored.read(lambda _, size: check_size(size, settings.max_bytes))
            label = label_or_none(file.label, settings)
            yield Document(id=file.id, content=content, label=label, split=file.split)
        except RejectedValue as error:
            yield Rejected(id=file.id, reason=error.reason)
