"""Finds where the script makes the transformations of its dataset. Calls within a library function,
such as `image_dataset_from_directory`, are not the script's.
"""

import ast
import functools
import itertools
import linecache
from collections import Counter
from collections.abc import Iterator
from typing import Any
from weakref import WeakSet

from whowaits.callers import Place, find_call, list_own_lines

from .advice import SEVERAL, SHARED
from .edits import find_calls, name_of

READERS = ("TFRecordDataset", "TextLineDataset", "FixedLengthRecordDataset")
ONE_KIND = {"flat_map": "interleave"}  # same kind, since a change turns a flat_map into interleave
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
made_datasets: WeakSet[Any] = WeakSet()  #: existing datasets


def remember(dataset: Any, caller: Any) -> None:
    """Note on a dataset the script's call that makes it, and the script's lines on the stack."""
    dataset.whowaits_at, dataset.whowaits_lines = find_call(caller), list_own_lines(caller)
    made_datasets.add(dataset)


def find_others(dataset: Any, kind: str, number: int) -> str:
    """Return SEVERAL or SHARED if the call of a transformation may make others, too; else ""."""
    made = find_made(dataset, kind, number)
    place = getattr(made, "whowaits_at", Place())
    if not place.where:
        return ""
    file, line = made.whowaits_lines[-1]
    alike = [each for each in upstream(dataset) if getattr(each, "whowaits_at", None) == place]
    several = {id(each) for each in alike if kind_of_dataset(each) == kind}
    if len(several) > max(1, len(find_calls(_parse(file), line, place.called))):
        return SEVERAL
    own = {id(part) for each in upstream(dataset) for part in _parts(each)}
    others = any(id(each) not in own for each in list(made_datasets) if each.whowaits_at == place)
    return SHARED if others or _runs_again(made.whowaits_lines) else ""


@functools.cache
def _runs_again(lines: tuple[tuple[str, int], ...]) -> bool:
    """Return whether a function or class that contains one of the lines is called several times."""
    nodes = [node for file in dict(lines) for node in ast.walk(_parse(file))]
    methods = {each for node in nodes if isinstance(node, ast.ClassDef) for each in node.body}
    called = [node.func for node in nodes if isinstance(node, ast.Call)]
    counts = Counter((type(each), name_of(each)) for each in called)
    return any(
        counts[ast.Attribute if node in methods else ast.Name, node.name] > 1
        for file, line in lines
        for node in ast.walk(_parse(file))
        if isinstance(node, DEFINITIONS) and node.lineno <= line <= (node.end_lineno or line)
    )


@functools.cache
def _parse(file: str) -> ast.Module:
    return ast.parse("".join(linecache.getlines(file)))


def locate(dataset: Any, kind: str, number: int) -> Place:
    """Return where the script makes a transformation, given by kind and number from the end.

    Without a kind, number 0 is the dataset itself. The place is empty if the line is unknown.
    """
    return getattr(find_made(dataset, kind, number), "whowaits_at", Place())


def find_made(dataset: Any, kind: str, number: int) -> Any:
    """Return the transformation that `locate` looks for, or None if there is none."""
    chain = (each for each in upstream(dataset) if not kind or kind_of_dataset(each) == kind)
    return next(itertools.islice(chain, number, None), None)


def find(dataset: Any, kind: str, number: int) -> Any:
    """Return a transformation; if caches or shuffles follow it directly, the last of these."""
    *after, found = follow(dataset, kind, number)
    for each in reversed(after):
        if kind_of_dataset(each) not in ("cache", "shuffle"):
            break
        found = each
    return found


def is_changed(dataset: Any, kind: str, number: int, added: str) -> bool:
    """Return whether the transformation has `added`: a cache right after it, or parallel calls."""
    *after, found = follow(dataset, kind, number)
    if added.startswith(".cache"):
        return bool(after) and kind_of_dataset(after[-1]) == "cache"
    return "Parallel" in type(getattr(found, "_impl", found)).__name__  # in a TFRecordDataset


def follow(dataset: Any, kind: str, number: int) -> list[Any]:
    """Return the transformations from the dataset's end to the given one."""
    chain = list(upstream(dataset))
    return chain[: chain.index(find_made(dataset, kind, number)) + 1]


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
    """Return a dataset's kind: map (also parallel), interleave (also flat_map), or a reader."""
    full = type(dataset).__name__.strip("_")
    name = full.partition("Dataset")[0].replace("Parallel", "")
    words = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)[1:]
    reader = next((each for each in READERS if full.startswith(each)), "")
    return reader or ONE_KIND.get(words, words)
