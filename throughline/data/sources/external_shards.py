"""Reads the examples of TFRecord shards that others wrote, once their layout is known.

`tfrecord` infers the layout, `tfds` reads it from metadata. Encoded images stay where they are;
values of one shape become one array. A shard that cannot be read to its end is refused, since the
missing records are unknown.
"""

import itertools
import mmap
import shlex
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from throughline.data.encodings.arrays import CHANNELS, array_feature, pixels_feature
from throughline.data.encodings.base import Reason, RejectedValue
from throughline.data.encodings.labels import UNLABELED, ReadLabels, labeled, read_labels
from throughline.data.encodings.stored_arrays import ArrayForm, read_array
from throughline.data.found import Arrays, ExampleFile, Files, Found, Rejected
from throughline.data.shards import example_features
from throughline.data.shards.example_features import Feature, FeatureKind, NotAnExample
from throughline.data.shards.tfrecord import find_edges, map_file, read_frame, record_offset
from throughline.plan.schema import TableColumns
from throughline.settings import DataSettings
from throughline.shared.errors import DataNotFound, UnreadableSource
from throughline.shared.limits import usable_cores
from throughline.shared.progress import in_threads, progress

GZIP, ZLIB = b"\x1f\x8b", b"x"
_RANK_OF_IMAGES = 3
Form = Literal["encoded", "bytes", "zlib", "array", "numbers"]


@dataclass(frozen=True, kw_only=True)
class ExternalShard:
    """A TFRecord file that another program wrote.

    `name` is its path below the data folder; `records` is the count in its metadata, if any.
    """

    path: Path
    name: str
    split: str | None
    records: int | None = None


@dataclass(frozen=True, kw_only=True)
class InputFeature:
    """The feature that is the model's input.

    Its form is encoded (an image file), bytes or zlib (values of `dtype` in C order), array (a
    serialized array of the form `stored`), or numbers (a list of floats or integers). `shape` is
    None for encoded images.
    """

    name: str
    form: Form
    shape: tuple[int, ...] | None = None
    dtype: str = "float32"
    stored: ArrayForm | None = None


@dataclass(frozen=True, kw_only=True)
class LabelFeature:
    """The feature to predict.

    With `arrays`, bytes are serialized arrays of one value. `names` are the classes in order, from
    the file `named_by`; empty if no file names them.
    """

    name: str
    kind: FeatureKind
    arrays: bool = False
    names: tuple[str, ...] = ()
    named_by: str = ""


@dataclass(frozen=True, kw_only=True)
class _Entry:
    id: str
    shard: ExternalShard
    label: str | float
    place: tuple[int, int] = (0, 0)  # start and stop of an encoded image in the shard
    values: np.ndarray | None = None
    rounded: bool = False  # whether float32 changes its whole numbers


def open_shard(path: Path) -> tuple[mmap.mmap | bytes, np.ndarray]:
    """Map a shard; return its bytes, and the offsets of its records' frames (records + 1,)."""
    try:
        data = map_file(path)
    except OSError as error:
        raise DataNotFound(f"{path} cannot be read: {error.strerror}") from error
    edges, problem = find_edges(data)
    if problem and data[:2] == GZIP:
        name = shlex.quote(str(path))  # gunzip needs the suffix .gz
        unpack = (
            f"gunzip {name}" if path.suffix == ".gz" else f"mv {name} {name}.gz && gunzip {name}.gz"
        )
        raise UnreadableSource(
            f"{path} is compressed with GZIP, but examples are read in place, at their offsets,"
            f" from uncompressed TFRecord files: unpack it, such as with `{unpack}`"
        )
    if problem:
        remedy = "get the file again, or remove it to do without it"
        if len(edges) == 1 and "checksum" in problem:
            packed = data[:1] == ZLIB
            zlib_too = ", or is compressed with ZLIB (then write it uncompressed)" * packed
            remedy = (
                f"it is not a TFRecord file{zlib_too}; remove it, or set data.path to the folder of"
                " shards"
            )
        raise UnreadableSource(f"{path}: {problem}; {remedy}")
    return data, edges


def read_examples(
    settings: DataSettings,
    shards: Sequence[ExternalShard],
    wanted: InputFeature,
    label: LabelFeature,
) -> Files | Arrays:
    """Read the input `wanted` and the label of all records."""
    root = Path(settings.path)
    read_shard = partial(_read_shard, wanted=wanted, label=label)
    read = in_threads(read_shard, shards, workers=usable_cores())
    parts = list(progress(read, total=len(shards), label="ingest", unit="shards"))
    rejected = [item for _, refused in parts for item in refused]
    entries = [entry for usable, _ in parts for entry in usable]
    empty = sum(not usable and not refused for usable, refused in parts)
    if empty == len(shards):
        raise DataNotFound(f"{root}: none of the shards holds a record; get them again")
    if not entries:
        raise UnreadableSource(
            f"{root}: no record can be used; the first of {len(rejected):,}, {rejected[0].id}:"
            f" {rejected[0].reason}; set data.records.input and data.records.label"
        )
    found = _name_labels([entry.label for entry in entries], label, settings.label_kind)
    rejected += [
        Rejected(id=entries[place].id, reason=reason) for place, reason in found.problems.items()
    ]
    places = [place for place in range(len(entries)) if place not in found.problems]
    usable = [entries[place] for place in places]
    labels: list[Any] = [found.labels[place] for place in places]
    notes = {
        "empty shard": empty,
        f"{wanted.name} holds whole numbers of which float32 keeps the first seven digits": sum(
            entry.rounded for entry in usable
        ),
    }
    said = Found(
        rejected=rejected,
        notes={note: count for note, count in notes.items() if count},
        dialect=found.facts,
    )
    if wanted.form == "encoded":
        return Files(
            **vars(said),
            root=root,
            files=[
                ExampleFile(
                    id=entry.id,
                    path=entry.shard.path,
                    offset=entry.place[0],
                    size=entry.place[1] - entry.place[0],
                    label=value if found.kind == "class" else "",
                    split=entry.shard.split,
                    numbers=() if found.kind == "class" else (value,),
                )
                for entry, value in zip(usable, labels, strict=True)
            ],
            label_kind=found.kind,
            classes=found.classes,
        )
    shape, dtype = _value_form(wanted)
    feature = pixels_feature(shape)
    if dtype != "uint8":
        names = tuple(f"{wanted.name}[{place}]" for place in range(shape[-1]))
        feature = array_feature("numbers", shape, dtype, TableColumns(names=names))
    return Arrays(
        **vars(said),
        values=np.array([entry.values for entry in usable], dtype).reshape(len(usable), *shape),
        labels=labels,
        ids=[entry.id for entry in usable],
        splits=[entry.shard.split for entry in usable],
        classes=found.classes,
        schema=labeled(feature, found.kind),
    )


def _value_form(feature: InputFeature) -> tuple[tuple[int, ...], str]:
    """Return the shape and dtype of examples: uint8 for 8-bit images, float32 for all others."""
    shape = feature.shape or ()
    if feature.dtype == "uint8" and len(shape) == _RANK_OF_IMAGES - 1:
        shape = (*shape, 1)
    is_image = feature.dtype == "uint8" and len(shape) == _RANK_OF_IMAGES and shape[-1] in CHANNELS
    return shape, "uint8" if is_image else "float32"


def _read_shard(
    shard: ExternalShard, *, wanted: InputFeature, label: LabelFeature
) -> tuple[list[_Entry], list[Rejected]]:
    data, edges = open_shard(shard.path)
    if shard.records not in (None, len(edges) - 1):
        raise UnreadableSource(
            f"{shard.path} holds {len(edges) - 1:,} records, but dataset_info.json says"
            f" {shard.records:,}; one is incomplete or of another dataset: get both again"
        )
    entries, rejected = [], []
    for number, (start, stop) in enumerate(itertools.pairwise(edges.tolist())):
        record, problem = read_frame(data, start, stop)
        name = f"{shard.name}/{number:08d}"
        try:
            if problem:
                raise RejectedValue(problem)
            features = example_features.parse_features(record)
            entry = _Entry(id=name, shard=shard, label=_read_label(record, features, label))
            value = _read_input(record, features, wanted)
            if isinstance(value, tuple):
                first = record_offset(start)
                entry = replace(entry, place=(first + value[0], first + value[1]))
            else:
                stored = _in_form(value, wanted)
                entry = replace(entry, values=stored, rounded=_is_rounded(value))
            entries.append(entry)
        except NotAnExample as error:
            reason = Reason("not a tf.train.Example", f": {error}")
            rejected.append(Rejected(id=name, reason=reason))
        except RejectedValue as error:
            rejected.append(Rejected(id=name, reason=error.reason))
    return entries, rejected


def _read_label(record: bytes, features: Mapping[str, Feature], label: LabelFeature) -> str | float:
    feature = features.get(label.name)
    if feature is None:
        raise RejectedValue("label missing", f": no feature {label.name}")
    if feature.kind != label.kind:
        raise RejectedValue("label has the wrong kind", f": {feature.kind}, not {label.kind}")
    if feature.kind == "bytes":
        values: list[Any] = [
            record[start:stop] for start, stop in example_features.bytes_places(record, feature)
        ]
        if label.arrays:
            arrays = filter(None, map(read_array, values))
            values = [value for _, array in arrays for value in array.ravel().tolist()]
    else:
        values = example_features.read_numbers(record, feature).tolist()
    if not values:
        raise RejectedValue("label missing")
    if len(values) > 1:
        raise RejectedValue("label has several values", f": {len(values)}")
    if isinstance(values[0], float) and not np.isfinite(values[0]):
        raise RejectedValue("label is not a finite number")
    if isinstance(values[0], bytes):
        return values[0].decode("utf-8", "backslashreplace").strip()
    return values[0]


def _read_input(
    record: bytes, features: Mapping[str, Feature], wanted: InputFeature
) -> np.ndarray | tuple[int, int]:
    """Return the values of the input, or the place of an encoded image in the record."""
    feature, what = features.get(wanted.name), f"feature {wanted.name}"
    if feature is None:
        raise RejectedValue(f"{what} missing")
    needed = "numbers" if wanted.form == "numbers" else "bytes"
    if (feature.kind == "bytes") != (needed == "bytes"):
        raise RejectedValue(f"{what} has the wrong kind", f": {feature.kind}, not {needed}")
    if needed == "numbers":
        return example_features.read_numbers(record, feature)
    places = example_features.bytes_places(record, feature)
    if len(places) > 1:
        raise RejectedValue(f"{what} has several values", f": {len(places)}")
    start, stop = places[0] if places else (0, 0)
    if start == stop:
        raise RejectedValue(f"{what} is empty")
    if wanted.form == "encoded":
        return start, stop
    data = record[start:stop]
    if wanted.form == "array":
        form, values = read_array(data) or ("not an array", np.empty(0))
        if form != wanted.stored:
            raise RejectedValue(f"{what} differs from the others", f": {form}")
        return values
    try:
        unpacked = zlib.decompress(data) if wanted.form == "zlib" else data
        return np.frombuffer(unpacked, wanted.dtype)
    except (zlib.error, ValueError) as error:
        raise RejectedValue(f"{what} cannot be read", f": {error}") from error


def _in_form(values: np.ndarray, feature: InputFeature) -> np.ndarray:
    shape, dtype = _value_form(feature)
    if values.size != int(np.prod(shape)):
        raise RejectedValue(
            f"feature {feature.name} has another length than its shape", f": {values.size} values"
        )
    with np.errstate(over="ignore"):  # too large values become infinite, and are rejected below
        converted = values.astype(dtype, copy=False).reshape(shape)
    if dtype == "float32" and not np.isfinite(converted).all():
        raise RejectedValue(f"feature {feature.name} is not finite")
    return converted


def _is_rounded(values: np.ndarray) -> bool:
    """Return whether float32 changes any of the whole numbers."""
    if values.dtype.kind not in "iuf" or np.can_cast(values.dtype, np.float32):
        return False
    whole = values[values % 1 == 0]
    with np.errstate(invalid="ignore"):  # for values that round up to 2**63
        return bool((whole.astype(np.float32).astype(whole.dtype) != whole).any())


def _name_labels(labels: Sequence[str | float], label: LabelFeature, asked: str) -> ReadLabels:
    """Return labels as class names or numbers; among named classes, -1 stays -1 (unlabeled)."""
    if not label.names or asked == "number":
        return read_labels(f"the feature {label.name}", labels, asked=asked)
    count, numbers = len(label.names), set(labels)
    if count in numbers and 0 not in numbers:
        raise UnreadableSource(
            f"{label.named_by} names {count} classes, from 0 to {count - 1}, and the feature"
            f" {label.name} counts from 1 to {count}: every example would get the name of the"
            " next class. Add a first line for class 0, such as `background`"
        )
    names: dict[Any, str] = {-1: UNLABELED, **dict(enumerate(label.names))}
    names |= {name: name for name in label.names}
    problems: dict[int, str] = {
        place: Reason("label beyond the classes", f": {value}, {label.named_by} names {count}")
        for place, value in enumerate(labels)
        if value not in names
    }
    named = [names.get(value, str(value)) for value in labels]
    return ReadLabels(kind="class", labels=named, classes=[*label.names], problems=problems)
