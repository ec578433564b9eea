"""Reading the examples of TFRecord shards that others wrote, once their layout is known. Not a
source itself: `tfrecord` infers the layout, `tfds` reads it.

An encoded image stays where it is: what is kept of it is its place in the shard. Values of one
shape become one array. A record that cannot be used is rejected with its reason; a shard that
cannot be read to its end is refused, since what it lacks is unknown.
"""

from __future__ import annotations

import itertools
import mmap
import shlex
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from throughline.data.encodings.arrays import CHANNELS, array_feature, pixels_feature
from throughline.data.encodings.labels import (
    UNLABELED,
    LabelKind,
    ReadLabels,
    labeled,
    read_labels,
)
from throughline.data.encodings.stored_arrays import ArrayForm, read_array
from throughline.data.shards.example_features import (
    Feature,
    FeatureKind,
    NotAnExample,
    bytes_places,
    parse_features,
    read_numbers,
)
from throughline.data.shards.tfrecord import find_edges, map_file, read_frame, record_offset
from throughline.data.sources.base import Arrays, ExampleFile, Files, Rejected
from throughline.plan.schema import Schema, TableColumns
from throughline.shared.errors import DataNotFound, UnreadableSource
from throughline.shared.limits import usable_cores
from throughline.shared.progress import in_threads, progress

GZIP, ZLIB = b"\x1f\x8b", b"x"
_RANK_OF_IMAGES = 3


@dataclass(frozen=True, kw_only=True)
class ExternalShard:
    """A TFRecord file that another program wrote; `name` is its path below the data's folder,
    `records` how many it should hold by its metadata, None where that is unknown.
    """

    path: Path
    name: str
    split: str | None
    records: int | None = None


@dataclass(frozen=True, kw_only=True)
class InputFeature:
    """The feature that is the model's input. encoded: an image file. bytes, zlib: values in C order
    of `dtype`. array: bytes that say to be an array of the form `stored`. numbers: a list of floats
    or integers. `shape` is None for encoded images.
    """

    name: str
    form: Literal["encoded", "bytes", "zlib", "array", "numbers"]
    shape: tuple[int, ...] | None = None
    dtype: str = "float32"
    stored: ArrayForm | None = None


@dataclass(frozen=True, kw_only=True)
class LabelFeature:
    """The feature that is to be predicted: classes or numbers, as `data.label_kind`, `asked`, says.

    `arrays`: bytes are arrays of one value. `names` are those of the classes in order, empty where
    labels name themselves; `named_by` is the file that says so.
    """

    name: str
    kind: FeatureKind
    asked: str = "auto"
    arrays: bool = False
    names: tuple[str, ...] = ()
    named_by: str = ""


@dataclass(frozen=True, kw_only=True)
class ExampleLayout:
    """Which features of the records are an example's input and label, and what all of them are."""

    input: InputFeature
    label: LabelFeature
    features: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """A usable record: its number, label, and the place of its image or its values."""

    number: int
    label: str | float | int
    place: tuple[int, int] = (0, 0)
    values: np.ndarray | None = None
    rounded: bool = False  #: whole numbers that float32 does not hold


class _Unusable(Exception):
    """The reason why a record is no example."""


def open_shard(shard: ExternalShard) -> tuple[mmap.mmap | bytes, np.ndarray]:
    """Map a shard and find its records: the bytes, and the edges of the frames (records + 1,).

    Raises:
      DataNotFound: it is not there.
      UnreadableSource: it is compressed, cut off, or holds another number of records than it is
        said to.
    """
    try:
        data = map_file(shard.path)
    except OSError as error:
        raise DataNotFound(f"{shard.path} cannot be read: {error.strerror}") from error
    edges, problem = find_edges(data)
    if problem and data[:2] == GZIP:
        raise UnreadableSource(
            f"{shard.path} is compressed with GZIP; examples are read where they are, at their"
            " offsets, which takes uncompressed TFRecord: unpack it, such as with"
            f" `{_unpack(shard.path)}`"
        )
    if problem:
        remedy = "get the file again, or remove it to do without it"
        if len(edges) == 1 and "checksum" in problem:
            kind = "it is no TFRecord file"
            if data[:1] == ZLIB:
                kind += ", unless it is compressed with ZLIB: then write it without"
            remedy = f"{kind}; remove it, or set data.path to the folder of shards"
        raise UnreadableSource(f"{shard.path}: {problem}; {remedy}")
    if shard.records not in (None, len(edges) - 1):
        raise UnreadableSource(
            f"{shard.path} holds {len(edges) - 1:,} records, dataset_info.json says"
            f" {shard.records:,}; they are not of the same dataset, or one of them is incomplete"
        )
    return data, edges


def _unpack(path: Path) -> str:
    """The command that unpacks a file, which gunzip takes by its suffix alone."""
    name = shlex.quote(str(path))
    return f"gunzip {name}" if path.suffix == ".gz" else f"mv {name} {name}.gz && gunzip {name}.gz"


def read_examples(
    root: Path, shards: Sequence[ExternalShard], layout: ExampleLayout
) -> Files | Arrays:
    """Read all shards, which are below `root`, as the layout says.

    Raises:
      DataNotFound, UnreadableSource: a shard cannot be read as a whole, none holds a record, or the
        labels are numbered from 1.
    """
    read = in_threads(lambda shard: _read_shard(shard, layout), shards, workers=usable_cores())
    parts = list(progress(read, total=len(shards), label="ingest", unit="shards"))
    rejected = [item for _, refused in parts for item in refused]
    entries = [
        (shard, entry) for shard, (usable, _) in zip(shards, parts, strict=True) for entry in usable
    ]
    empty = sum(not usable and not refused for usable, refused in parts)
    if empty == len(shards):
        raise DataNotFound(f"{root}: none of the shards holds a record")
    if not entries:
        raise UnreadableSource(
            f"{rejected[0].id}: {rejected[0].reason}, and so are the other {len(rejected) - 1:,}"
            " records; set data.records.input and data.records.label"
        )
    found = _name_labels([entry.label for _, entry in entries], layout.label)
    rejected += [
        Rejected(id=_id(*entries[place]), reason=reason) for place, reason in found.problems.items()
    ]
    usable = [place for place in range(len(entries)) if place not in found.problems]
    rounded = sum(entries[place][1].rounded for place in usable)
    note = f"{layout.input.name} holds whole numbers of which float32 keeps the first seven digits"
    notes = {**({"empty shard": empty} if empty else {}), **({note: rounded} if rounded else {})}
    if layout.input.form == "encoded":
        images = [_stored_image(*entries[place], found.labels[place]) for place in usable]
        return Files(
            root=root,
            files=images,
            label_kind=found.kind,
            classes=found.classes,
            features=layout.features,
            rejected=rejected,
            notes=notes,
            dialect=found.facts,
        )
    shape, dtype = value_form(layout.input)
    values = [value for _, entry in entries if (value := entry.values) is not None]
    return Arrays(
        values=np.stack([values[place] for place in usable])
        if usable
        else np.empty((0, *shape), dtype),
        labels=[found.labels[place] for place in usable],  # type: ignore[arg-type] - of one kind
        ids=[_id(*entries[place]) for place in usable],
        splits=[entries[place][0].split for place in usable],
        classes=found.classes,
        schema=_schema(shape, dtype, layout.input.name, found.kind),
        rejected=rejected,
        features=layout.features,
        notes=notes,
        dialect=found.facts,
    )


def _schema(shape: tuple[int, ...], dtype: str, name: str, kind: LabelKind) -> Schema:
    """Images, or vectors, whose numbers have no names of their own."""
    if dtype == "uint8":
        return labeled(pixels_feature(shape), kind)
    columns = TableColumns(names=tuple(f"{name}[{place}]" for place in range(shape[-1])))
    return labeled(array_feature("numbers", shape, dtype, columns), kind)


def value_form(feature: InputFeature) -> tuple[tuple[int, ...], str]:
    """Shape and dtype in which stored values become examples: bytes of images as they are, anything
    else as float32.
    """
    shape = feature.shape or ()
    if feature.dtype == "uint8" and len(shape) == _RANK_OF_IMAGES - 1:
        shape = (*shape, 1)
    is_image = feature.dtype == "uint8" and len(shape) == _RANK_OF_IMAGES and shape[-1] in CHANNELS
    return shape, "uint8" if is_image else "float32"


def _id(shard: ExternalShard, entry: _Entry) -> str:
    return f"{shard.name}/{entry.number:08d}"


def _stored_image(shard: ExternalShard, entry: _Entry, label: str | float) -> ExampleFile:
    start, stop = entry.place
    return ExampleFile(
        id=_id(shard, entry),
        path=shard.path,
        offset=start,
        size=stop - start,
        label=label if isinstance(label, str) else "",
        split=shard.split,
        numbers=() if isinstance(label, str) else (label,),
    )


def _read_shard(shard: ExternalShard, layout: ExampleLayout) -> tuple[list[_Entry], list[Rejected]]:
    """The usable records of a shard, and the others with their reasons."""
    data, edges = open_shard(shard)
    entries, rejected = [], []
    for number, (start, stop) in enumerate(itertools.pairwise(edges.tolist())):
        record, problem = read_frame(data, start, stop)
        try:
            if problem:
                raise _Unusable(problem)
            entries.append(_read_entry(record, number, record_offset(start), layout))
        except NotAnExample as error:
            rejected.append(
                Rejected(id=f"{shard.name}/{number:08d}", reason=f"no tf.train.Example: {error}")
            )
        except _Unusable as error:
            rejected.append(Rejected(id=f"{shard.name}/{number:08d}", reason=str(error)))
    return entries, rejected


def _read_entry(record: bytes, number: int, offset: int, layout: ExampleLayout) -> _Entry:
    features = parse_features(record)
    label = _read_label(record, features, layout.label)
    feature = features.get(layout.input.name)
    if feature is None:
        raise _Unusable(f"feature {layout.input.name} missing")
    if layout.input.form == "numbers":
        if feature.kind == "bytes":
            name = layout.input.name
            raise _Unusable(f"feature {name} has another kind: bytes, not numbers")
        return _entry_of(number, label, read_numbers(record, feature), layout.input)
    if feature.kind != "bytes":
        raise _Unusable(f"feature {layout.input.name} has another kind: {feature.kind}, not bytes")
    places = bytes_places(record, feature)
    if len(places) != 1 or places[0][0] == places[0][1]:
        raise _Unusable(
            f"feature {layout.input.name} is empty"
            if len(places) <= 1
            else f"feature {layout.input.name} has several values: {len(places)}"
        )
    start, stop = places[0]
    if layout.input.form == "encoded":
        return _Entry(number=number, label=label, place=(offset + start, offset + stop))
    return _entry_of(number, label, _read_bytes(record[start:stop], layout.input), layout.input)


def _entry_of(number: int, label: str | float, values: np.ndarray, feature: InputFeature) -> _Entry:
    """A record that holds these values."""
    stored = _in_form(values, feature)
    return _Entry(number=number, label=label, values=stored, rounded=_is_rounded(values))


def _read_label(record: bytes, features: dict[str, Feature], layout: LabelFeature) -> str | float:
    """The label of a record: a class by number or text, or a number."""
    feature = features.get(layout.name)
    if feature is None:
        raise _Unusable(f"label missing: no feature {layout.name}")
    if feature.kind != layout.kind:
        raise _Unusable(f"label has another kind: {feature.kind}, not {layout.kind}")
    values: list[Any]
    if feature.kind == "bytes":
        texts = [record[start:stop] for start, stop in bytes_places(record, feature)]
        if layout.arrays:
            arrays = [read_array(text) for text in texts]
            texts = [value for found in arrays if found for value in found[1].ravel().tolist()]
        values = [_decode(text) if isinstance(text, bytes) else text for text in texts]
    else:
        values = read_numbers(record, feature).tolist()
    if len(values) != 1:
        raise _Unusable(f"label has several values: {len(values)}" if values else "label missing")
    if isinstance(values[0], float) and not np.isfinite(values[0]):
        raise _Unusable("label is no finite number")
    return values[0]


def _decode(text: bytes) -> str:
    return text.decode("utf-8", "backslashreplace").strip()


def _read_bytes(data: bytes, feature: InputFeature) -> np.ndarray:
    """Values stored as bytes, of the layout's dtype."""
    if feature.form == "array":
        found = read_array(data)
        if found is None or found[0] != feature.stored:
            other = found[0] if found else "no array"
            raise _Unusable(f"feature {feature.name} is another array: {other}")
        return found[1]
    try:
        unpacked = zlib.decompress(data) if feature.form == "zlib" else data
        return np.frombuffer(unpacked, feature.dtype)
    except (zlib.error, ValueError) as error:
        raise _Unusable(f"feature {feature.name} cannot be read: {error}") from error


def _in_form(values: np.ndarray, feature: InputFeature) -> np.ndarray:
    shape, dtype = value_form(feature)
    if values.size != int(np.prod(shape)):
        raise _Unusable(
            f"feature {feature.name} has another length than its shape: {values.size} values"
        )
    with np.errstate(over="ignore"):  # what float32 cannot hold is infinite, and reported below
        converted = values.astype(dtype, copy=False).reshape(shape)
    if dtype == "float32" and not np.isfinite(converted).all():
        raise _Unusable(f"feature {feature.name} is not finite")
    return converted


def _is_rounded(values: np.ndarray) -> bool:
    """Whether float32 holds other numbers than the whole ones of these."""
    if values.dtype.kind not in "iuf" or np.can_cast(values.dtype, np.float32):
        return False
    whole = values[values % 1 == 0]
    with np.errstate(invalid="ignore"):  # of what rounds up to 2**63
        return bool((whole.astype(np.float32).astype(whole.dtype) != whole).any())


def _name_labels(labels: Sequence[str | float], label: LabelFeature) -> ReadLabels:
    """Labels by name or as numbers. Those that are -1 next to named classes keep that name."""
    if not label.names or label.asked == "number":
        return read_labels(f"the feature {label.name}", labels, asked=label.asked)
    count, numbers = len(label.names), set(labels)
    if count in numbers and 0 not in numbers:
        raise UnreadableSource(
            f"{label.named_by} names {count} classes, from 0 to {count - 1}, and the feature"
            f" {label.name} counts from 1 to {count}: every example would get its neighbor's"
            " name. Put a first line for class 0, such as `background`"
        )
    names: dict[Any, str] = {-1: UNLABELED, **dict(enumerate(label.names))}
    names |= {name: name for name in label.names}
    problems = {
        place: f"label beyond the classes: {value}, {label.named_by} names {count}"
        for place, value in enumerate(labels)
        if value not in names
    }
    named = [names.get(value, str(value)) for value in labels]
    return ReadLabels(kind="class", labels=named, classes=[*label.names], problems=problems)
