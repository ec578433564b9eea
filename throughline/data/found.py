"""The forms in which a source presents its examples: files, texts, arrays, or one long series."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from throughline.data.encodings.array_files import JoinedArrays
from throughline.data.encodings.base import Reason
from throughline.data.encodings.labels import LabelKind
from throughline.data.object_folder import ObjectFolder
from throughline.data.tables.image_columns import ImageColumn
from throughline.plan.schema import Schema, TableColumns
from throughline.shared.errors import UnreadableSource
from throughline.shared.object_store import StoredObject

if TYPE_CHECKING:
    from throughline.data.sources.text_table import KeptCells


# Names of files about the data that are not part of it.
ABOUT = re.compile(
    r"((.*[\W_])?read_?me[\d._-]*|licen[cs]e|copying|notice|summary|citation|changelog|index)"
    r"(\.(txt|md|rst|html))?",
    re.IGNORECASE,
)


def find_suffix(name: str) -> str:
    """Return the suffix of a file name in lower case; faster than `Path.suffix`.

    >>> find_suffix("a.b.JPG"), find_suffix(".jpg"), find_suffix("a."), find_suffix("a")
    ('.jpg', '', '', '')
    """
    dot = name.rfind(".")
    return name[dot:].lower() if 0 < dot < len(name) - 1 else ""


def count_kinds(paths: Iterable[Path]) -> dict[str, int]:
    """Return the number of left-out paths by suffix or, for folders and broken links, by kind."""
    return dict(Counter(map(_describe_kind, paths)).most_common())


def _describe_kind(path: Path) -> str:
    if path.is_dir():
        return "link to a folder" if path.is_symlink() else "folder"
    if path.is_symlink() and not path.exists():
        return "link to nothing"
    return find_suffix(path.name) or "without a suffix"


@dataclass(frozen=True, kw_only=True)
class Rejected:
    id: str
    reason: str

    @property
    def cause(self) -> str:
        """The reason without the details of this example."""
        return self.reason.cause if isinstance(self.reason, Reason) else self.reason


@dataclass(frozen=True, kw_only=True, slots=True)  # there may be millions
class ExampleFile:
    """A file that is an example, or `size` bytes of a file from byte `offset` on; not yet examined.

    `path` of an object in a bucket is its name there, or its local copy. `label` is a class, or
    `numbers` are the values to predict. `split` is None unless the source decides it.
    """

    id: str
    path: Path
    label: str
    split: str | None = None
    numbers: tuple[float, ...] = ()
    offset: int = -1  # a whole file
    size: int = 0
    object: StoredObject | None = None


@dataclass(frozen=True, kw_only=True)
class ListedColumns:
    """Columns of the table that lists the examples; `values` (examples, columns) float32.

    NaN marks an empty cell, which gets the training median later.
    """

    columns: TableColumns
    values: np.ndarray


@dataclass(frozen=True, kw_only=True)
class ColumnReading:
    """The reading of a table's column; `example` is its first cell that is not empty."""

    name: str
    kind: str
    distinct: int
    missing: int
    example: str


@dataclass(frozen=True, kw_only=True)
class Found:
    """The results of a source besides its examples.

    Attributes:
      skipped: number of files of other kinds, by suffix.
      left_out: number of examples that are not to be used, by reason.
      notes: numbers of occurrences, by description.
      features: descriptions of the features in external TFRecords, by name.
      dialect: the detected notation of a table, such as its delimiter.
      warnings: facts that the user may not have intended.
      groups: the group (`data.group`) by example id, if a column names it.
    """

    rejected: Sequence[Rejected] = ()
    empty_classes: Sequence[str] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)
    notes: Mapping[str, int] = field(default_factory=dict)
    features: Mapping[str, str] = field(default_factory=dict)
    readings: Sequence[ColumnReading] = ()
    dialect: Sequence[str] = ()
    warnings: Sequence[str] = ()
    groups: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Files(Found):
    """Files below one root; only links that `data.follow_links` allows may lead outside it.

    Attributes:
      label_kind: `class`, or `number` if a label is `targets` numbers.
      listed: columns that are a further input of the model.
      classes: the classes in the order of their numbers, if the source numbers them.
      objects: the folder of a bucket that the files are in, if any.
      column: the table column that holds the images; the `offset` of a file is then its row.
    """

    root: Path
    files: Sequence[ExampleFile]
    encoding: str = "image"
    label_kind: LabelKind = "class"
    targets: int = 1
    listed: ListedColumns | None = None
    classes: Sequence[str] | None = None
    objects: ObjectFolder | None = None
    column: ImageColumn | None = None


@dataclass(frozen=True, kw_only=True)
class Document:
    """A text that is not yet examined.

    `content` is bytes in the encoding `data.encoding`, or a string in which bytes that are not of
    that encoding are surrogates. `split` is None unless the source decides it. `cells` are the
    table cells that the source keeps. `group` is the group (`data.group`), or empty.
    """

    id: str
    content: bytes | str
    label: str
    split: str | None = None
    cells: Sequence[str] = ()
    group: str = ""


@dataclass(frozen=True, kw_only=True)
class Texts(Found):
    """Documents, read one by one; they can be iterated once.

    `documents` also yields rejected ones; `total` counts both. `kept` describes the documents'
    cells, if they have any.
    """

    documents: Iterable[Document | Rejected]
    total: int
    kept: KeptCells | None = None


@dataclass(frozen=True, kw_only=True)
class Arrays(Found):
    """Examples in one array.

    `values` (examples, *shape) has the shape and dtype of the schema's input. `labels` are class
    names, or one or several numbers to predict (then `classes` is empty). `ids` and `splits` have
    one entry per example; ingest assigns missing splits (None) by content.
    """

    values: np.ndarray | JoinedArrays
    labels: Sequence[str] | Sequence[float] | Sequence[tuple[float, ...]]
    ids: Sequence[str]
    splits: Sequence[str | None]
    classes: Sequence[str]
    schema: Schema


@dataclass(frozen=True, kw_only=True)
class Series(Found):
    """One long multivariate series: `values` (time steps, columns) float32, in time order.

    Time steps are missing before those that `cuts` lists: windows do not cross these places.
    """

    values: np.ndarray
    schema: Schema
    cuts: tuple[int, ...] = ()


def refuse_odd_names(root: Path, names: Sequence[str]) -> None:
    """Refuse file names that are not UTF-8, because ids of examples begin with them."""
    for name in names:
        if not is_utf8(name):
            raise UnreadableSource(
                f"{root}: the name {readable(Path(name))} is not UTF-8; rename it"
            )


def readable(path: Path) -> str:
    """Return a path as text, with escapes for bytes that are not UTF-8."""
    return str(path).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
