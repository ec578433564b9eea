"""Reads uncompressed shards in any order: the records of a step by number, from mapped files.

Records are numbered like the snapshot's rows: with the same seed, both deliver the same examples in
the same steps. Unlike a stream, this reader starts at any step, and workers can share its batches.
A Python call per batch picks the records, so workers of a tf.data service cannot run it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import tensorflow as tf

from throughline.data.shards.record_offsets import RecordTable, open_records
from throughline.pipelines.order.epoch_order import EpochOrder
from throughline.pipelines.order.samplers import ClassIndex, index_by_class
from throughline.pipelines.read.prepared_data import PreparedData, read_labels_and_weights
from throughline.plan.steps import ReadIndexedShards
from throughline.plan.training_workers import TrainingWorker
from throughline.settings import Sampling
from throughline.shared.errors import MissingInput

# Steps whose rows are computed in one call, to share the overhead of the samplers' ops.
STEPS_PER_ORDER_CALL = 32


@dataclass(frozen=True, kw_only=True)
class IndexedShardReader:
    """The uncompressed shards of one split, read as a plan's first step says."""

    data: PreparedData
    split: str
    step: ReadIndexedShards
    seed: int
    worker: TrainingWorker

    @cached_property
    def order(self) -> EpochOrder:
        """The records of each step.

        Raises:
          ImpossiblePlan: The split lacks a class that is to be drawn.
        """
        step = self.step
        return EpochOrder(
            count=sum(shard.records for shard in self.data.shards.for_split(self.split)),
            batch_size=step.batch_size,
            shuffle=step.shuffle,
            seed=self.seed,
            worker=self.worker,
            classes=index_classes(step.sampling, self.data, self.split),
        )

    @cached_property
    def table(self) -> RecordTable:
        return open_record_table(self.data, self.split)

    def batches(self, first: tf.Tensor, stop: tf.Tensor) -> tf.data.Dataset:
        """Return serialized records (batch on this worker,) of the steps [first, stop)."""
        order, table = self.order, self.table

        def fetch(step: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
            return fetch_records(table, order.trim(rows, step))

        steps = tf.data.Dataset.range(first, stop, name="steps").batch(
            STEPS_PER_ORDER_CALL, name="steps"
        )
        numbered = steps.map(lambda numbers: (numbers, order.rows(numbers)), name="order")
        return numbered.unbatch(name="order").map(
            fetch,
            num_parallel_calls=self.step.parallel.num_parallel_calls(on_host=self.worker.on_host),
            name=self.step.trace_name,
        )


def index_classes(sampling: Sampling, data: PreparedData, split: str) -> ClassIndex | None:
    """Return the rows of each class for sampling by class; None if each row comes once."""
    if sampling == "uniform":
        return None
    return index_by_class(*read_labels_and_weights(sampling, data, split))


def open_record_table(data: PreparedData, split: str) -> RecordTable:
    """Map the uncompressed shards of a split, and read their indexes.

    Raises:
      MissingInput, CorruptShard: Shards are compressed, or an index does not belong to its shard.
    """
    shards = data.shards.for_split(split)
    if any(shard.compression != "none" for shard in shards):
        raise MissingInput(
            f"{data.shards_folder} holds no uncompressed shards; set shard.compression to none and"
            " run `dvc repro shard`"
        )
    return open_records(data.shard_files, shards)


def fetch_records(table: RecordTable, rows: tf.Tensor) -> tf.Tensor:
    """Return the serialized records (batch,) of rows (batch,) int64, by one call of Python."""
    records = tf.numpy_function(table.read, [rows], tf.string, stateful=False)
    return tf.ensure_shape(records, (None,))
