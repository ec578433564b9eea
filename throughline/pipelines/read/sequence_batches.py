"""Chooses the rows of each batch, and pads or packs sequences of variable length.

A ragged column stores all values back to back; a second column says where each value begins and how
long it is (`throughline/data/columns/ragged.py`). A batch is one gather, of any number of
sequences.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import tensorflow as tf

from throughline.kernels.kernels import Element
from throughline.kernels.tokenizers import PADDING
from throughline.pipelines.order.epoch_order import EpochOrder
from throughline.pipelines.order.length_batches import (
    Buckets,
    LengthBatches,
    double_until,
    make_buckets,
    sizes_for_tokens,
)
from throughline.pipelines.order.packed_batches import NO_DOCUMENT, PackedBatches, plan_packs
from throughline.pipelines.order.samplers import index_by_class
from throughline.pipelines.read.prepared_data import PreparedData, read_labels_and_weights
from throughline.plan.steps import Gather, ReadIndexedShards
from throughline.plan.training_workers import TrainingWorker
from throughline.settings import BatchSettings
from throughline.shared.errors import ImpossiblePlan

Columns = Mapping[str, tf.Tensor]  # values of whole columns by name
StepOrder = EpochOrder | LengthBatches | PackedBatches


def sequence_lengths(data: PreparedData, split: str) -> np.ndarray:
    """Return the number of tokens of each sequence of a split: (examples,) int64."""
    extent = data.input_column.extent
    return np.asarray(data.memmap(split, extent.name))[:, 1]


def open_buckets(
    batching: BatchSettings, data: PreparedData, split: str, *, batch_size: int, workers: int = 1
) -> Buckets:
    """Partition a split by length.

    Raises:
      ImpossiblePlan: A sequence exceeds the last boundary, or a batch cannot hold one per worker.
    """
    lengths = sequence_lengths(data, split)
    boundaries = (
        list(batching.pad_to)
        if isinstance(batching.pad_to, tuple)
        else double_until(int(lengths.max(initial=1)))
    )
    _check_longest("batch.pad_to", lengths, boundaries[-1], split)
    sizes = (
        sizes_for_tokens(batching.tokens, boundaries, workers=workers)
        if batching.tokens
        else [batch_size] * len(boundaries)
    )
    return make_buckets(lengths, boundaries, sizes, workers=workers)


def open_order(
    step: Gather | ReadIndexedShards,
    data: PreparedData,
    split: str,
    *,
    seed: int,
    worker: TrainingWorker,
) -> StepOrder:
    """Return the rows of each step of a plan that begins with `step`.

    With `batch.pack`, all splits have equally many segments per row: the model sees one shape.

    Raises:
      ImpossiblePlan: `sampling` does not fit the split's classes, or texts are too long.
    """
    batching, window = (step.batching, step.window) if isinstance(step, Gather) else (None, None)
    order = EpochOrder(
        count=data.count_examples(split, window),
        batch_size=step.batch_size,
        shuffle=step.shuffle,
        seed=seed,
        worker=worker,
    )
    if batching is None and step.sampling == "uniform":
        return order
    if batching is None:
        labels, weights = read_labels_and_weights(step.sampling, data, split)
        return replace(order, classes=index_by_class(labels, weights))
    if batching.pack is None:
        buckets = open_buckets(
            batching, data, split, batch_size=step.batch_size, workers=worker.multiple
        )
        shuffled = step.shuffle.kind == "global"
        return LengthBatches(buckets=buckets, seed=seed, worker=worker, shuffled=shuffled)
    plans = {}
    for name in data.snapshot.splits:
        lengths = sequence_lengths(data, name)
        _check_longest("batch.pack", lengths, batching.pack, name)
        plans[name] = plan_packs(lengths, batching.pack)
    return PackedBatches(
        plan=plans[split],
        order=replace(order, count=plans[split].count_rows(worker.multiple)),
        segments=max(plan.most_segments for plan in plans.values()),
    )


def fetch_padded(
    columns: Columns, feature: str, rows: tf.Tensor, *, length: tf.Tensor | None = None
) -> Element:
    """Return the examples in `rows` (batch,), sequences padded to `length` or to the longest."""
    begins, lengths = tf.unstack(tf.gather(columns[f"{feature}.extent"], rows), axis=1)
    length = tf.reduce_max(lengths) if length is None else length
    values = {feature: pad_rows(columns[feature], begins, lengths, length)}
    return _gather_others(columns, feature, rows) | values


def fetch_packed(columns: Columns, feature: str, documents: tf.Tensor, row_length: int) -> Element:
    """Return `documents` (rows, segments) packed; `weight` (rows, segments): 0 for empty slots."""
    exists = documents != NO_DOCUMENT
    rows = tf.where(exists, documents, 0)
    begins, lengths = tf.unstack(tf.gather(columns[f"{feature}.extent"], rows), axis=2)
    tokens, segments, positions = pack_rows(
        columns[feature], begins, tf.where(exists, lengths, 0), row_length
    )
    return _gather_others(columns, feature, rows) | {
        feature: tokens,
        "segment_ids": segments,
        "positions": positions,
        "weight": tf.cast(exists, tf.float32),
    }


def _gather_others(columns: Columns, feature: str, rows: tf.Tensor) -> Element:
    names = [name for name in columns if name not in (feature, f"{feature}.extent")]
    return {name: tf.gather(columns[name], rows) for name in names}


def _check_longest(key: str, lengths: np.ndarray, longest: int, split: str) -> None:
    longer = int((lengths > longest).sum())
    if longer:
        raise ImpossiblePlan(
            f"{key}: sequences of the {split} split have up to {int(lengths.max()):,} tokens,"
            f" {longer:,} of {len(lengths):,} more than {longest:,}; raise this limit, or cut them"
            f" by `- truncate: {{tokens: {longest}}}` in preprocess"
        )


def pad_rows(
    values: tf.Tensor, begins: tf.Tensor, lengths: tf.Tensor, length: tf.Tensor
) -> tf.Tensor:
    """Return parts of `values` (elements,), padded to `length`: (batch, length) int32.

    `begins` and `lengths` are (batch,) int64.
    """
    places = tf.range(length, dtype=tf.int64)
    return _gather(values, begins[:, None] + places, places < lengths[:, None])


def pack_rows(
    values: tf.Tensor, begins: tf.Tensor, lengths: tf.Tensor, row_length: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Pack several sequences into each row, back to back.

    The sequences are parts of `values` (elements,); `begins` and `lengths` are (rows, segments)
    int64, with length 0 for no sequence. Returns tokens, segments (counted from 1; 0: padding) and
    positions within the segment, each (rows, row_length) int32.
    """
    ends = tf.cumsum(lengths, axis=1)
    starts = ends - lengths
    shape = (tf.shape(ends)[0], row_length)
    places = tf.broadcast_to(tf.range(row_length, dtype=tf.int64), shape)
    inside = places < ends[:, -1:]
    found = tf.searchsorted(ends, places, side="right", out_type=tf.int64)
    segment = tf.minimum(found, tf.shape(ends, out_type=tf.int64)[1] - 1)
    positions = places - tf.gather(starts, segment, batch_dims=1)
    tokens = _gather(values, tf.gather(begins, segment, batch_dims=1) + positions, inside)
    return tokens, _where(inside, segment + 1), _where(inside, positions)


def _gather(values: tf.Tensor, places: tf.Tensor, inside: tf.Tensor) -> tf.Tensor:
    return _where(inside, tf.gather(values, tf.where(inside, places, 0)))


def _where(inside: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    return tf.where(inside, tf.cast(values, tf.int32), PADDING)
