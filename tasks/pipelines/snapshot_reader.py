"""Reading the memory-mapped snapshot: a batch is a gather of rows, and which rows is arithmetic.

The columns are variables over the files' memory mappings: opening them takes no time and no memory,
whatever their size, and the cache is the operating system's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import tensorflow as tf

from tasks.data.columns import column_path, read_ahead
from tasks.data.splits import steps_per_epoch
from tasks.pipelines.cutting import draw_cut, make_cut_fn
from tasks.pipelines.elements import apply_ops, random_stream, select_outputs, split_window
from tasks.pipelines.hosts import Host
from tasks.pipelines.kernels import Element, compute
from tasks.pipelines.prepared_data import PreparedData, labels_and_weights
from tasks.pipelines.resampling import compute_on_device
from tasks.pipelines.samplers import (
    ClassIndex,
    class_index,
    permute,
    sample_by_class,
    window_shuffle,
)
from tasks.pipelines.steps import Gather, shuffle_buffer_size

Columns = Mapping[str, tf.Tensor]  # values of whole columns by their names
# Columns, rows (batch,), epoch → examples that can be batched.
FetchFn = Callable[[Columns, tf.Tensor, tf.Tensor], Element]
# Columns, step, rows (batch,) → finished batch.
BatchFn = Callable[[Columns, tf.Tensor, tf.Tensor], Element | tuple]
GatherFn = Callable[[tf.Tensor], Element | tuple]  # step → finished batch


@dataclass(frozen=True, kw_only=True)
class SnapshotReader:
    """One split of a snapshot, read as a plan's `gather` says.

    Steps are int64, counted over all epochs; rows are int64 indices into the split.
    """

    data: PreparedData
    split: str
    gather: Gather
    seed: int
    host: Host
    with_keys: bool

    @property
    def examples(self) -> int:
        """Examples in an epoch, over all hosts: rows, or windows of a series; without those that
        the hosts cannot share equally.
        """
        return self.host.shared(self._ordered, self.gather.batch_size)

    @property
    def steps(self) -> int:
        """Batches in an epoch."""
        return steps_per_epoch(self.examples, self.gather.batch_size)

    @cached_property
    def variables(self) -> Mapping[str, tf.Tensor | tf.Variable]:
        """The columns that batches are made of: memory-mapped, or copied to the device where the
        plan says that the split lives there.
        """
        label = () if self.gather.window else ("label",)
        key = ("key",) if self.with_keys or any(op.random for op in self.gather.ops) else ()
        names = (self.data.shards.schema.feature, *label, *key)
        sizes = [column.offsets.name for column in map(self.data.column, names) if column.ragged]
        with tf.init_scope():  # outside of any function that is being traced
            variables = {
                name: mapped_variable(self.data, self.split, name) for name in (*names, *sizes)
            }
            return (
                variables
                if self.gather.on == "host"
                else {name: tf.identity(variable) for name, variable in variables.items()}
            )

    def columns(self) -> Columns:
        """The values of the columns, which are not copied."""
        return {name: tf.convert_to_tensor(variable) for name, variable in self.variables.items()}

    def rows(self, steps: tf.Tensor) -> tf.Tensor:
        """Rows (steps, batch on this host) that `steps` (n,) are made of.

        Where the last batch of an epoch is smaller, what is beyond it repeats its last row; `size`
        says how many count.
        """
        epoch, step_of_epoch = steps // self.steps, steps % self.steps
        first, _ = self._bounds(step_of_epoch)
        width = -(-self.gather.batch_size // self.host.count)
        positions = tf.minimum(first[:, None] + tf.range(width, dtype=tf.int64), self.examples - 1)
        return self._rows_for_positions(positions, epoch[:, None])

    def size(self, step: tf.Tensor) -> tf.Tensor:
        """Examples that this host has of a step, a scalar."""
        first, stop = self._bounds(step % self.steps)
        return stop - first

    def make_gather_fn(self) -> GatherFn:
        """The function from a step (scalar) to its finished batch."""
        make_batch = self.make_batch_fn()
        return lambda step: make_batch(self.columns(), step, self.rows(step[None])[0])

    def make_batch_fn(self) -> BatchFn:
        """The function from columns, a step (scalar) and its rows (batch,) to the batch."""
        gather, fetch = self.gather, self.make_fetch_fn()
        always_full = (
            self.examples % gather.batch_size == 0 and gather.batch_size % self.host.count == 0
        )

        def make_batch(columns: Columns, step: tf.Tensor, rows: tf.Tensor) -> Element | tuple:
            # The last batch of an epoch may be smaller than the others.
            epoch = step // self.steps
            examples = fetch(columns, rows if always_full else rows[: self.size(step)], epoch)
            batch = apply_ops(
                gather.ops[gather.per_example :],
                examples,
                seed=self.seed,
                epoch=epoch,
                first=gather.per_example,
                kernel=compute_on_device if gather.on == "device" else compute,
            )
            return select_outputs(batch, self.data.shards.schema, with_keys=self.with_keys)

        return make_batch

    def make_fetch_fn(self) -> FetchFn:
        """The function from columns, rows (batch,) and an epoch to examples that can be batched: as
        stored, or each cropped to size.
        """
        if self.gather.cut:
            return self._make_cut_fetch_fn()
        ops = self.gather.ops[: self.gather.per_example]
        if not ops:
            return lambda columns, rows, epoch: self._fetch(columns, rows)
        one = tf.function(
            lambda columns, row, epoch: apply_ops(
                ops, self._fetch_one(columns, row), seed=self.seed, epoch=epoch
            )
        )
        scalar = tf.TensorSpec((), tf.int64)
        specs = tf.nest.map_structure(tf.TensorSpec.from_tensor, self.columns())
        uniform = tf.nest.map_structure(
            tf.TensorSpec.from_tensor,
            one.get_concrete_function(specs, scalar, scalar).structured_outputs,
        )
        return lambda columns, rows, epoch: tf.map_fn(
            lambda row: one(columns, row, epoch), rows, fn_output_signature=uniform
        )

    def _make_cut_fetch_fn(self) -> FetchFn:
        """A fetch that reads nothing of the images but the boxes which the first ops cut."""
        ops, column = self.gather.cut, self.data.column(self.data.shards.schema.feature)
        cut = make_cut_fn(self.data, self.split, ops[0])

        def fetch(columns: Columns, rows: tf.Tensor, epoch: tf.Tensor) -> Element:
            examples = {
                name: tf.gather(values, rows)
                for name, values in columns.items()
                if name != column.name
            }
            sizes = (
                tf.cast(examples.pop(column.offsets.name)[:, 1:3], tf.int32)
                if column.ragged
                else tf.constant(column.shape[:2], tf.int32)
            )
            draws = [
                random_stream(op, position, seed=self.seed, epoch=epoch)
                for position, op in enumerate(ops)
            ]
            with tf.name_scope(ops[0].name):
                boxes = draw_cut(ops, sizes, examples.get("key", rows), draws)
                return {**examples, column.name: cut(rows, boxes)}

        return fetch

    @property
    def _ordered(self) -> int:
        """Examples that an epoch's order is an order of."""
        rows = self.data.snapshot.splits[self.split].count
        return self.gather.window.count(rows) if self.gather.window else rows

    @cached_property
    def _classes(self) -> ClassIndex:
        return class_index(*labels_and_weights(self.gather.sampling, self.data, self.split))

    def _bounds(self, step_of_epoch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """First position of this host's slice of a batch, and the one after its last."""
        start = step_of_epoch * self.gather.batch_size
        size = tf.minimum(tf.constant(self.gather.batch_size, tf.int64), self.examples - start)
        return (
            start + size * self.host.index // self.host.count,
            start + size * (self.host.index + 1) // self.host.count,
        )

    def _rows_for_positions(self, positions: tf.Tensor, epochs: tf.Tensor) -> tf.Tensor:
        """Rows at positions (steps, batch) in the orders of epochs (steps, 1)."""
        shuffle, count = self.gather.shuffle, self._ordered
        if self.gather.sampling != "uniform":
            return sample_by_class(positions, index=self._classes, seed=self.seed, epoch=epochs)
        if shuffle.kind == "global":
            return permute(positions, count=count, seed=self.seed, epoch=epochs)
        if shuffle.kind == "window":
            window = shuffle_buffer_size(shuffle.size, examples=count)
            return window_shuffle(
                positions, count=count, window=window, seed=self.seed, epoch=epochs
            )
        return positions

    def _fetch_one(self, columns: Columns, row: tf.Tensor) -> Element:
        """The example in `row`, a scalar; of a ragged column, a slice that is not copied."""
        example = {
            name: tf.gather(values, row)
            for name, values in columns.items()
            if not self.data.column(name).ragged
        }
        for column in [column for column in map(self.data.column, columns) if column.ragged]:
            offset = example.pop(column.offsets.name)
            value = tf.reshape(
                tf.slice(columns[column.name], offset[:1], [tf.reduce_prod(offset[1:])]), offset[1:]
            )
            example[column.name] = tf.ensure_shape(value, column.shape)
        return example

    def _fetch(self, columns: Columns, rows: tf.Tensor) -> Element:
        """The examples in `rows` (batch,), of columns that are not ragged."""
        window = self.gather.window
        if window is None:
            return {name: tf.gather(values, rows) for name, values in columns.items()}
        starts = rows * window.stride
        time_steps = tf.gather(
            columns["features"],
            starts[:, None] + tf.range(window.length + window.horizon, dtype=tf.int64),
        )
        examples = split_window(time_steps, window.length, window.targets)
        return examples | ({"key": tf.gather(columns["key"], starts)} if "key" in columns else {})


def mapped_variable(data: PreparedData, split: str, name: str) -> tf.Variable:
    """A snapshot column as a variable over its memory mapping: no time, no memory, whatever its
    size.

    A variable, because graphs hold a handle to it where they would hold a tensor itself, and copy
    it when they are rewritten.
    """
    read_ahead(column_path(data.snapshot_folder, split, name))
    with tf.device("CPU:0"):
        tensor = tf.experimental.dlpack.from_dlpack(
            np.asarray(data.memmap(split, name)).__dlpack__()
        )
        return tf.Variable(tensor, trainable=False, name=name)
