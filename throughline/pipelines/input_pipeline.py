"""Input pipelines as stages and training loops use them: a plan bound to one split of the data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from throughline.data.splits import count_steps
from throughline.kernels.elements import without_autograph
from throughline.pipelines.dataset import BuildContext
from throughline.pipelines.epochs import build_snapshot_batches, build_stream_batches
from throughline.pipelines.extent_checks import check_extent
from throughline.pipelines.order.length_batches import Buckets
from throughline.pipelines.order.packed_batches import PackedBatches
from throughline.pipelines.read.indexed_shard_reader import IndexedShardReader
from throughline.pipelines.read.prepared_data import PreparedData
from throughline.pipelines.read.sequence_batches import open_buckets
from throughline.pipelines.read.snapshot_reader import GatherFn, SnapshotReader
from throughline.plan.plan import Plan
from throughline.plan.steps import ReadIndexedShards
from throughline.plan.training_workers import TrainingWorker
from throughline.shared.scratch import Scratch


@dataclass(frozen=True, kw_only=True)
class InputPipeline:
    """Batches of one split, epoch by epoch, as a plan says.

    Batches are (input, label). The input is image (batch, height, width, channels), features
    (batch, …) or text (batch, longest) int32; with table columns it is {image, columns: (batch,
    columns) float32}. The label is (batch,) int64, or what the task predicts. With `with_keys`,
    batches are dicts that also have `key` (batch,) int64. `scratch` holds disk caches and lives as
    long as the pipeline.

    Raises:
      ImpossiblePlan: The split is too large or has too few shards for the plan (`check_extent`).
    """

    plan: Plan
    data: PreparedData
    split: str
    seed: int
    with_keys: bool = False
    worker: TrainingWorker = field(default_factory=TrainingWorker)
    service_address: str = ""
    scratch: Scratch = field(default_factory=Scratch)

    def __post_init__(self) -> None:
        check_extent(self.plan, self.data, self.split)

    @property
    def batch_size(self) -> int:
        """Examples in a full batch, over all workers."""
        return self.plan.spec.batch_size

    @property
    def examples(self) -> int:
        if self.plan.reads_snapshot:
            return self.reader.examples
        if self.plan.reads_indexed_shards:
            return self.indexed_shards.order.examples
        return self.data.count_examples(self.split, self.plan.window)

    @property
    def steps_per_epoch(self) -> int:
        if self.plan.reads_snapshot:
            return self.reader.steps_per_epoch
        return (
            count_steps(self.examples, self.batch_size)
            if self._buckets is None
            else self._buckets.steps_per_epoch
        )

    @property
    def examples_per_step(self) -> float:
        """Examples of this worker in a full batch; for texts on average over an epoch's batches."""
        texts = self.plan.spec.schema.is_text and self.plan.window is None
        whole = self.examples / self.steps_per_epoch if texts else self.batch_size
        return whole / self.worker.count

    @property
    def segments(self) -> int | None:
        """Slots for documents in a row of packed batches; None for other batches."""
        order = self.reader.order if self.plan.reads_snapshot else None
        return order.segments if isinstance(order, PackedBatches) else None

    @cached_property
    def element_spec(self) -> Any:
        return self.dataset().element_spec

    @property
    def batch_bytes(self) -> int:
        """Bytes of a full batch's input as it leaves the host; for texts without padding."""
        specs = tf.nest.flatten(self.element_spec[0])
        variable = self.segments is None and self.plan.window is None
        if self.data.shards.schema.is_text and variable:
            rows, column = self.data.snapshot.splits[self.split], self.data.input_column
            tokens = rows.bytes(column) / np.dtype(column.dtype).itemsize
            return round(self.batch_size * specs[0].dtype.size * tokens / max(1, rows.count))
        return self.batch_size * sum(
            spec.dtype.size * (spec.shape[1:].num_elements() or 0) for spec in specs
        )

    @without_autograph
    def dataset(self, *, first_step: int = 0, epochs: int = 1) -> tf.data.Dataset:
        """Return the batches of steps [first_step, epochs · steps), counted over all epochs.

        A plan that reads the snapshot or indexed shards starts at any step; a stream starts with
        the epoch that contains `first_step`.
        """
        if self.plan.reads_snapshot:
            step_range = tf.data.Dataset.from_tensors(
                (np.int64(first_step), np.int64(epochs * self.steps_per_epoch))
            )
            batches, count = (
                build_snapshot_batches(self._context, self.reader, step_range),
                epochs * self.steps_per_epoch - first_step,
            )
        else:
            first_epoch = first_step // self.steps_per_epoch
            numbers = tf.data.Dataset.range(first_epoch, epochs, name="epochs")
            begin = first_step if self.plan.seekable else first_epoch * self.steps_per_epoch
            batches, count = (
                build_stream_batches(
                    replace(self._context, first_step=begin), numbers, open_early=True
                ),
                epochs * self.steps_per_epoch - begin,
            )
        return batches.apply(tf.data.experimental.assert_cardinality(count)).with_options(
            self._context.options()
        )

    @without_autograph
    def epoch_by_epoch(self) -> tf.data.Dataset:
        """Return one epoch, and the next at each iteration: for `fit(dataset, epochs=…)`."""
        numbers = tf.data.Dataset.from_tensors(1).map(
            lambda one: self._iterations.assign_add(tf.cast(one, tf.int64)) - 1, name="epochs"
        )
        if self.plan.reads_snapshot:
            step_range = numbers.map(
                lambda epoch: (epoch * self.steps_per_epoch, (epoch + 1) * self.steps_per_epoch),
                name="epochs",
            )
            batches = build_snapshot_batches(self._context, self.reader, step_range)
        else:
            batches = build_stream_batches(self._context, numbers, open_early=False)
        return batches.apply(
            tf.data.experimental.assert_cardinality(self.steps_per_epoch)
        ).with_options(self._context.options())

    def steps(self, *, first_step: int = 0, epochs: int = 1) -> tf.data.Dataset:
        """Return what the steps of a training take: batches, or their numbers if it gathers them
        on the device.
        """
        if self.plan.gathers_on_device:
            return tf.data.Dataset.range(first_step, epochs * self.steps_per_epoch)
        return self.dataset(first_step=first_step, epochs=epochs)

    def batches(self, *, first_step: int = 0, epochs: int = 1) -> Iterator[Any]:
        """Iterate over the batches of `dataset`, gathering on the device if the plan says so."""
        if not self.plan.gathers_on_device:
            return iter(self.dataset(first_step=first_step, epochs=epochs))
        return map(
            tf.function(self.gather_fn(), autograph=False),
            tf.data.Dataset.range(first_step, epochs * self.steps_per_epoch),
        )

    def gather_fn(self) -> GatherFn:
        """Return the function from a step (scalar int64, over all epochs) to its snapshot batch."""
        return self.reader.make_gather_fn()

    @cached_property
    def reader(self) -> SnapshotReader:
        if self.plan.gather is None:
            raise TypeError(f"{self.plan} does not read the snapshot")
        return SnapshotReader(
            data=self.data,
            split=self.split,
            gather=self.plan.gather,
            stored=self.data.find_rows(self.split, self.plan.gather.fraction),
            seed=self.seed,
            worker=self.worker,
            with_keys=self.with_keys,
        )

    @cached_property
    def indexed_shards(self) -> IndexedShardReader:
        step = self.plan.steps[0]
        if not isinstance(step, ReadIndexedShards):
            raise TypeError(f"{self.plan} does not read indexed shards")
        return IndexedShardReader(
            data=self.data, split=self.split, step=step, seed=self.seed, worker=self.worker
        )

    @cached_property
    def _buckets(self) -> Buckets | None:
        if self.plan.batching is None or self.plan.reads_snapshot:
            return None
        return open_buckets(self.plan.batching, self.data, self.split, batch_size=self.batch_size)

    @cached_property
    def _iterations(self) -> tf.Variable:
        """The number of iterations that `epoch_by_epoch` has had."""
        with tf.init_scope():
            return tf.Variable(0, dtype=tf.int64, trainable=False, name="iterations")

    @cached_property
    def _context(self) -> BuildContext:
        return BuildContext(
            plan=self.plan,
            data=self.data,
            split=self.split,
            seed=self.seed,
            with_keys=self.with_keys,
            examples=self.examples,
            steps_per_epoch=self.steps_per_epoch,
            service_address=self.service_address,
            scratch=self.scratch,
            worker=self.worker,
            indexed_shards=self.indexed_shards if self.plan.reads_indexed_shards else None,
            buckets=self._buckets,
        )
