"""Input pipelines as stages and training loops use them: a plan bound to one split of the data."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from throughline.data.shards.record_offsets import RecordTable
from throughline.data.splits import count_steps
from throughline.kernels.elements import without_autograph
from throughline.kernels.kernels import Element
from throughline.kernels.randomness import GRAPH_SEED
from throughline.pipelines.dataset import Epoch, build_steps, map_rows
from throughline.pipelines.order.length_batches import Buckets
from throughline.pipelines.order.packed_batches import PackedBatches
from throughline.pipelines.read.prepared_data import PreparedData
from throughline.pipelines.read.row_fetching import open_record_table
from throughline.pipelines.read.sequence_batches import (
    Columns,
    StepOrder,
    open_buckets,
    open_order,
)
from throughline.pipelines.read.snapshot_reader import GatherFn, SnapshotReader
from throughline.pipelines.read.stream_readers import open_next_epoch_early
from throughline.pipelines.sizes import check_extent
from throughline.plan.plan import Plan
from throughline.plan.steps import Cache, Gather, Prefetch, Read, ReadIndexedShards, Step
from throughline.plan.training_workers import TrainingWorker
from throughline.shared.limits import available_memory, usable_cores
from throughline.shared.scratch import Scratch

Steps = tuple[Step, ...]
AUTOTUNE_MEMORY = 2  # the available memory divided by this bounds AUTOTUNE's buffers


@dataclass(frozen=True, kw_only=True)
class InputPipeline:
    """The batches of one split, epoch by epoch, as a plan makes them.

    Batches are (input, label). The input is image (batch, height, width, channels), features
    (batch, …) or text (batch, longest) int32; with table columns, a dict of it and columns (batch,
    columns) float32. The label is (batch,) int64, or what the task predicts. With `with_keys`,
    batches are dicts that also have `key` (batch,) int64. In packed batches, the input is {text,
    segment_ids, positions}, and a weight per document follows the label. `scratch` holds disk
    caches and lives as long as the pipeline.

    Raises:
      ImpossiblePlan: The split is too large or has too few shards for the plan (`check_extent`).
      StaleSnapshot: The snapshot stores fewer rows than the plan reads.
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
        if self.plan.gather:
            self.data.find_rows(self.split, self.plan.gather.fraction)

    @cached_property
    def order(self) -> StepOrder | None:
        """The rows of each step; None for a stream."""
        step = self.plan.steps[0]
        if not isinstance(step, Gather | ReadIndexedShards):
            return None
        return open_order(step, self.data, self.split, seed=self.seed, worker=self.worker)

    @cached_property
    def buckets(self) -> Buckets | None:
        """The length buckets of a stream that has some."""
        if self.plan.batching is None or self.plan.reads_snapshot:
            return None
        return open_buckets(self.plan.batching, self.data, self.split, batch_size=self.batch_size)

    @cached_property
    def records(self) -> RecordTable:
        """The records of the split's indexed shards."""
        return open_record_table(self.data, self.split)

    @property
    def batch_size(self) -> int:
        """Examples in a full batch, over all workers."""
        return self.plan.spec.batch_size

    @property
    def examples(self) -> int:
        """Examples in an epoch, over all workers."""
        if self.order is None:
            return self.data.count_examples(self.split, self.plan.window)
        return self.order.examples

    @property
    def steps_per_epoch(self) -> int:
        counted = self.order or self.buckets
        return counted.steps_per_epoch if counted else count_steps(self.examples, self.batch_size)

    @property
    def examples_per_step(self) -> float:
        """This worker's examples in a full batch; for texts, the average of an epoch's batches."""
        texts = self.plan.spec.schema.is_text and self.plan.window is None
        whole = self.examples / self.steps_per_epoch if texts else self.batch_size
        return whole / self.worker.count

    @property
    def segments(self) -> int | None:
        """Slots for documents in a row of packed batches; None for other batches."""
        return self.order.segments if isinstance(self.order, PackedBatches) else None

    @cached_property
    def element_spec(self) -> Any:
        return self.dataset().element_spec

    @property
    def batch_bytes(self) -> int:
        """Bytes of all workers' input in a full batch on the host, without the padding of texts."""
        specs = tf.nest.flatten(self.element_spec[0])
        variable = self.segments is None and self.plan.window is None
        if self.data.shards.schema.is_text and variable:
            rows, column = self.data.snapshot.splits[self.split], self.data.input_column
            tokens = rows.bytes(column) / np.dtype(column.dtype).itemsize
            return round(self.batch_size * specs[0].dtype.size * tokens / max(1, rows.count))
        return self.batch_size * sum(
            spec.dtype.size * (spec.shape[1:].num_elements() or 0) for spec in specs
        )

    def options(self) -> tf.data.Options:
        """Return tf.data's options for the plan.

        tf.data's default rewrites of the graph would speed up a naive pipeline, so they are off
        unless the plan asks for them. Processes on one host share AUTOTUNE's cores and memory.
        """
        options = tf.data.Options()
        options.deterministic = self.plan.deterministic
        options.autotune.enabled = self.plan.autotunes
        if self.worker.on_host > 1:
            options.autotune.cpu_budget = self.worker.share(usable_cores())
            budget = available_memory() // AUTOTUNE_MEMORY
            options.autotune.ram_budget = self.worker.share(budget)
        options.experimental_optimization.apply_default_optimizations = self.plan.graph_rewrites
        if self.plan.threads != "shared":
            options.threading.private_threadpool_size = int(self.plan.threads)
        return options

    @without_autograph
    def dataset(self, *, first_step: int = 0, epochs: int = 1) -> tf.data.Dataset:
        """Return the batches of [first_step, epochs · steps_per_epoch), counted over all epochs.

        A plan that reads the snapshot or indexed shards starts at any step; a stream starts with
        the epoch that contains `first_step`.
        """
        stop = epochs * self.steps_per_epoch
        if self.plan.reads_snapshot:
            step_range = tf.data.Dataset.from_tensors((np.int64(first_step), np.int64(stop)))
            return self._finish(self._gather_batches(step_range), stop - first_step)
        first_epoch = first_step // self.steps_per_epoch
        begin = first_step if self.plan.seekable else first_epoch * self.steps_per_epoch
        numbers = tf.data.Dataset.range(first_epoch, epochs, name="epochs")
        batches = self._stream_batches(numbers, open_early=True, first_step=begin)
        return self._finish(batches, stop - begin)

    @without_autograph
    def epoch_by_epoch(self) -> tf.data.Dataset:
        """Return a dataset that yields the next epoch whenever it is iterated, for Keras' `fit`."""
        numbers = tf.data.Dataset.from_tensors(1).map(
            lambda one: self._iterations.assign_add(tf.cast(one, tf.int64)) - 1, name="epochs"
        )
        if not self.plan.reads_snapshot:
            batches = self._stream_batches(numbers, open_early=False)
            return self._finish(batches, self.steps_per_epoch)
        step_range = numbers.map(
            lambda epoch: (epoch * self.steps_per_epoch, (epoch + 1) * self.steps_per_epoch),
            name="epochs",
        )
        return self._finish(self._gather_batches(step_range), self.steps_per_epoch)

    def _finish(self, batches: tf.data.Dataset, count: int) -> tf.data.Dataset:
        counted = batches.apply(tf.data.experimental.assert_cardinality(count))
        return counted.with_options(self.options())

    def steps(self, *, first_step: int = 0, epochs: int = 1) -> tf.data.Dataset:
        """Return a batch for each training step, or its number if the device gathers batches."""
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
        if self.plan.gather is None or self.order is None:
            raise TypeError(f"{self.plan} does not read the snapshot")
        return SnapshotReader(
            data=self.data,
            split=self.split,
            gather=self.plan.gather,
            order=self.order,
            stored=self.data.find_rows(self.split, self.plan.gather.fraction),
            seed=self.seed,
            with_keys=self.with_keys,
        )

    @cached_property
    def _iterations(self) -> tf.Variable:
        """The number of times that the dataset of `epoch_by_epoch` has been iterated."""
        with tf.init_scope():
            return tf.Variable(0, dtype=tf.int64, trainable=False, name="iterations")

    def _gather_batches(self, step_ranges: tf.data.Dataset) -> tf.data.Dataset:
        """Return the batches of all `step_ranges` (first and stop, int64 scalars), back to back.

        The columns are read at the start of a range. A function that captured them would copy all
        of them whenever tf.data rewrites the graph; one that read them at each step would run one
        step at a time under op determinism.
        """
        reader = self.reader

        def one_range(first: tf.Tensor, stop: tf.Tensor, columns: Columns) -> tf.data.Dataset:
            make_batch = reader.make_batch_fn()

            def fetch(number: tf.Tensor, rows: tf.Tensor) -> Element | tuple:
                return make_batch(columns, number, rows)

            batches = map_rows(reader.gather, reader.order, fetch, first=first, stop=stop)
            epoch = Epoch(pipeline=self, number=first // self.steps_per_epoch)
            return build_steps(self.plan.steps[1:], batches, epoch)

        opened = step_ranges.map(
            lambda first, stop: (first, stop, reader.columns()), name="columns"
        )
        return opened.flat_map(one_range, name="epochs")

    def _stream_batches(
        self, epochs: tf.data.Dataset, *, open_early: bool, first_step: int = 0
    ) -> tf.data.Dataset:
        """Return the batches of the epochs with these numbers (int64 scalars), back to back.

        One iterator goes through all epochs, because destroying an iterator waits for AUTOTUNE's
        thread, for as long as the epoch has lasted. With `open_early`, a plan that prefetches
        opens each epoch while the previous one is consumed.
        """
        once, per_epoch, after_epochs = split_by_epochs(self.plan)
        any_epoch = Epoch(pipeline=self, number=tf.constant(0, tf.int64))
        source = build_steps(once, None, any_epoch) if once else None

        def one_epoch(number: tf.Tensor) -> tf.data.Dataset:
            if not tf.executing_eagerly():
                # Only in this graph: its draws must not depend on the process's seed, and
                # TensorFlow fails if that is 0 and an op's seed is a tensor.
                tf.random.set_seed(GRAPH_SEED)
            epoch = Epoch(pipeline=self, number=number, first_step=first_step)
            return build_steps(per_epoch, source, epoch)

        if not (open_early and after_epochs):
            batches = epochs.flat_map(one_epoch, name="epochs")
        elif self.plan.caches:  # the cache is full after one epoch
            filling = epochs.take(1).flat_map(one_epoch, name="epochs")
            batches = filling.concatenate(open_next_epoch_early(epochs.skip(1), one_epoch))
        else:
            batches = open_next_epoch_early(epochs, one_epoch)
        return build_steps(after_epochs, batches, any_epoch)


def split_by_epochs(plan: Plan) -> tuple[Steps, Steps, Steps]:
    """Split a stream's steps: those built once, those built for each epoch, and a final prefetch.

    The first part ends with the cache; without one, it is the reading of files or arrays, if any.
    """
    steps = plan.steps
    caches = [number for number, step in enumerate(steps) if isinstance(step, Cache)]
    lists_source = isinstance(steps[0], Read) and steps[0].source in ("files", "arrays")
    first = caches[0] + 1 if caches else int(lists_source)
    last = len(steps) - isinstance(steps[-1], Prefetch)
    return steps[:first], steps[first:last], steps[last:]
