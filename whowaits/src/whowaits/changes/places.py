"""Where the script makes a transformation of its dataset: the line, and what that line calls. What
a library makes within one call, such as `image_dataset_from_directory`, is no call of the script.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from typing import Any
from weakref import WeakSet

from whowaits.callers import Place

READERS = ("TFRecordDataset", "TextLineDataset", "FixedLengthRecordDataset")
ONE_KIND = {"flat_map": "interleave"}  # a change makes one the other, and finds it again
_made: defaultdict[Place, WeakSet[Any]] = defaultdict(WeakSet)  # those that are still there


def remember(dataset: Any, place: Place) -> None:
    """Have a dataset know where it is made, and the place what is made there."""
    dataset.whowaits_at = place
    _made[place].add(dataset)


def remembered() -> Iterator[Any]:
    """Every dataset that the script has made and that is still there."""
    return itertools.chain.from_iterable(map(list, list(_made.values())))


def makes_another(dataset: Any, kind: str, number: int) -> bool:
    """Whether the call that makes a transformation has made a dataset, too, from which this one
    takes nothing: one function may build those of the training and of its validation.
    """
    place = locate(dataset, kind, number)
    own = {id(part) for each in upstream(dataset) for part in _parts(each)}
    return bool(place.where) and any(id(each) not in own for each in list(_made[place]))


def locate(dataset: Any, kind: str, number: int) -> Place:
    """Where a transformation of that kind is made, the how manyth from the dataset's end; of no
    kind: the dataset itself. Empty where that was not seen.
    """
    return getattr(find_made(dataset, kind, number), "whowaits_at", Place())


def find_made(dataset: Any, kind: str, number: int) -> Any:
    """That transformation itself; None where it was not seen."""
    chain = (each for each in upstream(dataset) if not kind or kind_of_dataset(each) == kind)
    return next(itertools.islice(chain, number, None), None)


def find(dataset: Any, kind: str, number: int) -> Any:
    """A transformation, with the caches and shuffles that come right after it."""
    *after, found = follow(dataset, kind, number)
    for each in reversed(after):
        if kind_of_dataset(each) not in ("cache", "shuffle"):
            break
        found = each
    return found


def is_changed(dataset: Any, kind: str, number: int, added: str) -> bool:
    """Whether a transformation has what was added to its call: a cache after it, or parallel
    calls.
    """
    *after, found = follow(dataset, kind, number)
    if added.startswith(".cache"):
        return bool(after) and kind_of_dataset(after[-1]) == "cache"
    return "Parallel" in type(getattr(found, "_impl", found)).__name__  # of a TFRecordDataset


def follow(dataset: Any, kind: str, number: int) -> list[Any]:
    """The transformations from the dataset's end to one of that kind."""
    chain = list(upstream(dataset))
    at = [place for place, each in enumerate(chain) if kind_of_dataset(each) == kind][number]
    return chain[: at + 1]


def upstream(dataset: Any) -> Iterator[Any]:
    """A dataset and those that it takes its elements from."""
    yield dataset
    for source in dataset._inputs():
        yield from upstream(source)


def _parts(dataset: Any) -> Iterator[Any]:
    """A dataset, and those that it wraps, as a TextLineDataset does."""
    yield dataset
    if hasattr(dataset, "_impl"):
        yield from upstream(dataset._impl)


def kind_of_dataset(dataset: Any) -> str:
    """map of a _ParallelMapDataset, TFRecordDataset of a TFRecordDatasetV2."""
    full = type(dataset).__name__.strip("_")
    name = full.partition("Dataset")[0].replace("Parallel", "")
    words = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)[1:]
    reader = next((each for each in READERS if full.startswith(each)), "")
    return reader or ONE_KIND.get(words, words)
