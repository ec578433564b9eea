"""Stage 3, snapshot: run the deterministic preprocessing once and keep its results as mapped columns.

The snapshot is keyed by the contents of the shards and by every op with its arguments and version, so that stale data
can never be read. Shards that were finished before a kill are not preprocessed again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tasks.data.columns import Chunk, Column, SnapshotIndex, SplitColumns, allocate, write_index, write_rows
from tasks.data.shards import Shard, ShardIndex, read_shard_index
from tasks.errors import CorruptShard
from tasks.files import read_json, resumable_folder, write_json
from tasks.pipelines.ops import Op, Parse
from tasks.pipelines.plan import output_shape, resolve
from tasks.pipelines.stored import snapshot_key
from tasks.progress import progress, say
from tasks.stage import Layout, door

if TYPE_CHECKING:
    import tensorflow as tf

ROWS_BYTES = 32 << 20  # about so many bytes are preprocessed, written and digested together


def snapshot(shards: ShardIndex, shards_folder: Path, out: Path, *, preprocess: Sequence[Op]) -> SnapshotIndex:
    """Write the preprocessed examples of all splits into `out` as columns image, label and key.

    Raises:
      ImpossiblePlan: the images differ in size and no op makes them alike.
      CorruptShard: a record cannot be read or decoded; names the shard.
    """
    columns = (
        Column(name="image", dtype="uint8", shape=output_shape(preprocess, shards.schema)),
        Column(name="label", dtype="int64", shape=()),
        Column(name="key", dtype="int64", shape=()),
    )
    key = snapshot_key(shards, preprocess)
    ops = (Parse(payload=shards.schema.payload), *resolve(preprocess, shards.schema))
    with resumable_folder(out, key=key) as folder:
        chunks: dict[str, list[Chunk]] = {shard.split: [] for shard in shards.shards}
        for split in chunks:
            allocate(folder, split, columns, shards.examples(split))
        starts = _starts(shards)
        for shard in progress(shards.shards, total=len(shards.shards), label="snapshot", unit="shards"):
            note = folder / f".done-{shard.name}.json"
            if note.exists():
                chunks[shard.split] += [Chunk(**item) for item in read_json(note)]
                continue
            written = list(_write_shard(folder, shard, shards_folder, shards.compression, columns, ops, starts[shard.name]))
            write_json(note, [asdict(chunk) for chunk in written])
            chunks[shard.split] += written
        splits = {split: SplitColumns(count=shards.examples(split), chunks=tuple(done)) for split, done in chunks.items()}
        index = SnapshotIndex(key=key, columns=columns, splits=splits)
        for note in folder.glob(".done-*"):
            note.unlink()
        write_index(folder, index)
    return index


def _starts(shards: ShardIndex) -> dict[str, int]:
    """First row of each shard within its split."""
    starts, passed = {}, dict.fromkeys((shard.split for shard in shards.shards), 0)
    for shard in shards.shards:
        starts[shard.name] = passed[shard.split]
        passed[shard.split] += shard.examples
    return starts


def _write_shard(  # noqa: PLR0913 - one shard, all that is known of it
    folder: Path, shard: Shard, shards_folder: Path, compression: str, columns: Sequence[Column], ops: Sequence[Op], start: int
) -> Iterator[Chunk]:
    import tensorflow as tf

    rows = max(1, ROWS_BYTES // columns[0].stride)
    written = 0
    try:
        for batch in _preprocessed(shards_folder / shard.name, compression, ops, rows).as_numpy_iterator():
            chunk = write_rows(folder, shard.split, columns, start=start + written, values=batch)
            written += chunk.count
            yield chunk
    except tf.errors.OpError as error:
        raise CorruptShard(f"{shards_folder / shard.name}: cannot be read or decoded after record {written}: {error.message}") from error
    if written != shard.examples:
        raise CorruptShard(f"{shards_folder / shard.name}: holds {written} records, the index says {shard.examples}; run `dvc repro --force shard`")


def _preprocessed(path: Path, compression: str, ops: Sequence[Op], rows: int) -> tf.data.Dataset:
    """The preprocessed elements of one shard in order, in batches of `rows`."""
    import tensorflow as tf

    from tasks.pipelines.kernels import Draw, compute

    def run(record: tf.Tensor) -> dict[str, tf.Tensor]:
        element = {"record": record}
        for op in ops:
            element = compute(op, element, Draw(seed=0, epoch=tf.constant(0, tf.int64)))
        return element

    records = tf.data.TFRecordDataset(str(path), compression_type="GZIP" if compression == "gzip" else "")
    if all(op.batchable for op in ops):
        return records.batch(rows).map(run)
    return records.map(run, num_parallel_calls=tf.data.AUTOTUNE).batch(rows)


def main() -> None:
    """Preprocess every example of data/shards/ once and keep the results as mapped columns in data/snapshot/."""
    with door(main) as params:
        layout = Layout()
        shards = read_shard_index(layout.shards)
        begun = time.perf_counter()
        index = snapshot(shards, layout.shards, layout.snapshot, preprocess=params.preprocess)
        seconds = time.perf_counter() - begun
        examples = sum(split.count for split in index.splits.values())
        stride = sum(column.stride for column in index.columns)
        ratio = examples * stride / max(1, sum(shard.bytes for shard in shards.shards))
        image = index.columns[0]
        say(
            f"snapshot: {examples:,} examples of {np.dtype(image.dtype)} {'×'.join(map(str, image.shape))}, {stride:,} bytes each, "
            f"{ratio:.2f} × the shards, {examples * stride / 1e6 / seconds:,.0f} MB/s"
        )


if __name__ == "__main__":
    main()
