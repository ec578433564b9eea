"""The epochs of an input pipeline as one sequence of batches without gaps."""

from __future__ import annotations

import tensorflow as tf

from throughline.kernels.randomness import GRAPH_SEED
from throughline.pipelines.dataset import BuildContext, build_gather, build_steps
from throughline.pipelines.read.snapshot_reader import Columns, SnapshotReader
from throughline.pipelines.read.stream_readers import open_next_epoch_early
from throughline.plan.plan import Plan
from throughline.plan.steps import Cache, Prefetch, Read, Step

Steps = tuple[Step, ...]


def build_snapshot_batches(
    context: BuildContext, reader: SnapshotReader, step_ranges: tf.data.Dataset
) -> tf.data.Dataset:
    """Return the batches of ranges of steps (first and stop, scalars int64), back to back.

    The columns are read at the start of a range. A function that captured them would copy all of
    them whenever tf.data rewrites the graph; one that read them at each step would run one step at
    a time under op determinism.
    """
    opened = step_ranges.map(lambda first, stop: (first, stop, reader.columns()), name="columns")

    def one_range(first: tf.Tensor, stop: tf.Tensor, columns: Columns) -> tf.data.Dataset:
        batches = build_gather(reader.gather, reader, first=first, stop=stop, columns=columns)
        return build_steps(
            context.plan.steps[1:], batches, context, first // context.steps_per_epoch
        )

    return opened.flat_map(one_range, name="epochs")


def build_stream_batches(
    context: BuildContext, epochs: tf.data.Dataset, *, open_early: bool
) -> tf.data.Dataset:
    """Return the batches of the epochs with these numbers (scalars int64), back to back.

    One iterator goes through all epochs, because destroying one waits for AUTOTUNE's thread, as
    long as the epoch has lasted. With `open_early`, a plan that prefetches opens each epoch while
    the previous one is consumed.
    """
    once, per_epoch, after_epochs = split_by_epochs(context.plan)
    first_epoch = tf.constant(0, tf.int64)
    source = build_steps(once, None, context, first_epoch) if once else None

    def one_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
        if not tf.executing_eagerly():
            # Only for this graph: op seeds do not depend on the process's, and TensorFlow fails if
            # that is 0 and an op's seed is a tensor.
            tf.random.set_seed(GRAPH_SEED)
        return build_steps(per_epoch, source, context, epoch)

    if not (open_early and after_epochs):
        batches = epochs.flat_map(one_epoch, name="epochs")
    elif context.plan.caches:  # the cache is full after one epoch
        batches = (
            epochs.take(1)
            .flat_map(one_epoch, name="epochs")
            .concatenate(open_next_epoch_early(epochs.skip(1), one_epoch))
        )
    else:
        batches = open_next_epoch_early(epochs, one_epoch)
    return build_steps(after_epochs, batches, context, first_epoch)


def split_by_epochs(plan: Plan) -> tuple[Steps, Steps, Steps]:
    """Split a stream's steps: built once (up to a cache), for every epoch, and after all."""
    steps = plan.steps
    caches = [number for number, step in enumerate(steps) if isinstance(step, Cache)]
    lists_source = isinstance(steps[0], Read) and steps[0].source in ("files", "arrays")
    first = caches[0] + 1 if caches else int(lists_source)
    last = len(steps) - isinstance(steps[-1], Prefetch)
    return steps[:first], steps[first:last], steps[last:]
