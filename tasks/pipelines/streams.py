"""Reading examples as streams: shards by turns, original files, arrays in memory, windows of a series, draws by class.

Files are named absolutely, since workers of a tf.data service read them from folders of their own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf

from tasks.data.tfrecord import Compression
from tasks.errors import MissingInput
from tasks.pipelines.kernels import Draw, compute
from tasks.pipelines.mapped import labels_and_weights, split_windows
from tasks.pipelines.ops import Parse
from tasks.pipelines.shapes import resolve
from tasks.pipelines.steps import Read, Windows
from tasks.pipelines.stored import Stored
from tasks.settings import Sample


def calls(parallel: str | int) -> int | None:
    """Translate a `parallel` field into `num_parallel_calls`."""
    words = {"none": None, "auto": tf.data.AUTOTUNE, "cores": len(os.sched_getaffinity(0))}
    return words[parallel] if isinstance(parallel, str) else parallel


def read(step: Read, stored: Stored, split: str, *, seed: int | tf.Tensor) -> tf.data.Dataset:
    """The stored examples of a split: serialized records, or features of files or of arrays in memory; `seed` is for mixing shards."""
    if step.source == "files":
        return _read_files(stored, split)
    return _read_arrays(stored, split) if step.source == "arrays" else _read_shards(step, stored, split, seed=seed)


def _read_shards(step: Read, stored: Stored, split: str, *, seed: int | tf.Tensor = 0) -> tf.data.Dataset:
    compression: Compression = "gzip" if step.source == "gzip_shards" else stored.shards.compressions[0]
    paths = [str(stored.path(shard).absolute()) for shard in stored.shards.for_split(split, compression)]
    if not paths:
        raise MissingInput(f"{stored.shards_folder} holds no {compression} shards; set shard.compression to both and run `dvc repro shard`")
    kind = "GZIP" if compression == "gzip" else ""
    if step.interleave is None and not step.mixed:
        return tf.data.TFRecordDataset(paths, compression_type=kind, name="read")
    shards = tf.data.Dataset.from_tensor_slices(paths, name="shards")
    shards = shards.shuffle(len(paths), seed=seed, reshuffle_each_iteration=False, name="shards") if step.mixed else shards
    if step.interleave is None:
        return shards.flat_map(lambda path: tf.data.TFRecordDataset(path, compression_type=kind, name="read"), name="read")
    turns = step.interleave
    return shards.interleave(
        lambda path: tf.data.TFRecordDataset(path, compression_type=kind, name="read"),
        cycle_length=turns.cycle_length,
        block_length=turns.block_length,
        num_parallel_calls=calls(turns.parallel),
        name="interleave",
    )


def _read_files(stored: Stored, split: str) -> tf.data.Dataset:
    files = stored.files(split)
    features = {
        "path": [str(Path(path).absolute()) for path in files.paths],
        "label": np.asarray(files.labels, np.int64),
        "key": np.asarray(files.keys, np.int64),
    }
    return tf.data.Dataset.from_tensor_slices(features, name="read")


def _read_arrays(stored: Stored, split: str) -> tf.data.Dataset:
    """All records of the split in memory, as they are stored: values, or encoded images."""
    schema = stored.shards.schema
    count = sum(shard.records for shard in stored.shards.for_split(split))
    records = _read_shards(Read(source="shards"), stored, split).batch(max(1, count)).get_single_element()
    draw = Draw(seed=0, epoch=tf.constant(0, tf.int64))
    element = compute(Parse(feature=schema.feature, label=schema.label), {"record": records}, draw)
    if schema.payload == "raw":
        element = compute(resolve(stored.preprocess[:1], schema)[0], element, draw)
    return tf.data.Dataset.from_tensor_slices(element, name="read")


def opened_ahead(epochs: tf.data.Dataset, each: Callable[[tf.Tensor], tf.data.Dataset]) -> tf.data.Dataset:
    """The data sets of these epochs (int64 scalars) one behind the other; while one is consumed, the next is open and its shuffle buffer filled.

    `Dataset.interleave` does the same, but opens two ahead, with the memory of three shuffle buffers instead of two.
    """
    specs = []

    def variant(epoch: tf.Tensor) -> tf.Tensor:
        dataset = each(epoch)
        specs.append(dataset.element_spec)
        return tf.data.experimental.to_variant(dataset)

    function = tf.function(variant, autograph=False).get_concrete_function(tf.TensorSpec((), tf.int64))
    parts = tf.nest.flatten(specs[0])
    opened = tf.raw_ops.ParallelInterleaveDatasetV4(
        input_dataset=tf.data.experimental.to_variant(epochs),
        other_arguments=function.captured_inputs,
        cycle_length=1,
        block_length=1,
        buffer_output_elements=1,
        prefetch_input_elements=1,
        num_parallel_calls=1,
        f=function,
        output_types=[part.dtype for part in parts],
        output_shapes=[part.shape for part in parts],
        deterministic="true",
        metadata=b"\n\x06epochs",  # its name, as a serialized tensorflow.data.Metadata
    )
    return tf.data.experimental.from_variant(opened, specs[0])


def windows(dataset: tf.data.Dataset, step: Windows) -> tf.data.Dataset:
    """Slide windows over the time steps of a stream of blocks, as tf.data's own `window` does it."""
    size = step.length + step.horizon

    def rows(block: dict[str, tf.Tensor]) -> tf.data.Dataset:
        keys = block["key"] + tf.range(tf.shape(block["features"], tf.int64)[0])
        return tf.data.Dataset.from_tensor_slices((block["features"], keys))

    def gathered(values: tf.data.Dataset, keys: tf.data.Dataset) -> tf.data.Dataset:
        return tf.data.Dataset.zip((values.batch(size, drop_remainder=True), keys.batch(size, drop_remainder=True)))

    def cut(values: tf.Tensor, keys: tf.Tensor) -> dict[str, tf.Tensor]:
        return split_windows(values, step.length, step.targets) | {"key": keys[0]}

    slid = dataset.flat_map(rows, name="rows").window(size, shift=step.stride, drop_remainder=True, name="window")
    return slid.flat_map(gathered, name="window").map(cut, name="window")


def drawn_by_class(dataset: tf.data.Dataset, sample: Sample, stored: Stored, split: str, *, seed: tf.Tensor) -> tf.data.Dataset:
    """Draw from one stream per class, again and again, as many examples as the split has."""
    count = stored.shards.examples(split)
    _, weights = labels_and_weights(sample, stored, split)
    drawn = [int(label) for label in np.flatnonzero(weights)]
    parts = [dataset.filter(lambda element, label=label: element["label"] == label, name="class").repeat() for label in drawn]
    shares = [float(weights[label] / weights.sum()) for label in drawn]
    mixed = tf.data.Dataset.sample_from_datasets(parts, shares, seed=seed, stop_on_empty_dataset=True, rerandomize_each_iteration=False)
    return mixed.take(count, name="sample")
