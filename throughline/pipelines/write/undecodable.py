"""Finds records that cannot be decoded although their checksums are right, and their examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from throughline.data.shards.files import ShardFiles
from throughline.data.shards.index import Shard
from throughline.data.shards.repair import Damage
from throughline.data.shards.tfrecord import read_records
from throughline.plan.ops import Op
from throughline.shared.files import digest_blake3

if TYPE_CHECKING:
    import tensorflow as tf


def process_record(ops: Sequence[Op], record: tf.Tensor) -> dict[str, tf.Tensor]:
    """Parse and preprocess a record, or a batch of them if all ops can; nothing is drawn."""
    import tensorflow as tf

    from throughline.kernels.elements import apply_ops

    return apply_ops(ops, {"record": record}, seed=0, epoch=tf.constant(0, tf.int64))


def find_undecodable(
    shards: Sequence[Shard],
    files: ShardFiles,
    ops: Sequence[Op],
    damage: Damage,
    names: Mapping[int, str],
) -> Damage:
    """Run the ops on each readable record; return `damage` with the failures added.

    `names` are ids of examples by their keys.
    """
    import tensorflow as tf

    run = tf.function(
        lambda record: process_record(ops, record),
        input_signature=[tf.TensorSpec((), tf.string)],
        autograph=False,
    )
    problems = {name: list(problem) for name, problem in damage.problems.items()}
    unusable = dict(damage.unusable)
    for shard in shards:
        path, broken = files.path(shard), list[str]()
        records = read_records(path, compression=shard.compression, damaged=broken)
        for count, record in enumerate(records):
            try:
                run(tf.constant(record))
            except tf.errors.OpError as error:
                reason = next(iter(error.message.rpartition("}}")[2].strip().splitlines()), "")
                named = f"record {count + len(broken)}{_name(ops[0], record, names)}"
                problem = f"{path}: {named} cannot be decoded: {reason}"
                problems.setdefault(shard.name, []).append(problem)
                unusable[digest_blake3(record)] = problem
    return Damage(problems=problems, unusable=unusable)


def _name(parse: Op, record: bytes, names: Mapping[int, str]) -> str:
    import tensorflow as tf

    try:
        key = int(process_record((parse,), tf.constant(record))["key"])
    except tf.errors.OpError:
        return ""
    return f" (example {names.get(key, f'with key {key}')})"
