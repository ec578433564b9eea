"""Records and shards as TensorFlow writes them, for tests."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import tensorflow as tf


def example(**features) -> bytes:
    """Serialize features by their Python values, as TensorFlow does."""
    made = tf.train.Example()
    for name, values in features.items():
        feature = made.features.feature[name]
        if isinstance(values[0], bytes):
            feature.bytes_list.value.extend(values)
        elif isinstance(values[0], float):
            feature.float_list.value.extend(values)
        else:
            feature.int64_list.value.extend(values)
    return made.SerializeToString(deterministic=True)


def vectors(count: int, **more) -> list[bytes]:
    """Examples of two numbers each in three classes."""
    return [example(x=[float(n), 0.5], label=[n % 3], **more) for n in range(count)]


def png(number: int) -> bytes:
    """A picture of one color."""
    return tf.io.encode_png(np.full((3, 4, 3), number, np.uint8)).numpy()


def write(path: Path, records: Iterable[bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)
