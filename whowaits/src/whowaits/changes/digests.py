"""Digests of a dataset's elements, of which two passes can be compared."""

from __future__ import annotations

import hashlib
from collections import Counter
from time import perf_counter
from typing import Any

import tensorflow as tf

FEWEST_PROVEN = 4  # elements, however long they take


def digest_some(elements: Any, *, most_s: float) -> Counter[bytes]:
    """Digests of elements until the time is up."""
    found: Counter[bytes] = Counter()
    began = perf_counter()
    for number, element in enumerate(elements, start=1):
        found[digest(element)] += 1
        if number >= FEWEST_PROVEN and perf_counter() - began > most_s:
            break
    return found


def digest(element: Any) -> bytes:
    """Of an element's content."""
    content = hashlib.sha256()
    for part in tf.nest.flatten(element):
        array = part.numpy()
        content.update(repr(array.tolist()).encode() if array.dtype == object else array.tobytes())
    return content.digest()
