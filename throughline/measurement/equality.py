"""Proof that configurations deliver the same examples, each once, with the manifest's label.

The proof is a digest, in any order, of keys, labels and inputs with shapes and dtypes. It covers
every split after the deterministic preprocessing, without augmentation and postprocessing, so all
configurations with the same `preprocess` must have equal digests. Those with approximate pixels
have the same examples and labels.
"""

import hashlib
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from throughline.kernels.kernels import input_name
from throughline.pipelines.input_pipeline import InputPipeline
from throughline.plan.schema import COLUMNS
from throughline.results.build import Difference, ExamplesDigest
from throughline.shared.errors import UnequalConfigurations

MODULUS = 1 << 128
COMPARED = 1000  # examples of a split whose pixels are compared, rounded up to whole batches


def digest_examples(pipeline: InputPipeline) -> ExamplesDigest:
    """Add up a 128-bit hash per example over an epoch; the pipeline needs `with_keys=True`.

    A lost, duplicated or altered example changes the sum; order, padding and packing do not. Raises
    UnequalConfigurations if keys or labels differ from the manifest's; not checked for windows.
    """
    is_listed = pipeline.plan.window is None  # a window is made of rows, so no manifest lists it
    total, keys, labels, values = 0, [], [], np.empty((0,))
    for batch in pipeline.dataset().as_numpy_iterator():
        values = batch[input_name(batch)]
        for example in iterate_examples(batch):
            total = (total + digest_example(*example)) % MODULUS
            keys.append(example[0])
            if is_listed:
                labels.append(example[1])
    if is_listed:
        _check_labels(pipeline, np.asarray(keys), np.asarray(labels))
    return ExamplesDigest(
        digest=f"{total:032x}",
        examples=len(keys),
        shape=(None,) if pipeline.data.shards.schema.is_text else values.shape[1:],
        dtype=str(values.dtype),
    )


def _check_labels(pipeline: InputPipeline, keys: np.ndarray, labels: np.ndarray) -> None:
    listed = pipeline.data.files(pipeline.split)
    order, listed_order = np.argsort(keys), np.argsort(listed.keys)
    of_split = f"{pipeline.plan}: the {pipeline.split} split"
    if not np.array_equal(keys[order], np.asarray(listed.keys)[listed_order]):
        raise UnequalConfigurations(
            f"{of_split}: {len(keys):,} examples are delivered, with {len(set(keys.tolist())):,}"
            f" distinct keys, which are not the {len(listed.keys):,} of the manifest"
        )
    expected = np.asarray(listed.labels)[listed_order].astype(labels.dtype)
    wrong = (labels[order] != expected).reshape(len(keys), -1).any(axis=1)
    if wrong.any():
        raise UnequalConfigurations(
            f"{of_split}: the labels of {int(wrong.sum()):,} of {len(keys):,} delivered examples"
            " differ from those in the manifest"
        )


def iterate_examples(batch: dict[str, np.ndarray]) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield the key, label, value without padding, and columns, if any, of each example."""
    values = batch[input_name(batch)]
    for row, (key, label, value) in enumerate(
        zip(batch["key"], batch["label"], values, strict=True)
    ):
        if "segment_ids" in batch:
            for slot in np.flatnonzero(batch["weight"][row]):
                yield key[slot], label[slot], value[batch["segment_ids"][row] == slot + 1]
        else:
            value = np.trim_zeros(value, "b") if "text" in batch else value
            yield key, label, value, *(() if COLUMNS not in batch else (batch[COLUMNS][row],))


def digest_example(*example: np.ndarray) -> int:
    """Return a 128-bit hash of an example's key, label and values, with shapes and dtypes."""
    parts = [np.asarray(part) for part in example]
    state = hashlib.blake2b(
        repr([(part.shape, part.dtype.str) for part in parts]).encode(), digest_size=16
    )
    for part in parts:
        state.update(part.tobytes())
    return int.from_bytes(state.digest(), "little")


class RowsByKey:
    """Finds the rows of a split's examples in the snapshot by their keys."""

    def __init__(self, pipeline: InputPipeline) -> None:
        self._split = pipeline.split
        self._keys = np.asarray(pipeline.data.memmap(pipeline.split, "key"))
        self._order = np.argsort(self._keys)

    def find(self, keys: np.ndarray) -> np.ndarray:
        """Return the row of each key, (n,) int64; raises UnequalConfigurations without one."""
        places = np.minimum(
            np.searchsorted(self._keys, keys, sorter=self._order), len(self._keys) - 1
        )
        rows = self._order[places]
        foreign = int((self._keys[rows] != keys).sum())
        if foreign:
            raise UnequalConfigurations(
                f"the {self._split} split does not contain {foreign:,} of the {len(keys):,}"
                " delivered examples"
            )
        return rows


def measure_difference(approximate: InputPipeline, exact: InputPipeline) -> Difference:
    """Compare the first examples' pixels with the snapshot's; both need `with_keys=True`."""
    stored_rows, epoch = RowsByKey(exact), tf.constant(0, tf.int64)
    fetch = tf.function(exact.reader.make_fetch_fn(), autograph=False)
    total, largest, pixels, seen = 0.0, 0.0, 0, 0
    for batch in approximate.dataset().as_numpy_iterator():
        rows = stored_rows.find(batch["key"])
        stored = fetch(exact.reader.columns(), tf.constant(rows), epoch)
        if COLUMNS in batch and not np.array_equal(batch[COLUMNS], stored[COLUMNS]):
            raise UnequalConfigurations("images are delivered with the columns of other examples")
        same = stored["image"].numpy()
        apart = np.abs(batch["image"].astype(np.int16) - same.astype(np.int16))
        total, largest = total + float(apart.sum(dtype=np.int64)), max(largest, float(apart.max()))
        pixels, seen = pixels + apart.size, seen + len(rows)
        if seen >= COMPARED:
            break
    return Difference(mean=total / pixels, max=largest, examples=seen)
