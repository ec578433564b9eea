"""Finds the inputs and labels of each split by array names: `x_train`, `test_labels`, `images`.

Only unambiguous names count; otherwise data.features and data.labels must be set.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

from throughline.data.encodings.array_files import ArrayHeader

if TYPE_CHECKING:
    from throughline.data.split_names import SplitName

_INPUTS = {
    *("x", "image", "images", "img", "imgs", "picture", "pictures", "photo", "photos", "pixels"),
    *("data", "dataset", "feature", "features", "input", "inputs", "sample", "samples"),
}
_LABELS = {"y", "t", "label", "labels", "target", "targets", "class", "classes"}
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_IMAGE_RANKS = (3, 4)  # of (examples, height, width[, channels])


class ArrayPair(NamedTuple):
    """Names of the arrays of one split; `split` is None if the names contain none."""

    split: str | None
    features: str
    labels: str

    def __str__(self) -> str:
        return f"{self.split or 'all splits'}: images of {self.features}, labels of {self.labels}"


def choose_arrays(
    found: Mapping[str, ArrayHeader],
    read_name: Callable[[str], SplitName],
    split_words: Collection[str],
) -> list[ArrayPair]:
    """Return the input and label arrays of each split; [] if any doubt is left.

    If no name is known, shapes decide between two arrays. `read_name` finds the split in a name,
    by one of `split_words`.
    """
    words = {name: _list_words(name, read_name(name), split_words) for name in found}
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


def _list_words(name: str, said: SplitName, split_words: Collection[str]) -> set[str]:
    """Return the words of a name without its split's, which may be joined to another: `Xtrain`."""
    known = "|".join(sorted(split_words, key=len, reverse=True))
    for word in said.words:
        name = name.replace(word, re.sub(known, " ", word, count=1, flags=re.IGNORECASE), 1)
    return {word.lower() for word in _WORD.findall(name)}
