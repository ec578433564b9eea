"""Builds a tf.data.Dataset from the steps of a plan, with a function per kind of step."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import tensorflow as tf

from throughline.data.shards.record_offsets import RecordTable
from throughline.kernels.elements import apply_ops, select_outputs
from throughline.kernels.kernels import Element
from throughline.kernels.randomness import find_python_call, fold
from throughline.pipelines.order.length_batches import Buckets
from throughline.pipelines.read import stream_readers
from throughline.pipelines.read.prepared_data import PreparedData
from throughline.pipelines.read.row_fetching import fetch_records
from throughline.pipelines.read.sequence_batches import StepOrder
from throughline.plan.plan import Plan
from throughline.plan.steps import (
    Batch,
    BucketBatch,
    Cache,
    Gather,
    Map,
    Prefetch,
    Read,
    ReadIndexedShards,
    SampleByClass,
    Service,
    Shuffle,
    Step,
    TokenWindow,
    Window,
    shuffle_buffer_size,
)
from throughline.plan.training_workers import TrainingWorker
from throughline.shared.errors import ImpossiblePlan
from throughline.shared.limits import available_memory, usable_cores
from throughline.shared.scratch import Scratch

Dataset = tf.data.Dataset
# Steps whose rows are computed in one call, to share the overhead of the samplers' ops.
STEPS_PER_ORDER_CALL = 32
AUTOTUNE_MEMORY = 2  # the available memory divided by this bounds AUTOTUNE's buffers


@dataclass(frozen=True, kw_only=True)
class BuildContext:
    """What every step is built from: the plan, one split of the prepared data, and this worker.

    Attributes:
      examples, steps_per_epoch: Per epoch, over all workers.
      order: The rows of each step; None for a stream.
      records: The records of indexed shards, if the plan reads them.
      buckets: The length buckets of a stream that has some.
      first_step: The step at which to begin, counted over all epochs.
    """

    plan: Plan
    data: PreparedData
    split: str
    seed: int
    with_keys: bool
    examples: int
    steps_per_epoch: int
    service_address: str
    scratch: Scratch
    worker: TrainingWorker
    order: StepOrder | None
    records: RecordTable | None
    buckets: Buckets | None
    first_step: int = 0

    def options(self) -> tf.data.Options:
        """Return tf.data's options for the plan.

        tf.data's default rewrites of the graph would make a naive pipeline less naive, so the plan
        must ask for them. Processes that share a host share AUTOTUNE's cores and memory.
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

    def seed_for(self, who: str, epoch: tf.Tensor) -> tf.Tensor:
        """Return a nonnegative int64 seed for the random draws of step `who` in an epoch."""
        bits = fold(self.seed, epoch, who)
        return tf.cast(tf.bitwise.right_shift(bits, tf.constant(1, tf.uint64)), tf.int64)

    def select_if_last(self, element: Element, step: Map | Window | TokenWindow) -> Element | tuple:
        """Select the features that batches hold, unless a step after `step` needs others, too."""
        return self.select(element) if self.is_last(step) else element

    def is_last(self, step: Step) -> bool:
        """Return whether no step after `step` needs features that batches do not hold."""
        kinds = Map | SampleByClass | Window | TokenWindow
        return step is [each for each in self.plan.steps if isinstance(each, kinds)][-1]

    def select(self, element: Element) -> Element | tuple:
        return select_outputs(element, self.data.shards.schema, with_keys=self.with_keys)


def map_rows(
    step: Gather | ReadIndexedShards,
    order: StepOrder,
    fetch: Callable[[tf.Tensor, tf.Tensor], Any],
    *,
    first: tf.Tensor,
    stop: tf.Tensor,
) -> Dataset:
    """Call `fetch` with the number and the rows of each training step in [first, stop).

    `first` and `stop` are int64 scalars, counted over all epochs. The rows of many steps are
    computed in one call.
    """
    steps = Dataset.range(first, stop, name="steps").batch(STEPS_PER_ORDER_CALL, name="steps")
    numbered = steps.map(lambda numbers: (numbers, order.rows(numbers)), name="order")
    return numbered.unbatch(name="order").map(
        fetch,
        num_parallel_calls=step.parallel.num_parallel_calls(on_host=order.worker.on_host),
        name=step.trace_name,
    )


def build_steps(
    steps: Sequence[Step], dataset: Dataset | None, context: BuildContext, epoch: tf.Tensor
) -> Dataset:
    """Add `steps` in turn to `dataset` (None: they start it), for an `epoch` (int64 scalar)."""
    for step in steps:
        dataset = build_step(step, dataset, context, epoch)
    if dataset is None:
        raise ValueError("a plan without steps")
    return dataset


@singledispatch
def build_step(
    step: object, dataset: Dataset | None, context: BuildContext, epoch: tf.Tensor
) -> Dataset:
    """Add one step of a plan to a dataset; the first step starts the dataset."""
    raise NotImplementedError(f"no function builds the step {type(step).__name__}")


@build_step.register
def _(step: Read, dataset: None, context: BuildContext, epoch: tf.Tensor) -> Dataset:
    return stream_readers.read(
        step, context.data, context.split, seed=context.seed_for("shards", epoch)
    )


@build_step.register
def _(step: ReadIndexedShards, dataset: None, context: BuildContext, epoch: tf.Tensor) -> Dataset:
    order, records = context.order, context.records
    if order is None or records is None:
        raise ValueError("a plan that reads indexed shards has no records")

    def fetch(number: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        return fetch_records(records, order.trim(rows, number))

    first = tf.maximum(epoch * context.steps_per_epoch, context.first_step)
    stop = (epoch + 1) * context.steps_per_epoch
    batches = map_rows(step, order, fetch, first=first, stop=stop)
    return batches if step.whole_batches else batches.unbatch(name=step.trace_name)


@build_step.register
def _(step: Map, dataset: Dataset, context: BuildContext, epoch: tf.Tensor) -> Dataset:
    def run(element: Element | tf.Tensor) -> Element | tuple:
        # Shards deliver serialized records.
        element = {"record": element} if isinstance(element, tf.Tensor) else element
        return context.select_if_last(
            apply_ops(
                step.ops,
                element,
                seed=context.seed,
                epoch=epoch,
                first_op_position=step.first_op_position,
            ),
            step,
        )

    return dataset.map(
        run,
        num_parallel_calls=step.parallel.num_parallel_calls(on_host=context.worker.on_host),
        name=step.trace_name,
    )


@build_step.register
def _(step: Cache, dataset: Dataset, context: BuildContext, epoch: tf.Tensor) -> Dataset:
    if step.where == "memory":
        return dataset.cache(name=step.trace_name)
    # tf.data's caches on disk have no key, so every dataset gets a fresh folder, which is removed
    # with its pipeline.
    folder = str(context.scratch.new_folder() / "elements")
    if step.where == "disk":
        return dataset.cache(folder, name=step.trace_name)
    if step.where == "tf_snapshot":
        return dataset.snapshot(folder, compression=None, name=step.trace_name)
    dataset.save(folder)
    return Dataset.load(folder)


@build_step.register
def _(step: SampleByClass, dataset: Dataset, context: BuildContext, epoch: tf.Tensor) -> Dataset:
    source, caches = context.plan.steps[0], context.plan.caches
    several = len(context.data.shards.for_split(context.split)) > 1
    sampled = stream_readers.sample_stream_by_class(
        dataset,
        step.sampling,
        context.data,
        context.split,
        seed=context.seed_for("classes", epoch),
        reordered=isinstance(source, Read) and source.shuffle_files and several and not caches,
    )
    if caches:
        # One pass fills the cache. Otherwise each class's stream would fill a copy of its own.
        filled = dataset.filter(lambda element: tf.constant(False), name=step.trace_name)
        sampled = filled.concatenate(sampled, name=step.trace_name)
    return sampled.map(context.select, name="select") if context.is_last(step) else sampled


@build_step.register
def _(
    step: Window | TokenWindow, dataset: Dataset, context: BuildContext, epoch: tf.Tensor
) -> Dataset:
    windows = (
        stream_readers.windows(dataset, step, step.cuts_of(context.split))
        if isinstance(step, Window)
        else stream_readers.token_windows(dataset, step)
    )
    return windows.map(lambda element: context.select_if_last(element, step), name="select")


@build_step.register
def _(step: Shuffle, dataset: Dataset, context: BuildContext, epoch: tf.Tensor) -> Dataset:
    size = shuffle_buffer_size(step.size, examples=context.examples)
    return dataset.shuffle(
        size,
        seed=context.seed_for("shuffle", epoch),
        reshuffle_each_iteration=False,
        name=step.trace_name,
    )


@build_step.register
def _(step: Batch, dataset: Dataset, context: BuildContext, epoch: tf.Tensor) -> Dataset:
    size = step.size // context.worker.count
    if context.data.shards.schema.input.encoding.padded:
        return dataset.padded_batch(size, name=step.trace_name)
    return dataset.batch(size, name=step.trace_name)


@build_step.register
def _(step: BucketBatch, dataset: Dataset, context: BuildContext, epoch: tf.Tensor) -> Dataset:
    buckets, feature = context.buckets, context.data.shards.schema.input.name
    if buckets is None:
        raise TypeError(f"{context.plan} has no length buckets")

    def length(*element: Any) -> tf.Tensor:
        value = element[0][feature] if isinstance(element[0], dict) else element[0]
        return tf.shape(value)[0]

    return dataset.bucket_by_sequence_length(
        length,
        bucket_boundaries=(buckets.boundaries + 1).tolist(),  # the first length that is too long
        bucket_batch_sizes=[*buckets.sizes.tolist(), 1],
        pad_to_bucket_boundary=True,
        name=step.trace_name,
    )


@build_step.register
def _(step: Service, dataset: Dataset, context: BuildContext, epoch: tf.Tensor) -> Dataset:
    """Rebatch what the service's workers deliver, since each ends with a smaller batch.

    Elements lost with a worker are replaced from a second pass, so that an epoch keeps its length.

    Raises:
      ImpossiblePlan: A user's op calls Python.
    """
    library = tf.compat.v1.get_default_graph().as_graph_def().library
    if called := find_python_call(library):
        raise ImpossiblePlan(
            f"service: {called} calls Python (tf.numpy_function or tf.py_function), which cannot"
            " be sent to the workers of a tf.data service; write it in TensorFlow ops, or drop"
            " `service`"
        )
    service = tf.data.experimental.service
    modes = {
        "off": service.ShardingPolicy.OFF,
        "dynamic": service.ShardingPolicy.DYNAMIC,
        "static": service.ShardingPolicy.FILE_OR_DATA,
    }
    distribute = service.distribute(
        processing_mode=modes[step.settings.sharding],
        service=context.service_address,
        compression=None,
    )
    with warnings.catch_warnings():
        # In an epoch's graph TensorFlow warns about an option that is not set anywhere.
        warnings.filterwarnings("ignore", "To make it possible to preserve tf.data options")
        batches = dataset.with_options(context.options()).apply(distribute).rebatch(step.batch_size)
    return batches.repeat().take(context.steps_per_epoch, name=step.trace_name)


@build_step.register
def _(step: Prefetch, dataset: Dataset, context: BuildContext, epoch: tf.Tensor) -> Dataset:
    return dataset.prefetch(
        tf.data.AUTOTUNE if step.batches == "auto" else step.batches, name=step.trace_name
    )
