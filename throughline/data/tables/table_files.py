"""Reads Parquet and Arrow files with the same columns as one table, batch by batch.

Classes that Hugging Face's `datasets` has numbered get their names back.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from throughline.data.tables.number_text import pc
from throughline.shared.errors import UnreadableSource
from throughline.shared.wording import name_some

SUFFIXES = frozenset({".parquet", ".arrow"})  # files that are read in a folder
SPLIT = "split"
_SHOWN = 4
_PARQUET, _LONGEST = b"PAR1", 6  # first bytes of files
_ARROW = {b"ARROW1": pa.ipc.open_file, b"\xff\xff\xff\xff": pa.ipc.open_stream}
_ALIKE = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}


def find_table_files(path: Path) -> list[Path]:
    """Return the visible Parquet and Arrow files below a folder, without caches, or the file."""
    if path.is_file():
        return [path] if path.suffix.lower() in SUFFIXES or _read_kind(path) else []
    return [one for one in list_visible(path, SUFFIXES) if not _is_cache(one)]


def list_visible(folder: Path, suffixes: Collection[str]) -> list[Path]:
    """Return the files with such suffixes in and below a folder that are not hidden."""
    return sorted(
        one
        for one in folder.rglob("*")
        if one.suffix.lower() in suffixes
        and one.is_file()
        and not any(part.startswith(".") for part in one.relative_to(folder).parts)
    )


def _is_cache(path: Path) -> bool:
    """Return whether a file is a cache that `datasets` put next to data, such as of `map`."""
    try:
        state = json.loads(path.with_name("state.json").read_bytes())  # of `save_to_disk`
        return path.name not in {one["filename"] for one in state["_data_files"]}
    except (OSError, ValueError, LookupError, TypeError):
        return fnmatch(path.name, "cache-*.arrow")


def _read_kind(path: Path) -> bytes:
    """Return the signature of an Arrow or Parquet file, empty for other kinds of file."""
    with path.open("rb") as file:
        first = file.read(_LONGEST)
    return next(filter(first.startswith, (_PARQUET, *_ARROW)), b"")


@dataclass(frozen=True, kw_only=True)
class TableFiles:
    """The files at `path` as one table with the columns of `schema`.

    Attributes:
      splits: the split of each file, if its name says one.
      class_names: by column, the names of the classes that it numbers.
      warnings: files that are left out, and facts that the user may not have intended.
      left_out: number of rows in files that `data.leave_out` names, by entry.
    """

    path: Path
    splits: Mapping[Path, str | None]
    schema: pa.Schema
    class_names: Mapping[str, tuple[str, ...]]
    warnings: Sequence[str] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)

    def count_rows(self) -> int:
        return sum(map(count_rows, self.splits))

    def read(
        self, names: Sequence[str], *, rows: int
    ) -> Iterator[tuple[Path, int, pa.RecordBatch]]:
        """Yield columns, or fields such as `image.path`, in batches of at most `rows` rows.

        A batch comes with its file, and the number (from 0) of its first row there. Raises
        UnreadableSource, which names the file, if it is damaged or a number has no class.
        """
        for path, split in self.splits.items():
            start = 0
            own = [name for name in names if not (name == SPLIT and self._adds_split)]
            with _naming(path):
                for batch in _read_batches(path, own, rows=rows):
                    columns = [self._read_column(batch, name, path, split) for name in names]
                    yield path, start, pa.RecordBatch.from_arrays(columns, names=[*names])
                    start += batch.num_rows

    @property
    def _adds_split(self) -> bool:
        return any(self.splits.values())

    def _read_column(
        self, batch: pa.RecordBatch, name: str, path: Path, split: str | None
    ) -> pa.Array:
        if name == SPLIT and self._adds_split:
            return pa.array([split] * batch.num_rows, pa.string())
        if name not in batch.schema.names:
            outer, _, inner = name.rpartition(".")
            return pc.struct_field(batch.column(outer), inner)
        column = batch.column(name)
        if name in self.class_names:
            return _name_classes(column, self.class_names[name], f"{path}: column {name}")
        wanted = self.schema.field(name).type
        return column if column.type == wanted else column.cast(wanted)


def open_table_files(path: Path, splits: Mapping[Path, str | None], *, label: str) -> TableFiles:
    """Open files, each with its split or None, as one table; raise UnreadableSource if they differ.

    Files without any class in `label` are left out, unless all lack them: hubs hide test labels.
    """
    first, *others = splits
    schema = _read_schema(first)
    for other in others:
        schema = _join(schema, _read_schema(other), first, other)
    names, warnings = _find_class_names(schema), _find_nameless(path, splits)
    without = [one for one in splits if label in names and _lacks_labels(one, label)]
    if without and len(without) < len(splits):
        splits = {one: split for one, split in splits.items() if one not in without}
        warnings += [
            f"{one.relative_to(path)} ({count_rows(one):,} rows) is left out: {label} is −1, no"
            " class, in every row"
            for one in without
        ]
    for name in names:
        schema = schema.set(schema.get_field_index(name), pa.field(name, pa.string()))
    if any(splits.values()):
        if SPLIT in schema.names:
            splits = dict.fromkeys(splits)  # the column names the split of each row
        else:
            schema = schema.append(pa.field(SPLIT, pa.string()))
    return TableFiles(path=path, splits=splits, schema=schema, class_names=names, warnings=warnings)


def _find_nameless(path: Path, splits: Mapping[Path, str | None]) -> list[str]:
    """Return a warning about folders whose names are not read."""
    if path.is_file():
        return []
    folders = defaultdict[str | None, set[str]](set)
    for file, split in splits.items():
        folders[split].add(str(file.relative_to(path).parent))
    named = sorted(max(folders.values(), key=len))
    return [
        f"files of {len(named):,} folders ({name_some(named, most=_SHOWN)}) are read as one table,"
        " without the folders' names; data.path can name one of them",
    ] * bool(named[1:])


def _lacks_labels(path: Path, label: str) -> bool:
    with _naming(path):
        columns = [batch.column(label) for batch in _read_batches(path, [label], rows=1 << 16)]
    numbers = (pc.unique(pc.fill_null(column, -1)).to_pylist() for column in columns)
    return {*chain.from_iterable(numbers)} == {-1}


def _join(schema: pa.Schema, other: pa.Schema, first: Path, path: Path) -> pa.Schema:
    """Return the schema of both files, which must agree; a column without values fits any type."""
    remedy = "write both with the same columns, or set data.path to files of one kind"
    if odd := {*schema.names} ^ {*other.names}:
        name = min(odd)
        having, lacking = (first, path) if name in schema.names else (path, first)
        raise UnreadableSource(f"{lacking}: no column {name}, which {having} has", remedy)
    names, theirs = _find_class_names(schema), _find_class_names(other)
    if names != theirs:
        name = min({name for name in names if names[name] != theirs.get(name)} or theirs)
        raise UnreadableSource(
            f"{path}: column {name} has other class names than in {first}", remedy
        )
    for place, (name, kind) in enumerate(zip(schema.names, schema.types, strict=True)):
        found = other.field(name).type
        if pa.types.is_null(kind):
            schema = schema.set(place, pa.field(name, found))
        elif kind != found and not pa.types.is_null(found):
            raise UnreadableSource(
                f"{path}: column {name} is {found}, but {kind} in {first}", remedy
            )
    return schema


def _read_schema(path: Path) -> pa.Schema:
    with _naming(path):
        reader = _open_arrow(path)
        schema = reader.schema if reader else pq.read_schema(path)
    refuse_doubled(schema.names, path)
    return pa.schema([field.with_type(_plain(field.type)) for field in schema], schema.metadata)


def refuse_doubled(names: Sequence[str], path: Path, *more: str) -> None:
    """Refuse columns of one name; `more` are further remedies."""
    if doubled := sorted(name for name, count in Counter(names).items() if name and count > 1):
        raise UnreadableSource(
            f"{path}: more than one column is named {doubled[0]}",
            ", or ".join(["rename one of them", *more]),
        )


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return a type without details of how its values are stored."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    return _ALIKE.get(kind, kind)


def _open_arrow(path: Path) -> Any:
    open_as = _ARROW.get(_read_kind(path))
    return open_as(pa.memory_map(str(path))) if open_as else None


def _read_batches(path: Path, names: Sequence[str], *, rows: int) -> Iterator[pa.RecordBatch]:
    reader = _open_arrow(path)
    if reader is None:
        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(batch_size=rows, columns=[*names])
        return
    with reader:
        is_file = hasattr(reader, "num_record_batches")
        batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader
        for batch in batches:
            for start in range(0, batch.num_rows, rows):
                yield batch.slice(start, rows)


def count_rows(path: Path) -> int:
    with _naming(path):
        if _read_kind(path) in _ARROW:
            return sum(batch.num_rows for batch in _read_batches(path, (), rows=1 << 30))
        return pq.read_metadata(path).num_rows


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except (UnreadableSource, MemoryError):
        raise
    except Exception as error:  # parsers of other people's files raise anything
        what = f"{path} is not a readable Parquet or Arrow table: {error}"
        raise UnreadableSource(what) from error


def _find_class_names(schema: pa.Schema) -> dict[str, tuple[str, ...]]:
    """Return the names of classes by column, as `datasets` stores them with the schema."""
    try:
        kept = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        features = kept.get("info", {}).get("features", {})
        return {
            name: tuple(map(str, feature["names"]))
            for name, feature in features.items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
            if feature.get("names") and name in schema.names
            if pa.types.is_integer(schema.field(name).type)
        }
    except (ValueError, AttributeError, TypeError):
        return {}


def _name_classes(numbers: pa.Array, names: Sequence[str], where: str) -> pa.Array:
    """Return the names of classes; −1, which Hugging Face uses for no class, becomes null."""
    values = np.asarray(pc.fill_null(numbers, -1).cast(pa.int64()))
    if values.size and not -1 <= values.min() <= values.max() < len(names):
        wrong = values.min() if values.min() < -1 else values.max()
        raise UnreadableSource(
            f"{where} holds {wrong}, but its metadata name {len(names)} classes, from 0 on",
            "write the table again with the names of all classes",
        )
    return pa.array([*names, None], pa.string()).take(pa.array(values % (len(names) + 1)))


def find_floats(schema: pa.Schema) -> frozenset[str]:
    kinds = (pa.types.is_floating, pa.types.is_decimal)
    return frozenset(one.name for one in schema if any(of_kind(one.type) for of_kind in kinds))


class NoText(Exception):
    """Cells are bytes."""


def as_text(column: pa.ChunkedArray) -> pa.LargeStringArray:
    """Return typed cells as text; null and NaN become empty.

    Numbers have the shortest text that gives the same value back, and whole numbers no fraction.
    Raises ArrowInvalid if a text is not UTF-8, ArrowNotImplementedError if cells are not single
    values, and NoText for bytes.
    """
    cells: Any = column
    if pa.types.is_dictionary(cells.type):
        cells = cells.cast(cells.type.value_type)
    if "binary" in str(cells.type):
        raise NoText
    if pa.types.is_boolean(cells.type):
        cells = pc.if_else(cells, "True", "False")
    elif pa.types.is_floating(cells.type):
        cells = pc.if_else(pc.is_nan(cells), None, cells)
        cells = cells.cast(pa.float32()) if cells.type == pa.float16() else cells
    text = pc.fill_null(cells.cast(pa.large_string()), "").combine_chunks()
    text.validate(full=True)  # other writers do not check for UTF-8
    return text
