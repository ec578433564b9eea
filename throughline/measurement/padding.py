"""Measures how much of the batches of texts is padding, and how many shapes batches have."""

import numpy as np

from throughline.pipelines.input_pipeline import InputPipeline
from throughline.pipelines.order.length_batches import double_until, make_buckets
from throughline.pipelines.read.sequence_batches import sequence_lengths
from throughline.results.build import SequenceBatches


def measure_sequences(pipeline: InputPipeline) -> SequenceBatches | None:
    if not pipeline.data.shards.schema.is_text:
        return None
    tokens, padded, shapes = 0, 0, set()
    for inputs, *_ in pipeline.dataset().as_numpy_iterator():
        text = inputs["text"] if isinstance(inputs, dict) else inputs
        tokens += int(lengths_in_batch(text).sum())
        padded += text.size
        shapes.add(text.shape)
    return SequenceBatches(
        tokens=tokens,
        tokens_per_example=tokens / pipeline.examples,
        padding_pct=100 * (1 - tokens / max(1, padded)),
        distinct_shapes=len(shapes),
    )


def padding_in_buckets(pipeline: InputPipeline) -> float | None:
    """Return the padding [%] with `batch: {pad_to: auto}`; None for windows, or without text."""
    if not pipeline.data.shards.schema.is_text or pipeline.plan.window:
        return None
    lengths = sequence_lengths(pipeline.data, pipeline.split)
    boundaries = double_until(int(lengths.max(initial=1)))
    buckets = make_buckets(lengths, boundaries, [1] * len(boundaries))
    return 100 * (1 - float(lengths.sum()) / float((buckets.used * buckets.boundaries).sum()))


def lengths_in_batch(text: np.ndarray) -> np.ndarray:
    """Count the tokens of each row of a batch (rows, length) without padding: (rows,)."""
    filled = text[:, ::-1] != 0
    return np.where(filled.any(axis=1), text.shape[1] - filled.argmax(axis=1), 0)
