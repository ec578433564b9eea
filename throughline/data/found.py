"""The forms in which any source presents its examples: files, texts, arrays, or one long series."""

from __future__ import annotations

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
    from throughline.data.sources.text_records import KeptCells


def find_suffix(name: str) -> str:
    """As of a `Path`, which costs microseconds, in lower case.

    >>> find_suffix("a.b.JPG"), find_suffix(".jpg"), find_suffix("a."), find_suffix("a")
    ('.jpg', '', '', '')
    """
    dot = name.rfind(".")
    return name[dot:].lower() if 0 < dot < len(name) - 1 else ""


def count_kinds(paths: Iterable[Path]) -> dict[str, int]:
    """How many files that are left out there are of each kind, by suffix."""
    return dict(Counter(map(_describe_kind, paths)).most_common())


def _describe_kind(path: Path) -> str:
    if path.is_dir():
        return "link to a folder" if path.is_symlink() else "folder"
    if path.is_symlink() and not path.exists():
        return "link to nothing"
    return find_suffix(path.name) or "without a suffix"


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """An example that cannot be used, and why."""

    id: str
    reason: str

    @property
    def cause(self) -> str:
        """Why, without what is of this example alone."""
        return self.reason.cause if isinstance(self.reason, Reason) else self.reason


@dataclass(frozen=True, kw_only=True, slots=True)  # there may be millions
class ExampleFile:
    """A file that is an example, not yet examined, or `size` bytes of one from byte `offset` on.
    `label` is a class, `numbers` are those to predict, if any. `split` is None unless the source
    decides it. Of an object of a bucket, which `object` is then, `path` is its name, or where it
    has been copied to.
    """

    id: str
    path: Path
    label: str
    split: str | None = None
    numbers: tuple[float, ...] = ()
    offset: int = -1
    size: int = 0
    object: StoredObject | None = None


@dataclass(frozen=True, kw_only=True)
class ListedColumns:
    """Columns of the table that lists the examples: `values` (examples, columns) float32 in their
    order, in which NaN stands for a median that is not yet known.
    """

    columns: TableColumns
    values: np.ndarray


@dataclass(frozen=True, kw_only=True)
class ColumnReading:
    """How a column of a table was read: its kind, how many different cells it has, how many are
    empty, and the first one that is not.
    """

    name: str
    kind: str
    distinct: int
    missing: int
    example: str

    def __str__(self) -> str:
        missing = f", {self.missing:,} missing" if self.missing else ""
        shown = f", such as {self.example[:40]}" if self.example else ""
        return f"{self.name}: {self.kind}, {self.distinct:,} distinct{missing}{shown}"


@dataclass(frozen=True, kw_only=True)
class Found:
    """What every form says besides its examples.

    `skipped` counts files of other kinds by suffix, `left_out` examples by the reason why they are
    not to be used, `notes` what is worth knowing. `features` describes what the records of others
    hold, by name. `readings` say how the columns of a table were read, `dialect` what of its
    notation was detected, `warnings` what may not be meant. `groups` are those of `data.group` by
    the id of the example, where a column names them.
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
    """Files below one root; none may lead outside it. `objects` is what they are below, where that
    is a folder of a bucket. A label is a class, or, where `label_kind` says number, as many numbers
    as `targets`; `listed` are columns that the model sees as well. `classes` are in the order of
    their numbers, where the source numbers them. Of images in the `column` of a table, the `offset`
    of a file is its row.
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
    """A text, not yet examined: bytes in the encoding `data.encoding`, or a string in which bytes
    that are not of that encoding are surrogates. `split` is None unless the source decides it;
    `cells` are those that its source keeps.
    """

    id: str
    content: bytes | str
    label: str
    split: str | None = None
    cells: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Texts(Found):
    """Documents, read one by one while they are iterated, once; what cannot be used comes between
    them. `total` counts both. `kept` says what the cells of documents are, where they have some.
    """

    documents: Iterable[Document | Rejected]
    total: int
    kept: KeptCells | None = None


@dataclass(frozen=True, kw_only=True)
class Arrays(Found):
    """Examples in one array: values (examples, *shape) of the shape and dtype of the schema's
    input. `labels` are class names, or a number or several to predict (then `classes` is empty).
    `ids` and `splits` have one entry per example; a split of None is assigned by content.
    """

    values: np.ndarray | JoinedArrays
    labels: Sequence[str] | Sequence[float] | Sequence[tuple[float, ...]]
    ids: Sequence[str]
    splits: Sequence[str | None]
    classes: Sequence[str]
    schema: Schema


@dataclass(frozen=True, kw_only=True)
class Series(Found):
    """One long multivariate series in the order of time: values (time steps, columns) float32."""

    values: np.ndarray
    schema: Schema


def refuse_odd_names(root: Path, names: Sequence[str]) -> None:
    """Refuse files whose names are no UTF-8, which ids of their examples begin with."""
    for name in names:
        if not is_utf8(name):
            raise UnreadableSource(
                f"{root}: the name {readable(Path(name))} is no UTF-8; rename it"
            )


def readable(path: Path) -> str:
    """A path as text; bytes that are no UTF-8 are written as escapes."""
    return str(path).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def is_utf8(name: str) -> bool:
    """Whether a name, as the system gives it, can be written as UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
