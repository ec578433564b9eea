"""The sample of the training split that a contestant keeps in memory or in a cache.

A sample suffices, because the duration of an epoch follows from its rate.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from throughline.pipelines.read.prepared_data import PreparedData, read_labels_and_weights
from throughline.settings import Sampling

SAMPLE_BYTES = 64 * 2**20  # of shards


def sample_shards(data: PreparedData, sampling: Sampling = "uniform") -> PreparedData:
    """Keep only the first shards of the training split, as many as a contestant should hold.

    Examples are in random order, so these stand for all. If classes are sampled, every class with a
    weight has an example in them.
    """
    kept, size, lacking, end = [], 0, set[int](), 0
    if sampling != "uniform":
        labels, weights = read_labels_and_weights(sampling, data, "train")
        lacking = {*np.flatnonzero(weights).tolist()}
    for shard in data.shards.for_split("train"):
        if not kept or lacking or size + shard.bytes <= SAMPLE_BYTES:
            kept.append(shard.name)
            size += shard.bytes
            if lacking:
                lacking -= {*labels[end : end + shard.examples].tolist()}
        end += shard.examples
    shards = tuple(
        shard for shard in data.shards.shards if shard.split != "train" or shard.name in kept
    )
    return replace(data, shards=replace(data.shards, shards=shards))
