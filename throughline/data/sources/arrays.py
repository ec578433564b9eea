"""Images in NumPy files: an .npz archive, or a folder with one .npy per array.

`data.features` and `data.labels` name the arrays of images and labels. They need not be set for
unambiguous names, such as `x_train`, `test_labels` and `images`.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from throughline.data.encodings import array_files
from throughline.data.encodings.array_files import ArrayHeader
from throughline.data.encodings.arrays import as_images, pixels_feature
from throughline.data.encodings.labels import labeled, list_labels, read_labels
from throughline.data.found import Arrays
from throughline.data.split_names import (
    SPLITS_BY_WORD,
    WORD,
    SplitName,
    leave_validation_open,
    read_name,
)
from throughline.settings import DataSettings
from throughline.shared.errors import UnreadableSource

_UNNAMED = ("x", "y")  # defaults of `data.features` and `data.labels`
_INPUTS = {
    *("x", "image", "images", "img", "imgs", "picture", "pictures", "photo", "photos", "pixels"),
    *("data", "dataset", "feature", "features", "input", "inputs", "sample", "samples"),
}
_LABELS = {"y", "t", "label", "labels", "target", "targets", "class", "classes"}
_IMAGE_RANKS = (3, 4)  # of (examples, height, width[, channels])


class ArrayPair(NamedTuple):
    """Names of the arrays of one split; `split` is None if the names contain none."""

    split: str | None
    features: str
    labels: str

    def __str__(self) -> str:
        return f"{self.split or 'all splits'}: images of {self.features}, labels of {self.labels}"


def scan(settings: DataSettings) -> Arrays:
    """Read uint8 images (examples, height, width[, channels]) and labels (examples,)."""
    path, notes = Path(settings.path), Counter[str]()
    for key, name in (("features", settings.features), ("labels", settings.labels)):
        if path.is_dir() and Path(name).name != name:
            raise UnreadableSource(
                f"data.{key}: {name} is not the name of an array; for a file NAME.npy in {path},"
                " set it to NAME"
            )
    array_files.refuse_single(path)
    found = array_files.list_arrays(path)
    pairs = _choose(path, settings, found)
    images = []
    values: list[str | float] = []
    splits, ids = [], []
    for pair in pairs:
        part = array_files.read_array(path, pair.features)
        part, note = as_images(part, f"{path}: {pair.features}")
        images.append(part)
        labels = array_files.read_array(path, pair.labels)
        read, more = list_labels(labels, len(part), f"{path}: {pair.labels}")
        values += read
        notes.update(dict.fromkeys(filter(None, (note, more)), len(read)))
        if part.shape[1:] != images[0].shape[1:]:
            raise UnreadableSource(
                f"{path}: {pairs[0].features} and {pair.features} hold images of different sizes,"
                f" {images[0].shape[1:]} and {part.shape[1:]}; all must have one size"
            )
        splits += [pair.split] * len(part)
        above = f"{pair.split}/" if pair.split else ""
        ids += [f"{above}{place:08d}" for place in range(len(part))]
    where = f"{path}: {' and '.join(pair.labels for pair in pairs)}"
    read = read_labels(where, values, asked=settings.label_kind)
    if read.problems:
        raise UnreadableSource(
            f"{where}: {next(iter(read.problems.values()))}",
            "set data.label_kind: number to predict them",
        )
    unread = [name for name in found if not any(name in pair[1:] for pair in pairs)]
    shown = array_files.list_headers(found, unread)
    return Arrays(
        values=images[0] if len(images) == 1 else array_files.JoinedArrays(images),
        labels=read.labels,
        ids=ids,
        splits=leave_validation_open(splits),
        classes=read.classes,
        schema=labeled(pixels_feature(images[0].shape[1:]), read.kind),
        notes=notes,
        dialect=[*(str(pair) for pair in pairs if pair[1:] != _UNNAMED), *read.facts],
        warnings=[f"arrays that are not read: {shown}"] if unread else [],
    )


def _choose(
    path: Path, settings: DataSettings, found: Mapping[str, ArrayHeader]
) -> list[ArrayPair]:
    named = (settings.features, settings.labels)
    if not found or named != _UNNAMED or found.keys() >= {*named}:
        return [ArrayPair(None, *named)]
    pairs = _choose_by_name(found)
    if not pairs:
        raise UnreadableSource(
            f"{path}: the choice of arrays for images and labels is not certain: there is no array"
            f" {' or '.join(name for name in named if name not in found)}, but"
            f" {array_files.list_headers(found, found)}",
            "set data.features and data.labels, or name the arrays x_train, y_train, x_test …",
        )
    return pairs


def _choose_by_name(found: Mapping[str, ArrayHeader]) -> list[ArrayPair]:
    """Return the arrays of each split; [] if in doubt. If no name is known, shapes decide."""
    words = {name: _list_words(name, read_name(name)) for name in found}
    shared = set.intersection(*words.values()) if len(found) > 1 else set()
    named: dict[tuple[str | None, bool], list[str]] = defaultdict(list)
    for name in found:
        said = read_name(name)
        rest = words[name] - shared
        if rest and rest <= _INPUTS | _LABELS and not (said.words and not said.split):
            named[said.split, bool(rest & _LABELS)].append(name)
    pairs: list[ArrayPair] = []
    for split in dict.fromkeys(split for split, _ in named):
        fitting = [
            ArrayPair(split, features, labels)
            for features in named[split, False]
            for labels in named[split, True]
            if found[features].shape[:1] == found[labels].shape[:1]
        ]
        if len(fitting) > 1:
            return []
        pairs += fitting
    splits = {pair.split for pair in pairs}
    if not pairs and not named:
        return _choose_by_shape(found)
    certain = splits == {None} or ("train" in splits and None not in splits)
    return sorted(pairs, key=lambda pair: pair.split or "") if certain else []


def _choose_by_shape(found: Mapping[str, ArrayHeader]) -> list[ArrayPair]:
    images = [
        name
        for name, header in found.items()
        if header.dtype == "uint8" and len(header.shape) in _IMAGE_RANKS
    ]
    others = [name for name in found if name not in images]
    if (len(images), len(others)) != (1, 1):
        return []
    image, label = found[images[0]].shape, found[others[0]].shape
    fits = image[:1] == label[:1] and len(label) < min(_IMAGE_RANKS)
    return [ArrayPair(None, images[0], others[0])] if fits else []


def _list_words(name: str, said: SplitName) -> set[str]:
    """Return the words of a name without its split's, which may be joined to another: `Xtrain`."""
    known = "|".join(sorted(SPLITS_BY_WORD, key=len, reverse=True))
    for word in said.words:
        name = name.replace(word, re.sub(known, " ", word, count=1, flags=re.IGNORECASE), 1)
    return {word.lower() for word in WORD.findall(name)}
