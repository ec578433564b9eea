"""From a plan to a tf.data.Dataset: a fold over the plan's steps, one small function per verb.

`InputPipeline` is what the stages use: it knows how many examples and steps an epoch has, gives the data set of one or
more epochs, and, for a snapshot, starts at any (epoch, step) without replaying what came before.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import singledispatch
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import numpy as np
import tensorflow as tf

from tasks.data.columns import map_column
from tasks.data.order import steps_per_epoch
from tasks.pipelines.kernels import Draw, Element, compute, mix64
from tasks.pipelines.ops import DecodeRaw, Op, Parse
from tasks.pipelines.plan import Apply, Batch, Gather, Keep, Mix, Plan, Prefetch, Read
from tasks.pipelines.stored import Stored

FINAL = ("image", "label")
COLUMNS = ("key", "label", "image")
ROUNDS = 16  # of the index cipher; with TensorFlow's default of 4, small splits show structure


@dataclass(frozen=True, kw_only=True)
class InputPipeline:
    """A plan bound to one split of the stored data.

    Batches are (image (batch, height, width, channels), label (batch,) int64), or dicts that also carry
    `key` (batch,) int64 when `with_keys` is set. `epoch` tells random ops of streaming plans which epoch it is;
    plans that gather know it from the step. `scratch` holds disk caches and lives as long as the pipeline.
    """

    plan: Plan
    stored: Stored
    split: str
    batch_size: int
    seed: int
    with_keys: bool = False
    scratch: TemporaryDirectory = field(default_factory=lambda: TemporaryDirectory(prefix="throughline-", ignore_cleanup_errors=True))
    epoch: tf.Variable = field(default_factory=lambda: tf.Variable(0, dtype=tf.int64, trainable=False, name="epoch"))

    @property
    def examples(self) -> int:
        """Examples in an epoch."""
        return self.stored.shards.examples(self.split)

    @property
    def steps(self) -> int:
        """Batches in an epoch."""
        return steps_per_epoch(self.examples, self.batch_size)

    def dataset(self, *, first_step: int = 0, epochs: int = 1) -> tf.data.Dataset:
        """The batches from `first_step` (counted over all epochs) on.

        A plan that gathers delivers everything up to the end of epoch `epochs` (counted from 0) as one sequence.
        A streaming plan always delivers one epoch; iterate anew for the next.
        """
        last = max(i for i, step in enumerate(self.plan.steps) if isinstance(step, Apply | Gather))
        dataset: Any = None
        for position, step in enumerate(self.plan.steps):
            finish = _selected if position == last and not self.with_keys else _unchanged
            dataset = extend(step, dataset, self, Extent(first_step=first_step, steps=epochs * self.steps, finish=finish))
        count = epochs * self.steps - first_step if self.plan.gathers else self.steps
        return dataset.apply(tf.data.experimental.assert_cardinality(count)).with_options(_options(self.plan))


@dataclass(frozen=True, kw_only=True)
class Extent:
    """Which steps to deliver, and what becomes of the finished element."""

    first_step: int
    steps: int
    finish: Callable[[Element], Element | tuple]


@singledispatch
def extend(step: object, dataset: tf.data.Dataset | None, pipeline: InputPipeline, extent: Extent) -> tf.data.Dataset:
    """Add one step of a plan to a data set; the first step starts it."""
    raise NotImplementedError(f"no verb for {type(step).__name__}")


@extend.register
def _(step: Read, dataset: None, pipeline: InputPipeline, extent: Extent) -> tf.data.Dataset:
    readers = {"shards": _read_shards, "files": _read_files, "arrays": _read_arrays}
    return readers[step.source](step, pipeline)


@extend.register
def _(step: Gather, dataset: None, pipeline: InputPipeline, extent: Extent) -> tf.data.Dataset:
    """A batch is a gather: the indices of a step are arithmetic, its rows come straight from the mapped columns."""
    later = next((item for item in pipeline.plan.steps if isinstance(item, Apply)), None)
    draws = later is not None and any(op.random for op in later.ops)
    names = COLUMNS if draws or pipeline.with_keys else FINAL
    columns = {name: mapped_tensor(pipeline.stored, pipeline.split, name) for name in names}
    count, size = pipeline.examples, step.batch_size

    def gather(position: tf.Tensor) -> Element | tuple:
        epoch, start = position // pipeline.steps, position % pipeline.steps * size
        indices = tf.range(start, tf.minimum(start + size, count))
        if step.shuffle:
            indices = shuffled(indices, count=count, seed=pipeline.seed, epoch=epoch)
        rows = {name: tf.gather(column, indices) for name, column in columns.items()}
        return extent.finish(rows | ({"epoch": epoch} if draws else {}))

    positions = tf.data.Dataset.range(extent.first_step, extent.steps, name="steps")
    return positions.map(gather, num_parallel_calls=calls(later.parallel if later else "none"), name="gather")


@extend.register
def _(step: Apply, dataset: tf.data.Dataset, pipeline: InputPipeline, extent: Extent) -> tf.data.Dataset:
    def run(element: Element | tf.Tensor) -> Element | tuple:
        element = {"record": element} if isinstance(element, tf.Tensor) else dict(element)  # shards deliver bare records
        epoch = element.pop("epoch", pipeline.epoch)
        for op in step.ops:
            element = compute(op, element, Draw(seed=pipeline.seed, epoch=epoch, salt=_salt(op)))
        return extent.finish(element)

    return dataset.map(run, num_parallel_calls=calls(step.parallel), name="_".join(op.name for op in step.ops))


@extend.register
def _(step: Keep, dataset: tf.data.Dataset, pipeline: InputPipeline, extent: Extent) -> tf.data.Dataset:
    if step.where == "memory":
        return dataset.cache(name="cache_memory")
    # tf.data's disk cache has no key of its own, so each data set gets a fresh folder that goes away with its pipeline.
    return dataset.cache(str(Path(mkdtemp(dir=pipeline.scratch.name)) / "elements"), name="cache_disk")


@extend.register
def _(step: Mix, dataset: tf.data.Dataset, pipeline: InputPipeline, extent: Extent) -> tf.data.Dataset:
    return dataset.shuffle(min(step.size, pipeline.examples), seed=pipeline.seed, reshuffle_each_iteration=True, name="shuffle")


@extend.register
def _(step: Batch, dataset: tf.data.Dataset, pipeline: InputPipeline, extent: Extent) -> tf.data.Dataset:
    return dataset.batch(step.size, name="batch")


@extend.register
def _(step: Prefetch, dataset: tf.data.Dataset, pipeline: InputPipeline, extent: Extent) -> tf.data.Dataset:
    return dataset.prefetch(tf.data.AUTOTUNE if step.batches == "auto" else step.batches, name="prefetch")


def calls(parallel: str | int) -> int | None:
    """Translate a `parallel` field into `num_parallel_calls`."""
    words = {"none": None, "auto": tf.data.AUTOTUNE, "cores": len(os.sched_getaffinity(0))}
    return words[parallel] if isinstance(parallel, str) else parallel


def shuffled(indices: tf.Tensor, *, count: int, seed: int, epoch: tf.Tensor) -> tf.Tensor:
    """Map indices (any shape, int64) in [0, count) to their places in the permutation of (seed, epoch).

    A bijection in constant memory: a block cipher over the index range. Source: Simon (Beaulieu et al., 2013) as in
    TensorFlow's RandomIndexShuffle.
    """
    # Seed and epoch are folded as a pair: (1, 0) and (0, 1) are unlike.
    mixed = mix64(mix64(tf.constant(seed + 1, tf.uint64)) ^ tf.cast(epoch, tf.uint64))
    words = tf.stack([mixed, mix64(mixed), mix64(mix64(mixed))])
    words = tf.cast(tf.bitwise.right_shift(words, tf.constant(32, tf.uint64)), tf.uint32)
    return tf.raw_ops.RandomIndexShuffle(index=indices, seed=words, max_index=tf.constant(count - 1, tf.int64), rounds=ROUNDS)


def mapped_tensor(stored: Stored, split: str, name: str) -> tf.Tensor:
    """A snapshot column as a tensor over its memory mapping: no time, no memory, whatever its size."""
    column = next(item for item in stored.snapshot.columns if item.name == name)
    array = map_column(stored.snapshot_folder, split, column, stored.snapshot.splits[split].count)
    return tf.experimental.dlpack.from_dlpack(np.asarray(array).__dlpack__())


def _read_shards(step: Read, pipeline: InputPipeline) -> tf.data.Dataset:
    stored = pipeline.stored
    paths = [str(stored.shards_folder / shard.name) for shard in stored.shards.of(pipeline.split)]
    compression = "GZIP" if stored.shards.compression == "gzip" else ""
    if step.interleave is None:
        records = tf.data.TFRecordDataset(paths, compression_type=compression, name="read")
    else:
        turns = step.interleave
        records = tf.data.Dataset.from_tensor_slices(paths, name="shards").interleave(
            lambda path: tf.data.TFRecordDataset(path, compression_type=compression, name="read"),
            cycle_length=turns.cycle_length,
            block_length=turns.block_length,
            num_parallel_calls=calls(turns.parallel),
            name="interleave",
        )
    return records


def _read_files(step: Read, pipeline: InputPipeline) -> tf.data.Dataset:
    files = pipeline.stored.files(pipeline.split)
    features = {"path": list(files.paths), "label": np.asarray(files.labels, np.int64), "key": np.asarray(files.keys, np.int64)}
    return tf.data.Dataset.from_tensor_slices(features, name="read")


def _read_arrays(step: Read, pipeline: InputPipeline) -> tf.data.Dataset:
    """All records of the split in memory, as they are stored: raw pixels or encoded images."""
    schema = pipeline.stored.shards.schema
    records = _read_shards(Read(source="shards"), pipeline).batch(max(1, pipeline.examples)).get_single_element()
    draw = Draw(seed=0, epoch=tf.constant(0, tf.int64))
    element = compute(Parse(payload=schema.payload), {"record": records}, draw)
    if schema.payload == "raw" and schema.shape is not None:
        element = compute(DecodeRaw(shape=schema.shape), element, draw)
    return tf.data.Dataset.from_tensor_slices(element, name="read")


def _options(plan: Plan) -> tf.data.Options:
    """tf.data rewrites the graph by default, which would copy captured columns and make a naive pipeline less naive."""
    options = tf.data.Options()
    options.deterministic = plan.deterministic
    options.autotune.enabled = plan.autotunes
    options.experimental_optimization.apply_default_optimizations = plan.rewrites
    return options


def _selected(element: Element) -> tuple:
    return tuple(element[name] for name in FINAL)


def _unchanged(element: Element) -> Element:
    return element


def _salt(op: Op) -> int:
    """A number per op, so that two random ops of a configuration draw independently."""
    return zlib.crc32(repr(op).encode())
