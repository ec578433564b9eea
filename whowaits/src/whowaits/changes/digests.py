"""Digests of a dataset's elements, by which two passes can be compared."""

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import tensorflow as tf

from .graphs import count_bytes
from .passes import content_of

FEWEST_PROVEN = 4  # elements, however long that takes


@dataclass
class Sample:
    """Digests of some elements, and the size of all of them [bytes]."""

    digests: Counter[bytes] = field(default_factory=Counter)
    size: int = 0

    @property
    def count(self) -> int:
        return sum(self.digests.values())

    @property
    def mean_bytes(self) -> float:
        return self.size / max(1, self.count)


def digest_some(
    elements: Any, *, most_s: float, clock: Callable[[], float] = perf_counter
) -> Sample:
    """Digest elements until the time is up, but at least FEWEST_PROVEN of them."""
    sample, began = Sample(), clock()
    for number, element in enumerate(elements, start=1):
        sample.digests[digest(element)] += 1
        sample.size += sum(map(count_bytes, tf.nest.flatten(element)))
        if number >= FEWEST_PROVEN and clock() - began > most_s:
            break
    return sample


def digest(element: Any) -> bytes:
    content = hashlib.sha256()
    for part in tf.nest.flatten(element):
        content.update(content_of(part.numpy()))  # bytes if it is a single string
    return content.digest()
