"""Digests of the batches that a pass over an input delivers, and how two passes compare."""

import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter
from typing import Any

from .advice import ORDER, SAME

LEAST_BATCHES = 16  # to compare, if an epoch is too long to compare all
FEWEST_PROVEN = 4  # least number of elements, whatever time they take


def digest_epoch(
    elements: Iterable[Any],
    arrays_of: Callable[[Any], list[Any]],
    is_over: Callable[[int], bool],
    *,
    by_example: bool = True,
) -> tuple[dict[str, Any], bool]:
    """Return digests of an epoch, in order and in any order, and whether it was read to its end.

    `is_over` tells from the number of elements so far whether to stop before the end. Unless
    `by_example`, an element counts as one example.
    """
    digests, total, count, whole = [], 0, 0, True
    for element in elements:
        parts = list(_digests(arrays_of(element), by_example=by_example))
        digests.append(hashlib.blake2b(b"".join(parts), digest_size=8).hexdigest())
        total += sum(int.from_bytes(part, "big") for part in parts)
        count += len(parts)
        if is_over(len(digests)):
            whole = False
            break
    return {"in_order": digests, "in_any_order": str(total), "count": count}, whole


def digest_some(
    elements: Iterable[Any], *, most_s: float, clock: Callable[[], float] = perf_counter
) -> tuple[list[str], float]:
    """Return digests of a tf.data dataset's elements, and their mean size [bytes].

    Stops after `most_s` seconds, but not before FEWEST_PROVEN elements.
    """
    began, size = clock(), 0

    def arrays_of(element: Any) -> list[Any]:
        nonlocal size
        arrays = arrays_of_tensors(element)
        size += sum(map(_bytes_of, arrays))
        return arrays

    def is_over(count: int) -> bool:
        return count >= FEWEST_PROVEN and clock() - began > most_s

    digests = digest_epoch(elements, arrays_of, is_over, by_example=False)[0]["in_order"]
    return digests, size / max(1, len(digests))


def arrays_of_tensors(element: Any) -> list[Any]:
    """Return the arrays of an element of tf.data; a single string is bytes."""
    tf = sys.modules["tensorflow"]
    return [part.numpy() for part in tf.nest.flatten(element, expand_composites=True)]


def _bytes_of(part: Any) -> int:
    if isinstance(part, bytes):
        return len(part)
    return sum(map(len, part.flat)) if part.dtype == object else part.nbytes


def compare(one: dict[str, Any], other: dict[str, Any], what: str) -> tuple[str, str]:
    """Return SAME, ORDER or "" for two passes {"epochs": …, "whole": …}, and a sentence on it."""
    epochs = list(zip(one["epochs"], other["epochs"]))
    of_all = "two epochs" if len(epochs) == 2 else "an epoch"  # noqa: PLR2004
    whole = one["whole"] and other["whole"]
    if whole and all(a["in_order"] == b["in_order"] for a, b in epochs):
        each = " each" if len(epochs) > 1 else ""
        return SAME, f"the {what} of {of_all} are equal ({len(epochs[0][0]['in_order'])}{each})"
    if whole and all(
        (a["in_any_order"], a["count"]) == (b["in_any_order"], b["count"]) for a, b in epochs
    ):
        return ORDER, f"the {what} of {of_all} hold the same examples, in another order"
    heads = [tuple(zip(a["in_order"], b["in_order"])) for a, b in epochs]
    equal = all(a == b for head in heads for a, b in head)
    if not whole and equal and len(heads[0]) >= LEAST_BATCHES:
        return SAME, (
            f"the first {len(heads[0])} {what} are equal; an epoch was too long to compare all"
        )
    return "", ""


def _digests(arrays: list[Any], *, by_example: bool) -> Iterator[bytes]:
    """Yield a digest per example; one in all if not `by_example` or the arrays' lengths differ."""
    lengths = {part.shape[0] if getattr(part, "ndim", 0) else None for part in arrays}
    examples: Any = [arrays]
    if by_example and len(lengths) == 1 and None not in lengths:
        examples = zip(*arrays)
    for example in examples:
        digest = hashlib.blake2b(digest_size=16)
        for part in example:
            digest.update(content_of(part))
        yield digest.digest()


def content_of(part: Any) -> bytes:
    """Return the bytes of an array, or of another value's `repr`."""
    if isinstance(part, bytes):
        return part
    if not hasattr(part, "dtype"):
        return repr(part).encode()
    return repr(part.tolist()).encode() if part.dtype == object else part.tobytes()
