"""Images in NumPy files: an .npz archive, or a folder with one .npy per array.

`data.features` and `data.labels` name the arrays of images and labels; usual names need not be set.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from throughline.data.encodings import array_files
from throughline.data.encodings.array_names import ArrayPair, choose_arrays
from throughline.data.encodings.arrays import as_images, pixels_feature
from throughline.data.encodings.labels import labeled, list_labels, read_labels
from throughline.data.found import Arrays
from throughline.data.split_names import (
    SPLITS_BY_WORD,
    leave_validation_open,
    read_name,
)
from throughline.settings import DataSettings
from throughline.shared.errors import UnreadableSource

_UNNAMED = ("x", "y")  # defaults of `data.features` and `data.labels`


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
    for pair in pairs:
        of_pair, note = as_images(
            array_files.read_array(path, pair.features), f"{path}: {pair.features}"
        )
        images.append(of_pair)
        labels = array_files.read_array(path, pair.labels)
        read, more = list_labels(labels, len(of_pair), f"{path}: {pair.labels}")
        values += read
        notes.update(dict.fromkeys(filter(None, (note, more)), len(read)))
        if of_pair.shape[1:] != images[0].shape[1:]:
            raise UnreadableSource(
                f"{path}: {pairs[0].features} and {pair.features} hold images of different sizes,"
                f" {images[0].shape[1:]} and {of_pair.shape[1:]}; all must have one size"
            )
    where = f"{path}: {' and '.join(pair.labels for pair in pairs)}"
    read = read_labels(where, values, asked=settings.label_kind)
    if read.problems:
        raise UnreadableSource(
            f"{where}: {next(iter(read.problems.values()))}",
            "set data.label_kind: number to predict them",
        )
    unread = [name for name in found if not any(name in pair[1:] for pair in pairs)]
    shown = array_files.list_headers(found, unread)
    splits, ids = [], []
    for pair, part in zip(pairs, images, strict=True):
        splits += [pair.split] * len(part)
        above = f"{pair.split}/" if pair.split else ""
        ids += [f"{above}{place:08d}" for place in range(len(part))]
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
    path: Path, settings: DataSettings, found: Mapping[str, array_files.ArrayHeader]
) -> list[ArrayPair]:
    named = (settings.features, settings.labels)
    if not found or named != _UNNAMED or found.keys() >= {*named}:
        return [ArrayPair(None, *named)]
    pairs = choose_arrays(found, read_name, SPLITS_BY_WORD)
    if not pairs:
        raise UnreadableSource(
            f"{path}: which arrays are the images and the labels is not certain: no array"
            f" {' or '.join(name for name in named if name not in found)}; there are"
            f" {array_files.list_headers(found, found)}",
            "set data.features and data.labels, or name the arrays x_train, y_train, x_test …",
        )
    return pairs
