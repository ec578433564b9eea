"""Decodes rows that a snapshot does not store from the shards, and joins them with fetched ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile

import tensorflow as tf

from throughline.kernels.elements import apply_ops
from throughline.kernels.kernels import Element
from throughline.pipelines.read.indexed_shard_reader import fetch_records, open_record_table
from throughline.pipelines.read.prepared_data import PreparedData
from throughline.plan.ops import Op, Parse
from throughline.plan.steps import Gather

Columns = Mapping[str, tf.Tensor]  # values of whole columns by name
# Columns, rows (batch,), epoch → examples that can be batched.
FetchFn = Callable[[Columns, tf.Tensor, tf.Tensor], Element]


def make_decode_fn(
    data: PreparedData, split: str, gather: Gather, *, features: Sequence[str], seed: int
) -> FetchFn:
    """Return the function that reads and preprocesses records into examples of `features`.

    It also runs the plan's ops for single examples. Ops that take batches are called once for all,
    others on one example at a time, as when a snapshot is written.

    Raises:
      MissingInput, CorruptShard: As for `open_record_table`.
    """
    table, column = open_record_table(data, split), data.input_column
    of_batches = tuple(
        takewhile(
            lambda op: isinstance(op, Parse) or not (column.ragged or op.takes == "example"),
            gather.decoding,
        )
    )
    of_examples = gather.decoding[len(of_batches) :]
    augment = gather.ops[: gather.example_op_count]
    shape = _batched_shape(column.shape, augment)

    def finish(example: Element, epoch: tf.Tensor) -> Element:
        example = apply_ops(of_examples, example, seed=seed, epoch=epoch)
        example = apply_ops(augment, example, seed=seed, epoch=epoch)
        value = tf.ensure_shape(example[column.name], shape)
        return {name: value if name == column.name else example[name] for name in features}

    def decode(columns: Columns, rows: tf.Tensor, epoch: tf.Tensor) -> Element:
        records = {"record": tf.ensure_shape(fetch_records(table, rows), rows.shape)}
        examples = apply_ops(of_batches, records, seed=seed, epoch=epoch)
        if not of_examples and not augment:
            return {name: examples[name] for name in features}
        one = tf.function(finish, autograph=False)
        specs = {
            name: tf.TensorSpec(value.shape[1:], value.dtype) for name, value in examples.items()
        }
        finished = one.get_concrete_function(specs, tf.TensorSpec((), tf.int64))
        signature = tf.nest.map_structure(tf.TensorSpec.from_tensor, finished.structured_outputs)
        return tf.map_fn(
            lambda example: one(example, epoch), examples, fn_output_signature=signature
        )

    return decode


def _batched_shape(
    shape: tuple[int | None, ...], augment: Sequence[Op]
) -> tuple[int | None, ...] | None:
    after: tuple[int | None, ...] | None = shape
    for op in augment:
        after = op.shape(after)
    return after


def join_rows(stored: int, fetch: FetchFn, decode: FetchFn) -> FetchFn:
    """Return a function that fetches the first `stored` rows and decodes others, in batch order."""

    def join(columns: Columns, rows: tf.Tensor, epoch: tf.Tensor) -> Element:
        places = tf.dynamic_partition(
            tf.range(tf.size(rows)), tf.cast(rows >= stored, tf.int32), num_partitions=2
        )
        parts = [
            make(columns, tf.gather(rows, where), epoch)
            for make, where in zip((fetch, decode), places, strict=True)
        ]
        return {
            name: tf.ensure_shape(
                tf.dynamic_stitch(places, [part[name] for part in parts]),
                (*rows.shape, *value.shape[1:]),
            )
            for name, value in parts[0].items()
        }

    return join
