"""Reading the mapped snapshot: a batch is a gather of rows, and which rows is arithmetic.

The columns are variables over the files' memory mappings: opening them takes no time and no memory, whatever their size,
and the cache is the operating system's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import tensorflow as tf

from tasks.data.columns import column_path, read_ahead
from tasks.data.splits import steps_per_epoch
from tasks.errors import ImpossiblePlan, did_you_mean
from tasks.pipelines.kernels import Element
from tasks.pipelines.samplers import ClassIndex, class_index, drawn_by_class, permuted, permuted_within_windows
from tasks.pipelines.steps import Gather, mixed_together
from tasks.pipelines.stored import Stored
from tasks.settings import Sample


@dataclass(frozen=True, kw_only=True)
class Host:
    """One of `count` hosts that train together, each on its slice of every batch.

    All slices of a batch are equally large, so that the average over the hosts is the batch's mean, and none is empty. Of the last batch
    of an epoch the examples that cannot be shared equally are left out: fewer than hosts, and other ones each epoch where they are
    shuffled.
    """

    index: int = 0
    count: int = 1

    def shared(self, examples: int, batch_size: int) -> int:
        """How many of an epoch's examples all hosts together train on."""
        return examples - examples % batch_size % self.count

    def check(self, examples: int, batch_size: int) -> None:
        """Refuse what cannot be shared equally.

        Raises:
          ImpossiblePlan: the batch cannot be cut into equal slices, or there are fewer examples than hosts.
        """
        if batch_size % self.count:
            fitting = sorted({max(1, batch_size // self.count) * self.count, -(-batch_size // self.count) * self.count})
            raise ImpossiblePlan(
                f"batch_size: {batch_size} cannot be shared equally by {self.count} hosts (TF_CONFIG); use {' or '.join(map(str, fitting))}"
            )
        if examples < self.count:
            raise ImpossiblePlan(f"there are fewer examples than the {self.count} hosts of TF_CONFIG, of which each needs one")


@dataclass(frozen=True, kw_only=True)
class MappedSplit:
    """One split of a snapshot, read as a plan's first step says."""

    stored: Stored
    split: str
    gather: Gather
    seed: int
    host: Host

    @property
    def examples(self) -> int:
        """Examples in an epoch, over all hosts: rows, or windows of a series; without those that the hosts cannot share equally."""
        return self.host.shared(self._drawn, self.gather.batch_size)

    @property
    def _drawn(self) -> int:
        """Examples that an epoch's order is an order of."""
        rows = self.stored.snapshot.splits[self.split].count
        return self.gather.windows.count(rows) if self.gather.windows else rows

    @property
    def steps(self) -> int:
        """Batches in an epoch."""
        return steps_per_epoch(self.examples, self.gather.batch_size)

    @cached_property
    def _classes(self) -> ClassIndex:
        return class_index(*labels_and_weights(self.gather.sample, self.stored, self.split))

    def rows(self, steps: tf.Tensor) -> tf.Tensor:
        """Rows (steps, batch on this host) int64 that `steps` (n,) int64, counted over all epochs, are made of.

        Where the last batch of an epoch is smaller, what is beyond it repeats its last row; `size` says how many count.
        """
        epoch, within = steps // self.steps, steps % self.steps
        first, _ = self._bounds(within)
        width = -(-self.gather.batch_size // self.host.count)
        positions = tf.minimum(first[:, None] + tf.range(width, dtype=tf.int64), self.examples - 1)
        return self._sampled(positions, epoch[:, None])

    def size(self, step: tf.Tensor) -> tf.Tensor:
        """Examples that this host has of a step, a scalar."""
        first, last = self._bounds(step % self.steps)
        return last - first

    def _bounds(self, within: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """First position of this host's slice of a batch, and the one behind its last."""
        start = within * self.gather.batch_size
        size = tf.minimum(tf.constant(self.gather.batch_size, tf.int64), self.examples - start)
        return start + size * self.host.index // self.host.count, start + size * (self.host.index + 1) // self.host.count

    def _sampled(self, positions: tf.Tensor, epochs: tf.Tensor) -> tf.Tensor:
        shuffle, count = self.gather.shuffle, self._drawn
        if self.gather.sample.kind != "all":
            return drawn_by_class(positions, index=self._classes, seed=self.seed, epoch=epochs)
        if shuffle.kind == "global":
            return permuted(positions, count=count, seed=self.seed, epoch=epochs)
        if shuffle.kind == "window":
            return permuted_within_windows(positions, count=count, window=mixed_together(shuffle.size, examples=count), seed=self.seed, epoch=epochs)
        return positions

    def columns(self, names: tuple[str, ...]) -> dict[str, tf.Tensor | tf.Variable]:
        """Columns by their names: mapped, or copied to the device where the plan says that the split lives there."""
        beside = [column.extent.name for column in map(self.stored.column, names) if column.ragged]
        mapped = {name: mapped_variable(self.stored, self.split, name) for name in (*names, *beside)}
        if self.gather.place == "host":
            return mapped
        return {name: tf.identity(variable) for name, variable in mapped.items()}

    def fetch_one(self, columns: Mapping[str, tf.Tensor], row: tf.Tensor) -> Element:
        """The example that stands in `row`, a scalar; of a ragged column, a slice that is not copied."""
        found = {name: tf.gather(values, row) for name, values in columns.items() if not self.stored.column(name).ragged}
        for column in [column for column in map(self.stored.column, columns) if column.ragged]:
            extent = found.pop(column.extent.name)
            value = tf.reshape(tf.slice(columns[column.name], extent[:1], [tf.reduce_prod(extent[1:])]), extent[1:])
            found[column.name] = tf.ensure_shape(value, column.shape)
        return found

    def fetch(self, columns: Mapping[str, tf.Tensor], rows: tf.Tensor) -> Element:
        """The examples that stand in `rows` (batch,), of columns that are not ragged."""
        windows = self.gather.windows
        if windows is None:
            return {name: tf.gather(column, rows) for name, column in columns.items()}
        starts = rows * windows.stride
        steps = tf.gather(columns["features"], starts[:, None] + tf.range(windows.length + windows.horizon, dtype=tf.int64))
        element = split_windows(steps, windows.length, windows.targets)
        return element | ({"key": tf.gather(columns["key"], starts)} if "key" in columns else {})


def split_windows(steps: tf.Tensor, length: int, targets: tuple[int, ...]) -> Element:
    """Cut windows (…, length + horizon, columns) into features (…, length, columns) and label (…, horizon, targets)."""
    label = steps[..., length:, :]
    everything = targets == tuple(range(steps.shape[-1]))
    return {"features": steps[..., :length, :], "label": label if everything else tf.gather(label, targets, axis=-1)}


def mapped_variable(stored: Stored, split: str, name: str) -> tf.Variable:
    """A snapshot column as a variable over its memory mapping: no time, no memory, whatever its size.

    A variable, because graphs hold a handle to it where they would hold a tensor itself, and copy it when they are rewritten.
    """
    read_ahead(column_path(stored.snapshot_folder, split, name))
    with tf.device("CPU:0"):
        tensor = tf.experimental.dlpack.from_dlpack(np.asarray(stored.mapped(split, name)).__dlpack__())
        return tf.Variable(tensor, trainable=False, name=name)


def labels_and_weights(sample: Sample, stored: Stored, split: str) -> tuple[np.ndarray, np.ndarray]:
    """The class of each example of a split (examples,) int64 and the weight of each class (classes,) float64.

    Raises:
      ImpossiblePlan: a weight names no class, or a class that is to be drawn has no example.
    """
    classes = stored.shards.classes
    labels = np.asarray(stored.mapped(split, "label"))
    for name in sample.weights:
        if name not in classes:
            raise ImpossiblePlan(f"sample.weights: {name} is not a class; {did_you_mean(name, list(classes))}")
    weights = np.asarray([sample.weights.get(name, 1.0) for name in classes], np.float64)
    counts = np.bincount(labels, minlength=len(classes))
    missing = [name for name, weight, count in zip(classes, weights, counts, strict=True) if weight > 0 and count == 0]
    if missing:
        raise ImpossiblePlan(
            f"sample: the {split} split has no example of {', '.join(missing)}; give such a class the weight 0, or add examples to the data"
        )
    return labels, weights
