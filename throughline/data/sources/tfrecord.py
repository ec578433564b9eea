"""Reads TFRecord shards of tf.train.Example that others wrote, in place.

The first records of each shard show what the records hold. Splits come from the names of files and
folders (`train-00000-of-00064`, `validation/part-3`), or else ingest assigns them. Classes are
texts, or integers, which a `labels.txt` next to the shards may name.
"""

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from throughline.data.encodings import stored_arrays
from throughline.data.found import Arrays, Files, count_kinds, refuse_odd_names
from throughline.data.shards import example_features
from throughline.data.shards.example_features import Feature, FeatureKind, NotAnExample
from throughline.data.shards.tfrecord import read_frame
from throughline.data.sources.external_shards import (
    ExternalShard,
    InputFeature,
    LabelFeature,
    open_shard,
    read_examples,
)
from throughline.data.split_names import split_files
from throughline.settings import DataSettings, RecordSettings
from throughline.shared.errors import DataNotFound, UnreadableSource, did_you_mean

RECORDS_LOOKED_AT = 16  # first records of each shard
# Usual names of the model's input and of the label, the more usual ones first.
INPUTS = (("image", "image/encoded"), ("features", "x", "image_raw"))
LABELS = (("label", "image/class/label"), ("labels", "y", "image/class/text"))
_SHARD_NAME = re.compile(r"\.(tfrecords?|tfrec)\b|-\d{5}-of-\d{5}$")


@dataclass(frozen=True, kw_only=True)
class FeatureSummary:
    """The values that the first records hold under one name.

    Attributes:
      lengths: numbers of values in a record or, for a single bytes value, of bytes.
      image: the image format that the bytes begin with, if any.
      arrays: number of values that are serialized arrays, by form.
      floats: whether all its bytes values look like arrays of float32.
    """

    kind: FeatureKind
    lengths: frozenset[int]
    image: str = ""
    single: bool = True
    arrays: Counter[stored_arrays.ArrayForm] = field(default_factory=Counter)
    floats: bool = True

    def __str__(self) -> str:
        low, high = min(self.lengths), max(self.lengths)
        extent = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        if self.arrays:
            return " or ".join(str(form) for form, _ in self.arrays.most_common(2))
        if self.kind == "bytes" and self.single:
            return f"bytes: {self.image or 'text or values'}, {extent} bytes"
        return f"{self.kind} × {extent}"


def scan(settings: DataSettings) -> Files | Arrays:
    root = Path(settings.path)
    paths = list_shards(root)
    base = root if root.is_dir() else root.parent
    refuse_odd_names(root, [str(path.relative_to(base)) for path in paths])
    splits, left_out = split_files(
        root, paths, settings.leave_out, count=lambda path: len(open_shard(path)[1]) - 1
    )
    shards = [
        ExternalShard(path=path, name=path.relative_to(base).as_posix(), split=split)
        for path, split in splits.items()
    ]
    summaries = {shard: summarize(shard.path) for shard in shards}
    features = merge_summaries(list(summaries.values()))
    if not features:
        raise DataNotFound(f"{root}: none of its shards holds a readable record; get them again")
    name, label = choose_features(root, settings.records, features)
    _check_label(label, features[label])
    for shard, found in summaries.items():
        _check_schema(shard, found, {name: features[name], label: features[label]})
    names, named_by = read_class_names(root, label)
    wanted = infer_input(name, features[name], settings.records)
    predicted = LabelFeature(
        name=label,
        kind=features[label].kind,
        arrays=bool(features[label].arrays),
        names=names,
        named_by=named_by,
    )
    others = {*root.rglob("*")} - {*paths, root / named_by}
    unwatched = _find_names(base, label) if root.is_file() else None
    return replace(
        read_examples(settings, shards, wanted, predicted),
        features={feature: str(summary) for feature, summary in sorted(features.items())},
        skipped=count_kinds(
            path
            for path in sorted(others)
            if not _is_hidden(path, root) and (path.is_symlink() or not path.is_dir())
        ),
        left_out=left_out,
        warnings=[
            f"{unwatched.name} is not read, since data.path names the shard alone; set data.path to"
            " the folder that holds both, to read the names of classes"
        ]
        if unwatched
        else [],
    )


def list_shards(root: Path) -> list[Path]:
    """Return the TFRecord files below a folder, without hidden ones, or the one file."""
    if not root.exists():
        raise DataNotFound(
            f"{root} does not exist; `data.path` must be a TFRecord file, or a folder of them"
        )
    paths = [
        path
        for path in sorted(root.rglob("*"))
        if _SHARD_NAME.search(path.name) and not _is_hidden(path, root) and path.is_file()
    ]
    if not root.is_dir():
        paths = [root]
    if not paths:
        raise DataNotFound(
            f"{root} holds no TFRecord file (*.tfrecord, *.tfrec, *-00000-of-00001); set"
            " `data.path` to the folder that does"
        )
    return paths


def summarize(path: Path) -> dict[str, FeatureSummary]:
    """Summarize a shard's first intact records; UnreadableSource if none is an Example."""
    data, edges = open_shard(path)
    parts, problem = [], ""
    for start, stop in itertools.pairwise(edges[: RECORDS_LOOKED_AT + 1].tolist()):
        record, damage = read_frame(data, start, stop)
        if damage:
            continue
        try:
            features = example_features.parse_features(record).items()
            parts.append({name: _summarize_one(record, feature) for name, feature in features})
        except example_features.NotOneExample as error:
            raise UnreadableSource(
                f"{path}: {error}",
                "only tf.train.Example can be read: write the values as features of one, such as"
                " with tf.io.serialize_tensor, padded to one length",
            ) from error
        except NotAnExample as error:
            found = stored_arrays.name_content(record)
            problem = f"{error}{found and f' (it is {found})'}"
    if problem and not parts:
        raise UnreadableSource(
            f"{path}: its records are not tf.train.Example, which is needed: {problem}"
        )
    return merge_summaries(parts)


def _summarize_one(record: bytes, feature: Feature) -> FeatureSummary:
    if feature.kind != "bytes":
        count = len(example_features.read_numbers(record, feature))
        return FeatureSummary(kind=feature.kind, lengths=frozenset([count]))
    places = example_features.bytes_places(record, feature)
    if len(places) != 1:
        return FeatureSummary(kind="bytes", lengths=frozenset([len(places)]), single=False)
    data = record[slice(*places[0])]
    array = stored_arrays.read_array(data)
    return FeatureSummary(
        kind="bytes",
        lengths=frozenset([len(data)]),
        image=stored_arrays.find_image(data),
        arrays=Counter([array[0]] if array else []),
        floats=stored_arrays.look_like_floats(data),
    )


def merge_summaries(parts: Sequence[Mapping[str, FeatureSummary]]) -> dict[str, FeatureSummary]:
    """Merge summaries of records or shards by feature; only a feature's first kind counts."""
    merged: dict[str, FeatureSummary] = {}
    for part in parts:
        for name, found in part.items():
            known = merged.setdefault(name, found)
            if found is not known and found.kind == known.kind:
                merged[name] = replace(
                    known,
                    lengths=known.lengths | found.lengths,
                    image=known.image or found.image,
                    single=known.single and found.single,
                    arrays=known.arrays + found.arrays,
                    floats=known.floats and found.floats,
                )
    return merged


def _check_schema(
    shard: ExternalShard, found: Mapping[str, FeatureSummary], needed: Mapping[str, FeatureSummary]
) -> None:
    for name, summary in needed.items() if found else ():
        if name not in found or found[name].kind != summary.kind:
            what = (
                f"{name} is of kind {found[name].kind}, but {summary.kind} in others"
                if name in found
                else f"there is no {name}, only {', '.join(sorted(found))}"
            )
            raise UnreadableSource(
                f"{shard.path} has another schema than the other shards: {what}. Put datasets of"
                " different schemas into separate folders"
            )


def choose_features(
    root: Path,
    records: RecordSettings,
    features: Mapping[str, object],
    *,
    known: tuple[str, str] = ("", ""),
) -> tuple[str, str]:
    """Return the names of input and label: by the settings, by `known`, or the usual ones."""
    name = _choose("input", records.input or known[0], features, usual=INPUTS)
    others = {other: summary for other, summary in features.items() if other != name}
    if not others:
        raise UnreadableSource(
            f"{root}: the records hold {name} ({features[name]}) and no other feature; an example"
            " needs a label, too: write the shards with one, or train from class folders"
        )
    return name, _choose("label", records.label or known[1], others, usual=LABELS)


def _choose(
    key: str, named: str, features: Mapping[str, object], *, usual: Sequence[Sequence[str]]
) -> str:
    key = f"data.records.{key}"
    listed = "; ".join(f"{name} ({summary})" for name, summary in sorted(features.items()))
    if named in features:
        return named
    if named:
        raise UnreadableSource(
            f"{key}: no record has a feature {named}; the records hold: {listed};"
            f" {did_you_mean(named, list(features))}"
        )
    for names in usual:
        present = [name for name in names if name in features]
        if len(present) == 1:
            return present[0]
        if present:
            raise UnreadableSource(
                f"{key}: {' and '.join(present)} could both be meant; set it to one of them. The"
                f" records hold: {listed}"
            )
    raise UnreadableSource(
        f"{key} is not set, and no feature has one of the usual names"
        f" ({', '.join(itertools.chain(*usual))}). The records hold: {listed}"
    )


def _check_label(name: str, summary: FeatureSummary) -> None:
    """Refuse a feature that has several values in every record, such as one-hot vectors."""
    several = summary.kind != "bytes" or not summary.single
    sizes = {form.size for form in summary.arrays} or (summary.lengths if several else {1})
    if min(sizes) > 1:
        raise UnreadableSource(
            f"data.records.label: {name} holds several values in every record ({summary}), but a"
            " label is one value: an integer or a text for a class, or a number to predict. Write"
            " the number of the class in place of a one-hot vector, or set the key to another"
            " feature"
        )


def infer_input(name: str, summary: FeatureSummary, records: RecordSettings) -> InputFeature:
    shape = tuple(records.shape)
    if summary.arrays:
        form, shape = stored_arrays.choose_array(name, summary.arrays, shape)
        return InputFeature(name=name, form="array", shape=shape, dtype=form.dtype, stored=form)
    if summary.kind == "bytes" and (summary.image or name.endswith("encoded")):
        return InputFeature(name=name, form="encoded")
    if summary.kind == "bytes" and not summary.single:
        raise UnreadableSource(
            f"data.records.input: {name} holds several values in one record ({summary}), but an"
            " example is one image or one array; write a record for each, or set the key to"
            " another feature"
        )
    if len(summary.lengths) > 1:
        raise UnreadableSource(
            f"data.records.input: {name} differs in length from record to record ({summary}); an"
            " encoded image may, but values must have one shape"
        )
    (length,) = summary.lengths
    if summary.kind == "bytes":
        floats, dtype = summary.floats, records.dtype
        shape, dtype = stored_arrays.choose_form(
            name, length, floats=floats, shape=shape, dtype=dtype
        )
        return InputFeature(name=name, form="bytes", shape=shape, dtype=dtype)
    stored_arrays.check_shape(name, shape, length)
    return InputFeature(name=name, form="numbers", shape=shape or (length,))


def read_class_names(folder: Path, label: str) -> tuple[tuple[str, ...], str]:
    """Return the names of classes and the name of their file; both are empty without a file.

    The file is `LABEL.labels.txt` or `labels.txt`, with a class per line.
    """
    path = _find_names(folder, label)
    if path is None:
        return (), ""
    try:
        text = path.read_text(encoding="utf-8-sig").rstrip()
        names = tuple(line.strip() for line in text.splitlines())
    except ValueError as error:
        raise UnreadableSource(f"{path} is not UTF-8 text: {error}") from error
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise UnreadableSource(f"{path} names the class {twice!r} twice; rename one")
    return names, path.name


def _find_names(folder: Path, label: str) -> Path | None:
    candidates = [folder / f"{label.replace('/', '_')}.labels.txt", folder / "labels.txt"]
    return next((path for path in candidates if path.is_file()), None)


def _is_hidden(path: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(root).parts)
