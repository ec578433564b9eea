"""Fetches rows that no gather can read: crops from mapped columns, records from indexed shards.

Records are numbered like the snapshot's rows: with the same seed, both deliver the same examples in
the same steps. One Python call per batch reads them from mapped files, so workers of a tf.data
service cannot do this.
"""

from collections.abc import Callable, Sequence
from itertools import takewhile

import numpy as np
import tensorflow as tf

from throughline.data.shards.record_offsets import RecordTable, open_records
from throughline.kernels import pixels
from throughline.kernels.elements import apply_ops
from throughline.kernels.kernels import Element
from throughline.pipelines.read.prepared_data import PreparedData
from throughline.pipelines.read.sequence_batches import Columns
from throughline.plan.augmentations import Method
from throughline.plan.ops import Op, Parse, Shape
from throughline.plan.steps import Gather
from throughline.shared.errors import MissingInput

# Columns, rows (batch,), epoch → examples that can be batched.
FetchFn = Callable[[Columns, tf.Tensor, tf.Tensor], Element]
# Rows (batch,), boxes (batch, 5) as of `pixels.crop` → images.
CropFn = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def open_record_table(data: PreparedData, split: str) -> RecordTable:
    """Map the uncompressed shards of a split, and read their indexes.

    Raises:
      MissingInput, CorruptShard: Shards are compressed, or their offsets are missing or wrong.
      ObjectStoreFailed, DiskRefused: A shard cannot be fetched.
    """
    shards = data.shards.for_split(split)
    if any(shard.compression != "none" for shard in shards):
        raise MissingInput(
            f"{data.shards_folder} holds no uncompressed shards; set shard.compression to none and"
            " run `dvc repro shard`"
        )
    return open_records(data.shard_files, shards)


def fetch_records(table: RecordTable, rows: tf.Tensor) -> tf.Tensor:
    """Return the serialized records (batch,) of rows (batch,) int64, in one Python call."""
    records = tf.numpy_function(table.read, [rows], tf.string, stateful=False)
    return tf.ensure_shape(records, (None,))


def make_crop_fn(data: PreparedData, split: str, op: Op) -> CropFn:
    """Return a function that crops boxes of images, as `op` does, and reads only their pixels."""
    column = data.input_column
    values = np.asarray(data.memmap(split, column.name))
    extents = np.asarray(data.memmap(split, column.extent.name)) if column.ragged else None
    shape = tuple(int(size or 0) for size in op.shape(column.shape) or ())
    method: Method = getattr(op, "method", "area")

    def call(rows: np.ndarray, boxes: np.ndarray) -> np.ndarray:
        images = (values[row] for row in rows.tolist())
        if extents is not None:
            images = (
                values[start : start + tall * wide * depth].reshape(tall, wide, depth)
                for start, tall, wide, depth in extents[rows].tolist()
            )
        out = pixels.empty_images((len(rows), *shape))
        pixels.crop(images, boxes, out, method=method)
        return out

    def crop(rows: tf.Tensor, boxes: tf.Tensor) -> tf.Tensor:
        images = tf.numpy_function(call, [rows, boxes], tf.uint8, stateful=False)
        return tf.ensure_shape(images, (rows.shape[0], *shape))

    return crop


def make_decode_fn(
    data: PreparedData, split: str, gather: Gather, *, features: Sequence[str], seed: int
) -> FetchFn:
    """Return the function that reads and preprocesses records into examples of `features`.

    It also runs the plan's ops for single examples. Ops run on the batch until the first that does
    not accept batches; from there, on one example at a time.

    Raises:
      MissingInput, CorruptShard: As for `open_record_table`.
    """
    table, column = open_record_table(data, split), data.input_column

    def accepts_batches(op: Op) -> bool:
        return isinstance(op, Parse) or not (column.ragged or op.takes == "example")

    of_batches = tuple(takewhile(accepts_batches, gather.decoding))
    of_examples = gather.decoding[len(of_batches) :]
    augment = gather.ops[: gather.example_op_count]
    shape: Shape = column.shape
    for op in augment:
        shape = op.shape(shape)

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
