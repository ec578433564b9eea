"""From a plan to a tf.data.Dataset: a fold over the plan's steps, one small function per verb.

`InputPipeline` is what the stages use: it knows how many examples and steps an epoch has, gives the data set of one or
more epochs as one sequence, and, for a snapshot, starts at any (epoch, step) without replaying what came before.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce, singledispatch
from typing import Any

import numpy as np
import tensorflow as tf

from tasks.data.splits import steps_per_epoch
from tasks.pipelines import streams
from tasks.pipelines.kernels import Draw, Element, compute
from tasks.pipelines.mapped import Host, MappedSplit
from tasks.pipelines.ops import Op
from tasks.pipelines.plan import Plan
from tasks.pipelines.randomness import fold
from tasks.pipelines.steps import Apply, Batch, Distribute, DrawByClass, Gather, Keep, Mix, Prefetch, Read, Step, Windows, mixed_together
from tasks.pipelines.stored import Stored
from tasks.scratch import Scratch

GRAPH_SEED = 1
STEPS_AT_ONCE = 32  # whose rows are computed together, so that the cost of calling the samplers' ops is shared


@dataclass(frozen=True, kw_only=True)
class InputPipeline:
    """A plan bound to one split of the stored data.

    Batches are (input, label): image (batch, height, width, channels) or features (batch, …), label (batch,) int64 or what
    the task predicts; or dicts that also carry `key` (batch,) int64 when `with_keys` is set. `address` is that of a tf.data service.
    `scratch` holds caches and lives as long as the pipeline; `iterations` counts those of `epoch_by_epoch`.
    """

    plan: Plan
    stored: Stored
    split: str
    batch_size: int
    seed: int
    with_keys: bool = False
    host: Host = field(default_factory=Host)
    address: str = ""
    scratch: Scratch = field(default_factory=Scratch)
    iterations: tf.Variable = field(default_factory=lambda: tf.Variable(0, dtype=tf.int64, trainable=False, name="iterations"))

    @property
    def examples(self) -> int:
        """Examples in an epoch."""
        if self.plan.gathers:
            return self.mapped.examples
        stored = self.stored.shards.examples(self.split)
        return self.plan.windows.count(stored) if self.plan.windows else stored

    @property
    def steps(self) -> int:
        """Batches in an epoch."""
        return steps_per_epoch(self.examples, self.batch_size)

    @property
    def batch_bytes(self) -> int:
        """Size of the input of a full batch, as it leaves the host."""
        spec = self.dataset().element_spec[0]
        return self.batch_size * spec.dtype.size * (spec.shape[1:].num_elements() or 0)

    @cached_property
    def mapped(self) -> MappedSplit:
        """The snapshot's split, for a plan that gathers."""
        gather = self.plan.steps[0]
        if not isinstance(gather, Gather):
            raise TypeError(f"{self.plan} does not gather")
        return MappedSplit(stored=self.stored, split=self.split, gather=gather, seed=self.seed, host=self.host)

    @cached_property
    def columns(self) -> Mapping[str, tf.Tensor | tf.Variable]:
        """The columns that a plan that gathers takes its batches from, by their names."""
        label = () if self.plan.windows else ("label",)
        key = ("key",) if self.with_keys or any(op.random for op in self.mapped.gather.ops) else ()
        with tf.init_scope():  # outside of any function that is being traced
            return self.mapped.columns((self.stored.shards.schema.feature, *label, *key))

    def values(self) -> dict[str, tf.Tensor]:
        """The values of the columns, which are not copied."""
        return {name: tf.convert_to_tensor(column) for name, column in self.columns.items()}

    def dataset(self, *, first_step: int = 0, epochs: int = 1) -> tf.data.Dataset:
        """The batches from `first_step` (counted over all epochs) to the end of epoch `epochs` (counted from 0, excluded), as one sequence.

        A plan that gathers starts at any step, a stream with the epoch in which `first_step` lies.
        """
        if self.plan.gathers:
            batches = self._gathered(tf.data.Dataset.from_tensors((np.int64(first_step), np.int64(epochs * self.steps))))
            count = epochs * self.steps - first_step
        else:
            begun = first_step // self.steps
            numbers = tf.data.Dataset.range(begun, epochs, name="epochs")
            batches, count = self._streamed(numbers, ahead=True), (epochs - begun) * self.steps
        return batches.apply(tf.data.experimental.assert_cardinality(count)).with_options(self.options())

    def epoch_by_epoch(self) -> tf.data.Dataset:
        """One epoch, and with every new iteration the next: for loops that iterate anew, such as `fit(dataset, epochs=…)`, and for `repeat()`."""
        numbers = tf.data.Dataset.from_tensors(1).map(lambda one: self.iterations.assign_add(tf.cast(one, tf.int64)) - 1, name="epochs")
        if self.plan.gathers:
            batches = self._gathered(numbers.map(lambda epoch: (epoch * self.steps, (epoch + 1) * self.steps), name="epochs"))
        else:
            batches = self._streamed(numbers, ahead=False)
        return batches.apply(tf.data.experimental.assert_cardinality(self.steps)).with_options(self.options())

    def batches(self, *, first_step: int = 0, epochs: int = 1) -> Iterator[Any]:
        """Iterate over the same batches; those of a plan that is resident are gathered on the device."""
        if not self.plan.resident:
            return iter(self.dataset(first_step=first_step, epochs=epochs))
        gather = tf.function(self.gatherer())
        return map(gather, tf.data.Dataset.range(first_step, epochs * self.steps))

    def gatherer(self) -> Callable[[tf.Tensor], Element | tuple]:
        """The function from a step (scalar int64, counted over all epochs) to its finished batch, for a plan that gathers."""
        finished = self.finisher()
        return lambda step: finished(self.values(), step, self.mapped.rows(step[None])[0])

    def finisher(self) -> Callable[[Mapping[str, tf.Tensor], tf.Tensor, tf.Tensor], Element | tuple]:
        """The function from the columns' values, a step and its rows (batch,) to the finished batch, for a plan that gathers."""
        gather, fetch = self.mapped.gather, self.fetcher()
        whole = self.examples % self.batch_size == 0 and self.batch_size % self.host.count == 0

        def finished(values: Mapping[str, tf.Tensor], step: tf.Tensor, rows: tf.Tensor) -> Element | tuple:
            # The last batch of an epoch may be smaller than the others.
            epoch = step // self.steps
            element = fetch(values, rows if whole else rows[: self.mapped.size(step)], epoch)
            return self.selected(self.applied(gather.ops[gather.alone :], element, epoch, first=gather.alone))

        return finished

    def fetcher(self) -> Callable[[Mapping[str, tf.Tensor], tf.Tensor, tf.Tensor], Element]:
        """The function from columns' values, rows (batch,) and an epoch to the examples as they can be batched: as stored, or each cut to size."""
        gather = self.mapped.gather
        if not gather.alone:
            return lambda values, rows, epoch: self.mapped.fetch(values, rows)
        one = tf.function(lambda values, row, epoch: self.applied(gather.ops[: gather.alone], self.mapped.fetch_one(values, row), epoch))
        number = tf.TensorSpec((), tf.int64)
        specs = tf.nest.map_structure(tf.TensorSpec.from_tensor, self.values())
        alike = tf.nest.map_structure(tf.TensorSpec.from_tensor, one.get_concrete_function(specs, number, number).structured_outputs)
        return lambda values, rows, epoch: tf.map_fn(lambda row: one(values, row, epoch), rows, fn_output_signature=alike)

    def applied(self, ops: Sequence[Op], element: Element, epoch: tf.Tensor, *, first: int = 0) -> Element:
        """Run ops on an element; their names stand in a trace before those of the kernels they call.

        `first` is the position in `augment` of the first of them. What an op draws depends on its name and position, not on its arguments:
        equal ops draw independently, and a stronger one draws as the weaker one did.
        """
        for position, op in enumerate(ops, first):
            with tf.name_scope(op.name):
                element = compute(op, element, Draw(seed=self.seed, epoch=epoch, salts=(op.name, position)))
        return element

    def selected(self, element: Element) -> Element | tuple:
        """What a batch consists of."""
        if self.with_keys:
            return element
        return element[self.stored.shards.schema.feature], element["label"]

    def options(self) -> tf.data.Options:
        """tf.data rewrites the graph by default, which would make a naive pipeline less naive."""
        options = tf.data.Options()
        options.deterministic = self.plan.deterministic
        options.autotune.enabled = self.plan.autotunes
        options.experimental_optimization.apply_default_optimizations = self.plan.rewrites
        if self.plan.threads != "shared":
            options.threading.private_threadpool_size = int(self.plan.threads)
        return options

    def _folded(self, steps: Sequence[Step], dataset: tf.data.Dataset | None, extent: Extent) -> Any:
        """Run steps of the plan one after another."""
        return reduce(lambda made, step: extend(step, made, self, extent), steps, dataset)

    def _gathered(self, extents: tf.data.Dataset) -> tf.data.Dataset:
        """The batches of ranges of steps (first, and the one behind the last, int64 scalars), one behind the other.

        The columns are read where a range begins. A function that captured them would have them copied, all of them, whenever tf.data rewrites
        the graph; one that reads them would be called one step at a time under op determinism.
        """
        opened = extents.map(lambda first, stop: (first, stop, self.values()), name="columns")

        def gathered(first: tf.Tensor, stop: tf.Tensor, values: Mapping[str, tf.Tensor]) -> tf.data.Dataset:
            return self._folded(self.plan.steps, None, Extent(first_step=first, stop=stop, values=values))

        return opened.flat_map(gathered, name="epochs")

    def _streamed(self, epochs: tf.data.Dataset, *, ahead: bool) -> tf.data.Dataset:
        """A stream of the epochs with these numbers, one behind the other.

        An iterator that is destroyed waits for AUTOTUNE's thread, as long as the epoch has lasted; so one iterator goes through all.
        With `ahead`, a plan that prefetches opens each epoch while the one before is consumed.
        """
        once, anew, behind = self.plan.phases
        kept = self._folded(once, None, Extent())

        def each(epoch: tf.Tensor) -> tf.data.Dataset:
            if not tf.executing_eagerly():
                # Of this graph alone: seeds of ops do not depend on the process', and TensorFlow fails where that is 0 and an op's is a tensor.
                tf.random.set_seed(GRAPH_SEED)
            return self._folded(anew, kept, Extent(epoch=epoch))

        if not (ahead and behind):
            together = epochs.flat_map(each, name="epochs")
        elif self.plan.caches:  # which is full after one epoch
            together = epochs.take(1).flat_map(each, name="epochs").concatenate(streams.opened_ahead(epochs.skip(1), each))
        else:
            together = streams.opened_ahead(epochs, each)
        return self._folded(behind, together, Extent())


@dataclass(frozen=True, kw_only=True)
class Extent:
    """What of all the steps of all epochs is to be delivered: of a plan that gathers, a range of steps (`stop` excluded); of a stream, an epoch."""

    first_step: int | tf.Tensor = 0
    stop: int | tf.Tensor = 0
    values: Mapping[str, tf.Tensor] = field(default_factory=dict)
    epoch: tf.Tensor = field(default_factory=lambda: tf.constant(0, tf.int64))


@singledispatch
def extend(step: object, dataset: tf.data.Dataset | None, pipeline: InputPipeline, extent: Extent) -> tf.data.Dataset:
    """Add one step of a plan to a data set; the first step starts it."""
    raise NotImplementedError(f"no verb for {type(step).__name__}")


@extend.register
def _(step: Read, dataset: None, pipeline: InputPipeline, extent: Extent) -> tf.data.Dataset:
    return streams.read(step, pipeline.stored, pipeline.split, seed=_order_seed(pipeline, extent, "shards"))


@extend.register
def _(step: Gather, dataset: None, pipeline: InputPipeline, extent: Extent) -> tf.data.Dataset:
    """A batch is a gather: the rows of a step are arithmetic, computed for many steps at once, and come straight from the mapped columns."""
    steps = tf.data.Dataset.range(extent.first_step, extent.stop, name="steps").batch(STEPS_AT_ONCE, name="steps")
    numbered = steps.map(lambda numbers: (numbers, pipeline.mapped.rows(numbers)), name="sample").unbatch(name="sample")
    finished = pipeline.finisher()
    return numbered.map(lambda number, rows: finished(extent.values, number, rows), num_parallel_calls=streams.calls(step.parallel), name="gather")


@extend.register
def _(step: Windows, dataset: tf.data.Dataset, pipeline: InputPipeline, extent: Extent) -> tf.data.Dataset:
    slid = streams.windows(dataset, step)
    return slid.map(pipeline.selected, name="select") if _last_of_all(step, pipeline.plan) else slid


@extend.register
def _(step: Apply, dataset: tf.data.Dataset, pipeline: InputPipeline, extent: Extent) -> tf.data.Dataset:
    def run(element: Element | tf.Tensor) -> Element | tuple:
        element = {"record": element} if isinstance(element, tf.Tensor) else element  # shards deliver bare records
        element = pipeline.applied(step.ops, element, extent.epoch, first=step.first)
        return pipeline.selected(element) if _last_of_all(step, pipeline.plan) else element

    return dataset.map(run, num_parallel_calls=streams.calls(step.parallel), name="_".join(op.name for op in step.ops))


@extend.register
def _(step: DrawByClass, dataset: tf.data.Dataset, pipeline: InputPipeline, extent: Extent) -> tf.data.Dataset:
    return streams.drawn_by_class(dataset, step.sample, pipeline.stored, pipeline.split, seed=_order_seed(pipeline, extent, "classes"))


@extend.register
def _(step: Keep, dataset: tf.data.Dataset, pipeline: InputPipeline, extent: Extent) -> tf.data.Dataset:
    if step.where == "memory":
        return dataset.cache(name="cache_memory")
    # What tf.data keeps on disk has no key of its own, so every data set gets a fresh folder that goes away with its pipeline.
    folder = str(pipeline.scratch.new_folder() / "elements")
    if step.where == "disk":
        return dataset.cache(folder, name="cache_disk")
    if step.where == "tf_snapshot":
        return dataset.snapshot(folder, compression=None, name="tf_snapshot")
    dataset.save(folder)
    return tf.data.Dataset.load(folder)


@extend.register
def _(step: Mix, dataset: tf.data.Dataset, pipeline: InputPipeline, extent: Extent) -> tf.data.Dataset:
    size, seed = mixed_together(step.size, examples=pipeline.examples), _order_seed(pipeline, extent, "shuffle")
    return dataset.shuffle(size, seed=seed, reshuffle_each_iteration=False, name="shuffle")


@extend.register
def _(step: Batch, dataset: tf.data.Dataset, pipeline: InputPipeline, extent: Extent) -> tf.data.Dataset:
    return dataset.batch(step.size, name="batch")


@extend.register
def _(step: Distribute, dataset: tf.data.Dataset, pipeline: InputPipeline, extent: Extent) -> tf.data.Dataset:
    """Workers batch what they read, each with a remainder; rebatching makes the epoch's batches whole again.

    What a dying worker took with it is made up from a second pass, so that an epoch keeps its length.
    """
    service = tf.data.experimental.service
    modes = {"off": service.ShardingPolicy.OFF, "dynamic": service.ShardingPolicy.DYNAMIC, "static": service.ShardingPolicy.FILE_OR_DATA}
    spread = service.distribute(processing_mode=modes[step.service.sharding], service=pipeline.address, compression=None)
    with warnings.catch_warnings():
        # In the graph of an epoch TensorFlow is not sure of the options, of which it needs one that is nowhere set.
        warnings.filterwarnings("ignore", "To make it possible to preserve tf.data options")
        whole = dataset.with_options(pipeline.options()).apply(spread).rebatch(step.batch_size)
    return whole.repeat().take(pipeline.steps, name="service")


@extend.register
def _(step: Prefetch, dataset: tf.data.Dataset, pipeline: InputPipeline, extent: Extent) -> tf.data.Dataset:
    return dataset.prefetch(tf.data.AUTOTUNE if step.batches == "auto" else step.batches, name="prefetch")


def _order_seed(pipeline: InputPipeline, extent: Extent, who: str) -> tf.Tensor:
    """Seed of what tf.data itself draws in an epoch, int64, not negative; `who` draws."""
    key = fold(pipeline.seed, extent.epoch, who)
    return tf.cast(tf.bitwise.right_shift(key, tf.constant(1, tf.uint64)), tf.int64)


def _last_of_all(step: Apply | Windows, plan: Plan) -> bool:
    """Whether a step is the last that makes elements, so that it selects what a batch consists of."""
    return step is [item for item in plan.steps if isinstance(item, Apply | Windows)][-1]
