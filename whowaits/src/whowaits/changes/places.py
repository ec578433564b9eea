"""Where the script makes the transformations of its dataset. What a library makes within one call,
such as `image_dataset_from_directory`, is not a call of the script.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from typing import Any
from weakref import WeakSet

from whowaits.callers import Place

READERS = ("TFRecordDataset", "TextLineDataset", "FixedLengthRecordDataset")
ONE_KIND = {"flat_map": "interleave"}  # a change turns one into the other, and has to find it again
_made: defaultdict[Place, WeakSet[Any]] = defaultdict(WeakSet)  # datasets that still exist


def remember(dataset: Any, place: Place) -> None:
    """Note on a dataset the place where it is made, and for the place the dataset."""
    dataset.whowaits_at = place
    _made[place].add(dataset)


def remembered() -> Iterator[Any]:
    return itertools.chain.from_iterable(map(list, list(_made.values())))


def makes_another(dataset: Any, kind: str, number: int) -> bool:
    """Return whether the call that makes a transformation has made an unrelated dataset, too."""
    place = locate(dataset, kind, number)
    own = {id(part) for each in upstream(dataset) for part in _parts(each)}
    return bool(place.where) and any(id(each) not in own for each in list(_made[place]))


def locate(dataset: Any, kind: str, number: int) -> Place:
    """Return where the transformation of that kind and number from the dataset's end is made.

    Without a kind, number 0 is the dataset itself. The place is empty if that was not seen.
    """
    return getattr(find_made(dataset, kind, number), "whowaits_at", Place())


def find_made(dataset: Any, kind: str, number: int) -> Any:
    """Return the transformation that `locate` looks for, or None if there is none."""
    chain = (each for each in upstream(dataset) if not kind or kind_of_dataset(each) == kind)
    return next(itertools.islice(chain, number, None), None)


def find(dataset: Any, kind: str, number: int) -> Any:
    """Return a transformation, or the last of the caches and shuffles right after it."""
    *after, found = follow(dataset, kind, number)
    for each in reversed(after):
        if kind_of_dataset(each) not in ("cache", "shuffle"):
            break
        found = each
    return found


def is_changed(dataset: Any, kind: str, number: int, added: str) -> bool:
    """Return whether a transformation has what was added: a cache after it, or parallel calls."""
    *after, found = follow(dataset, kind, number)
    if added.startswith(".cache"):
        return bool(after) and kind_of_dataset(after[-1]) == "cache"
    return "Parallel" in type(getattr(found, "_impl", found)).__name__  # in a TFRecordDataset


def follow(dataset: Any, kind: str, number: int) -> list[Any]:
    """Return the transformations from the dataset's end to the given one."""
    chain = list(upstream(dataset))
    at = [place for place, each in enumerate(chain) if kind_of_dataset(each) == kind][number]
    return chain[: at + 1]


def upstream(dataset: Any) -> Iterator[Any]:
    yield dataset
    for source in dataset._inputs():
        yield from upstream(source)


def _parts(dataset: Any) -> Iterator[Any]:
    """Yield a dataset and the datasets that it wraps, as a TextLineDataset does."""
    yield dataset
    if hasattr(dataset, "_impl"):
        yield from upstream(dataset._impl)


def kind_of_dataset(dataset: Any) -> str:
    """Return a dataset's kind: map for _ParallelMapDataset, or a reader such as TFRecordDataset."""
    full = type(dataset).__name__.strip("_")
    name = full.partition("Dataset")[0].replace("Parallel", "")
    words = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)[1:]
    reader = next((each for each in READERS if full.startswith(each)), "")
    return reader or ONE_KIND.get(words, words)
