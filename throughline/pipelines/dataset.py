"""Builds a tf.data.Dataset from the steps of a plan, with a function per kind of step."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from throughline.kernels.elements import apply_ops, select_outputs
from throughline.kernels.kernels import Element
from throughline.kernels.randomness import find_python_call, fold
from throughline.pipelines.read import stream_readers
from throughline.pipelines.read.row_fetching import fetch_records
from throughline.pipelines.read.sequence_batches import StepOrder
from throughline.plan import steps
from throughline.shared.errors import ImpossiblePlan

if TYPE_CHECKING:
    from throughline.pipelines.input_pipeline import InputPipeline

Dataset = tf.data.Dataset
# Steps whose rows are computed in one call, to share the overhead of the samplers' ops.
STEPS_PER_ORDER_CALL = 32


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """The context of every step: the pipeline, and the number (int64 scalar) of the epoch.

    Batches begin with `first_step`, counted over all epochs, if it is in this epoch.
    """

    pipeline: InputPipeline
    number: tf.Tensor
    first_step: int = 0

    def seed_for(self, who: str) -> tf.Tensor:
        """Return a nonnegative int64 seed for the random draws of step `who`."""
        bits = fold(self.pipeline.seed, self.number, who)
        return tf.cast(tf.bitwise.right_shift(bits, tf.constant(1, tf.uint64)), tf.int64)

    def select_if_last(self, element: Element, step: steps.Step) -> Element | tuple:
        """Select the features that batches hold, unless a step after `step` needs others, too."""
        if not self.is_last(step):
            return element
        schema = self.pipeline.data.shards.schema
        return select_outputs(element, schema, with_keys=self.pipeline.with_keys)

    def is_last(self, step: steps.Step) -> bool:
        """Return whether no step after `step` needs features that batches do not hold."""
        kinds = steps.Map | steps.SampleByClass | steps.Window | steps.TokenWindow
        return step is [each for each in self.pipeline.plan.steps if isinstance(each, kinds)][-1]


def map_rows(
    step: steps.Gather | steps.ReadIndexedShards,
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
    numbers = Dataset.range(first, stop, name="steps").batch(STEPS_PER_ORDER_CALL, name="steps")
    numbered = numbers.map(lambda many: (many, order.rows(many)), name="order")
    return numbered.unbatch(name="order").map(
        fetch,
        num_parallel_calls=step.parallel.num_parallel_calls(on_host=order.worker.on_host),
        name=step.trace_name,
    )


def build_steps(parts: Sequence[steps.Step], dataset: Dataset | None, epoch: Epoch) -> Dataset:
    """Add steps in turn to `dataset`; if it is None, they start it."""
    for step in parts:
        dataset = build_step(step, dataset, epoch)
    if dataset is None:
        raise ValueError("a plan without steps")
    return dataset


@singledispatch
def build_step(step: object, dataset: Dataset | None, epoch: Epoch) -> Dataset:
    """Add one step of a plan to a dataset; the first step starts the dataset."""
    raise NotImplementedError(f"no function builds the step {type(step).__name__}")


@build_step.register
def _(step: steps.Read, dataset: None, epoch: Epoch) -> Dataset:
    pipeline = epoch.pipeline
    return stream_readers.read(step, pipeline.data, pipeline.split, seed=epoch.seed_for("shards"))


@build_step.register
def _(step: steps.ReadIndexedShards, dataset: None, epoch: Epoch) -> Dataset:
    order, records = epoch.pipeline.order, epoch.pipeline.records
    if order is None:
        raise TypeError(f"{epoch.pipeline.plan} has no order")

    def fetch(number: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        return fetch_records(records, order.trim(rows, number))

    first = tf.maximum(epoch.number * order.steps_per_epoch, epoch.first_step)
    stop = (epoch.number + 1) * order.steps_per_epoch
    batches = map_rows(step, order, fetch, first=first, stop=stop)
    return batches if step.whole_batches else batches.unbatch(name=step.trace_name)


@build_step.register
def _(step: steps.Map, dataset: Dataset, epoch: Epoch) -> Dataset:
    pipeline = epoch.pipeline

    def run(element: Element | tf.Tensor) -> Element | tuple:
        # Shards deliver serialized records.
        element = {"record": element} if isinstance(element, tf.Tensor) else element
        changed = apply_ops(
            step.ops,
            element,
            seed=pipeline.seed,
            epoch=epoch.number,
            first_op_position=step.first_op_position,
        )
        return epoch.select_if_last(changed, step)

    calls = step.parallel.num_parallel_calls(on_host=pipeline.worker.on_host)
    return dataset.map(run, num_parallel_calls=calls, name=step.trace_name)


@build_step.register
def _(step: steps.Cache, dataset: Dataset, epoch: Epoch) -> Dataset:
    if step.where == "memory":
        return dataset.cache(name=step.trace_name)
    # tf.data's caches on disk have no key, so every dataset gets a fresh folder, which is removed
    # with its pipeline.
    folder = str(epoch.pipeline.scratch.new_folder() / "elements")
    if step.where == "disk":
        return dataset.cache(folder, name=step.trace_name)
    if step.where == "tf_snapshot":
        return dataset.snapshot(folder, compression=None, name=step.trace_name)
    dataset.save(folder)
    return Dataset.load(folder)


@build_step.register
def _(step: steps.SampleByClass, dataset: Dataset, epoch: Epoch) -> Dataset:
    plan, data, split = epoch.pipeline.plan, epoch.pipeline.data, epoch.pipeline.split
    source, several = plan.steps[0], len(data.shards.for_split(split)) > 1
    shuffles_files = isinstance(source, steps.Read) and source.shuffle_files
    sampled = stream_readers.sample_stream_by_class(
        dataset,
        step.sampling,
        data,
        split,
        seed=epoch.seed_for("classes"),
        reordered=shuffles_files and several and not plan.caches,
    )
    if plan.caches:
        # One pass fills the cache. Otherwise each class's stream would fill a copy of its own.
        filled = dataset.filter(lambda element: tf.constant(False), name=step.trace_name)
        sampled = filled.concatenate(sampled, name=step.trace_name)
    if not epoch.is_last(step):
        return sampled
    return sampled.map(lambda element: epoch.select_if_last(element, step), name="select")


@build_step.register
def _(step: steps.Window | steps.TokenWindow, dataset: Dataset, epoch: Epoch) -> Dataset:
    windows = (
        stream_readers.windows(dataset, step, step.cuts_of(epoch.pipeline.split))
        if isinstance(step, steps.Window)
        else stream_readers.token_windows(dataset, step)
    )
    return windows.map(lambda element: epoch.select_if_last(element, step), name="select")


@build_step.register
def _(step: steps.Shuffle, dataset: Dataset, epoch: Epoch) -> Dataset:
    return dataset.shuffle(
        steps.shuffle_buffer_size(step.size, examples=epoch.pipeline.examples),
        seed=epoch.seed_for("shuffle"),
        reshuffle_each_iteration=False,
        name=step.trace_name,
    )


@build_step.register
def _(step: steps.Batch, dataset: Dataset, epoch: Epoch) -> Dataset:
    padded = epoch.pipeline.data.shards.schema.input.encoding.padded
    batch = dataset.padded_batch if padded else dataset.batch
    return batch(step.size // epoch.pipeline.worker.count, name=step.trace_name)


@build_step.register
def _(step: steps.BucketBatch, dataset: Dataset, epoch: Epoch) -> Dataset:
    buckets, feature = epoch.pipeline.buckets, epoch.pipeline.data.shards.schema.input.name
    if buckets is None:
        raise TypeError(f"{epoch.pipeline.plan} has no length buckets")

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
def _(step: steps.Service, dataset: Dataset, epoch: Epoch) -> Dataset:
    """Rebatch the batches of the service's workers, since each worker ends with a smaller batch.

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
        service=epoch.pipeline.service_address,
        compression=None,
    )
    with warnings.catch_warnings():
        # In an epoch's graph TensorFlow warns about an option that is not set anywhere.
        warnings.filterwarnings("ignore", "To make it possible to preserve tf.data options")
        distributed = dataset.with_options(epoch.pipeline.options()).apply(distribute)
        batches = distributed.rebatch(step.batch_size)
    return batches.repeat().take(epoch.pipeline.steps_per_epoch, name=step.trace_name)


@build_step.register
def _(step: steps.Prefetch, dataset: Dataset, epoch: Epoch) -> Dataset:
    ahead = tf.data.AUTOTUNE if step.batches == "auto" else step.batches
    return dataset.prefetch(ahead, name=step.trace_name)
