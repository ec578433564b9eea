"""Proof that two configurations deliver the same examples: a digest over (key, label, pixels) that ignores order.

It is taken behind the deterministic preprocessing, with augmentation and finishing off, so every configuration with the
same `preprocess` must have the same digest.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from tasks.pipelines.dataset import InputPipeline

MODULUS = 1 << 128


@dataclass(frozen=True, kw_only=True)
class ExamplesDigest:
    """The digest, how many examples went into it, and their shape and dtype."""

    digest: str
    examples: int
    shape: tuple[int, ...]
    dtype: str


def digest_examples(pipeline: InputPipeline) -> ExamplesDigest:
    """Read one epoch of a pipeline made `with_keys` and add up a 128-bit hash per example, so that order does not matter.

    A lost, doubled or altered example changes the sum.
    """
    total, count = 0, 0
    image = np.empty((0,))
    for batch in pipeline.dataset().as_numpy_iterator():
        image = batch["image"]
        heads = np.stack((batch["key"], batch["label"]), axis=1)
        for head, pixels in zip(heads, image, strict=True):
            state = hashlib.blake2b(head.tobytes(), digest_size=16)
            state.update(np.ascontiguousarray(pixels).data)
            total = (total + int.from_bytes(state.digest(), "little")) % MODULUS
        count += len(image)
    return ExamplesDigest(digest=f"{total:032x}", examples=count, shape=image.shape[1:], dtype=str(image.dtype))
