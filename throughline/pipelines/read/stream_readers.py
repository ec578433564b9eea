"""Reads examples as streams: shards, files, arrays in memory, windows of a series, draws by class.

File names are absolute, because workers of a tf.data service run in other folders.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from throughline.kernels.elements import process_record, split_tokens, split_window
from throughline.kernels.randomness import GRAPH_SEED
from throughline.pipelines.read.prepared_data import PreparedData, read_labels_and_weights
from throughline.plan.ops import Op, Parse
from throughline.plan.schema import COLUMNS
from throughline.plan.shapes import resolve_decode
from throughline.plan.steps import Read, TokenWindow, Window
from throughline.settings import Sampling


def read(step: Read, data: PreparedData, split: str, *, seed: int | tf.Tensor) -> tf.data.Dataset:
    """Return a split's stored examples: records, or features of files or arrays in memory.

    `seed` decides the order of the shards if the step shuffles them.
    """
    if step.source == "files":
        return _read_files(data, split)
    if step.source == "arrays":
        return _read_arrays(data, split)
    return _read_shards(step, data, split, seed=seed)


def _read_shards(
    step: Read, data: PreparedData, split: str, *, seed: int | tf.Tensor = 0
) -> tf.data.Dataset:
    shards_of_split = data.shards.for_split(split)
    paths = [str(path.absolute()) for path in data.shard_files.paths(shards_of_split)]
    kind = "GZIP" if any(shard.compression == "gzip" for shard in shards_of_split) else ""

    def open_shards(paths: Any) -> tf.data.Dataset:
        return tf.data.TFRecordDataset(paths, compression_type=kind, name="read")

    interleave = step.interleave
    if interleave is None and not step.shuffle_files:
        return open_shards(paths)
    shards = tf.data.Dataset.from_tensor_slices(paths, name="shards")
    shards = _shuffle(shards, len(paths), seed) if step.shuffle_files else shards
    if interleave is None:
        return shards.flat_map(open_shards, name="read")
    return shards.interleave(
        open_shards,
        cycle_length=interleave.cycle_length,
        block_length=interleave.block_length,
        num_parallel_calls=step.parallel.num_parallel_calls(useful=interleave.cycle_length),
        name="interleave",
    )


def _shuffle(shards: tf.data.Dataset, count: int, seed: int | tf.Tensor) -> tf.data.Dataset:
    """Shuffle shards by `seed` alone, in a graph, where the process's seed has no influence."""

    def mix(_: Any) -> tf.data.Dataset:
        tf.random.set_seed(GRAPH_SEED)
        return shards.shuffle(count, seed=seed, reshuffle_each_iteration=False, name="shards")

    if tf.executing_eagerly():
        return tf.data.Dataset.range(1).flat_map(mix, name="shards")
    return mix(None)


def _read_files(data: PreparedData, split: str) -> tf.data.Dataset:
    files, target = data.files(split), data.shards.schema.target
    features = {
        "path": [str(Path(path).absolute()) for path in files.paths],
        "label": np.asarray(files.labels, target.dtype if target else np.int64),
        "key": np.asarray(files.keys, np.int64),
    }
    features |= {} if files.columns is None else {COLUMNS: files.columns}
    return tf.data.Dataset.from_tensor_slices(features, name="read")


def _read_arrays(data: PreparedData, split: str) -> tf.data.Dataset:
    """Load all records of the split into memory, as values or still encoded."""
    schema = data.shards.schema
    count = sum(shard.records for shard in data.shards.for_split(split))
    records = (
        _read_shards(Read(source="shards"), data, split).batch(max(1, count)).get_single_element()
    )
    ops: tuple[Op, ...] = (Parse.of(schema),)
    if schema.input.encoding.storage == "rows":
        ops += resolve_decode(data.preprocess[:1], schema)
    element = process_record(ops, records)
    return tf.data.Dataset.from_tensor_slices(element, name="read")


def open_next_epoch_early(
    epochs: tf.data.Dataset, one_epoch: Callable[[tf.Tensor], tf.data.Dataset]
) -> tf.data.Dataset:
    """Join the datasets of epochs (int64 scalars), filling the next one's shuffle buffer early.

    `Dataset.interleave` would open two ahead, which takes the memory of three buffers, not two.
    """
    specs = []

    def variant(epoch: tf.Tensor) -> tf.Tensor:
        dataset = one_epoch(epoch)
        specs.append(dataset.element_spec)
        return tf.data.experimental.to_variant(dataset)

    function = tf.function(variant, autograph=False).get_concrete_function(
        tf.TensorSpec((), tf.int64)
    )
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


def windows(dataset: tf.data.Dataset, step: Window, cuts: Sequence[int] = ()) -> tf.data.Dataset:
    """Slide windows over a split's time steps, like tf.data's `window`, but never across a cut."""
    size = step.size

    def rows(block: dict[str, tf.Tensor]) -> tf.data.Dataset:
        keys = block["key"] + tf.range(tf.shape(block["features"], tf.int64)[0])
        return tf.data.Dataset.from_tensor_slices((block["features"], keys))

    def stack(*parts: tf.data.Dataset) -> tf.data.Dataset:
        return tf.data.Dataset.zip(tuple(part.batch(size, drop_remainder=True) for part in parts))

    def crosses_none(number: tf.Tensor, window: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        ends = number * step.stride + tf.constant([0, size - 1], tf.int64)
        before = tf.searchsorted(tf.constant(cuts, tf.int64), ends, side="right")
        return before[0] == before[1]

    def split(values: tf.Tensor, keys: tf.Tensor) -> dict[str, tf.Tensor]:
        return split_window(values, step.length, step.targets) | {"key": keys[0]}

    slices = dataset.flat_map(rows, name="rows").window(
        size, shift=step.stride, drop_remainder=True, name="window"
    )
    stacked = slices.flat_map(stack, name="window")
    if cuts:
        whole = stacked.enumerate(name="window").filter(crosses_none, name="window")
        stacked = whole.map(lambda number, window: window, name="window")
    return stacked.map(split, name="window")


def token_windows(dataset: tf.data.Dataset, step: TokenWindow) -> tf.data.Dataset:
    """Cut the joined documents of a stream into windows, with their numbers as keys."""
    size = step.length + 1
    tokens = dataset.flat_map(
        lambda element: tf.data.Dataset.from_tensor_slices(element["text"]), name="tokens"
    )
    slices = tokens.window(size, shift=step.length, drop_remainder=True, name="window")
    return (
        slices.flat_map(lambda part: part.batch(size, drop_remainder=True), name="window")
        .enumerate(name="window")
        .map(lambda number, part: split_tokens(part) | {"key": number}, name="window")
    )


def sample_stream_by_class(
    dataset: tf.data.Dataset,
    sampling: Sampling,
    data: PreparedData,
    split: str,
    *,
    seed: tf.Tensor,
    reordered: bool,
) -> tf.data.Dataset:
    """Draw as many examples as the split has from repeated streams, one per class.

    If the stream is not `reordered` each epoch, each class begins at a place that depends on the
    epoch's `seed`. With a fixed beginning, the last examples of a class that has more examples than
    draws would never be drawn.
    """
    count = data.shards.examples(split)
    labels, weights = read_labels_and_weights(sampling, data, split)
    classes = [int(label) for label in np.flatnonzero(weights)]
    # If the shards hold a sample of the labeled examples, the expected numbers per class.
    sizes = np.bincount(labels, minlength=len(weights)) * count // len(labels)

    def stream(label: int) -> tf.data.Dataset:
        own = dataset.filter(lambda element: element["label"] == label, name="class").repeat()
        return own if reordered else own.skip(seed % max(1, int(sizes[label])), name="class")

    examples = tf.data.Dataset.sample_from_datasets(
        [stream(label) for label in classes],
        [float(weights[label] / weights.sum()) for label in classes],
        seed=seed,
        stop_on_empty_dataset=True,
        rerandomize_each_iteration=False,
    )
    return examples.take(count, name="sample")
