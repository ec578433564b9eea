"""Stage 3, snapshot: run the deterministic preprocessing once and keep its results as mapped columns.

The snapshot is keyed by the contents of the shards and by every op with its arguments and version, so that stale data
can never be read. Shards that were finished before a kill are not preprocessed again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tasks.data.columns import Chunk, Column, SnapshotIndex, SplitColumns, allocate, flush, write_index, write_rows
from tasks.data.moments import Moments, combined, moments
from tasks.data.shards import Shard, ShardIndex, damage, read_shard_index
from tasks.data.tfrecord import read_records
from tasks.errors import CorruptShard
from tasks.files import digest_json, read_json, resumable_folder, write_json
from tasks.pipelines.ops import Op, Parse
from tasks.pipelines.plan import output_shape, resolve
from tasks.pipelines.stored import snapshot_key
from tasks.progress import in_threads, progress, say
from tasks.settings import SnapshotSettings
from tasks.stage import Layout, door

if TYPE_CHECKING:
    import tensorflow as tf

ROWS_BYTES = 32 << 20  # about so many bytes are preprocessed, written and digested together
STATISTICS_OF = "train"


@dataclass(frozen=True, kw_only=True)
class Writing:
    """What writing one shard's rows needs to know of the whole."""

    folder: Path
    shards_folder: Path
    columns: Sequence[Column]
    ops: Sequence[Op]
    series: bool


@dataclass(frozen=True, kw_only=True)
class Written:
    """The rows of one shard: its chunks, and the moments of the training split's values."""

    chunks: Sequence[Chunk]
    moments: Sequence[Moments]


def snapshot(
    shards: ShardIndex, shards_folder: Path, out: Path, *, preprocess: Sequence[Op], settings: SnapshotSettings | None = None
) -> SnapshotIndex:
    """Write the preprocessed examples of all splits into `out`: columns image or features, label and key.

    Of a series, the rows are time steps, and there is no label: windows are cut when they are read.

    Raises:
      ImpossiblePlan: the images differ in size and no op makes them alike.
      CorruptShard: a record cannot be read or decoded; names the shard. Where `settings` say `skip`: too many of them.
    """
    settings = settings or SnapshotSettings()
    schema = shards.schema
    label = () if schema.payload == "series" else (Column(name="label", dtype=schema.label_dtype, shape=()),)
    columns = (
        Column(name=schema.feature, dtype=schema.dtype, shape=output_shape(preprocess, schema)),
        *label,
        Column(name="key", dtype="int64", shape=()),
    )
    key = snapshot_key(shards, preprocess)
    ops = (Parse(feature=schema.feature, label=schema.label), *resolve(preprocess, schema))
    # A compressed set beside the plain one holds the same records.
    chosen = [shard for split in shards.splits for shard in shards.of(split)]
    chosen = chosen if settings.on_corrupt == "fail" else sound(chosen, shards_folder, most=settings.max_corrupt_fraction)
    counts = {split: sum(shard.examples for shard in chosen if shard.split == split) for split in shards.splits}
    with resumable_folder(out, key=digest_json({"key": key, "counts": counts})) as folder:
        for split, count in counts.items():
            allocate(folder, split, columns, count)
        writing = Writing(folder=folder, shards_folder=shards_folder, columns=columns, ops=ops, series=schema.payload == "series")
        written = in_threads(lambda place: _rows_of(writing, *place), _starts(chosen), workers=os.cpu_count() or 1)
        done = list(progress(written, total=len(chosen), label="snapshot", unit="shards"))
        chunks = {
            split: [c for shard, rows in zip(chosen, done, strict=True) if shard.split == split for c in rows.chunks] for split in shards.splits
        }
        index = SnapshotIndex(
            key=key,
            statistics=combined(part for rows in done for part in rows.moments),
            columns=columns,
            splits={split: SplitColumns(count=counts[split], chunks=tuple(found)) for split, found in chunks.items()},
        )
        for note in folder.glob(".done-*"):
            note.unlink()
        write_index(folder, index)
    return index


def sound(shards: Sequence[Shard], folder: Path, *, most: float) -> list[Shard]:
    """The shards with the number of examples that can be read of each; damaged records are named and will be left out.

    Raises:
      CorruptShard: more than the share `most` of all examples is lost, or a block of a series, whose steps must not have gaps.
    """
    readable = []
    for shard in shards:
        problems = damage(folder, shard)
        for problem in problems:
            say(f"snapshot: left out, {problem}")
        count = sum(1 for _ in read_records(folder / shard.name, compression=shard.compression, damaged=[])) if problems else shard.examples
        if count != shard.examples and shard.records != shard.examples:
            raise CorruptShard(f"{problems[0]}; a series with a gap is no series: delete {folder} and run `dvc repro shard`")
        readable.append(replace(shard, examples=count, damaged=bool(problems)))
    total = sum(shard.examples for shard in shards)
    lost = total - sum(shard.examples for shard in readable)
    if lost > most * total:
        raise CorruptShard(
            f"{folder}: {lost} of {total} examples cannot be read, {lost / total:.2%}; snapshot.max_corrupt_fraction allows {most:.2%}. "
            f"Delete {folder} and run `dvc repro shard`"
        )
    return readable


def _starts(shards: Sequence[Shard]) -> Iterator[tuple[Shard, int]]:
    """Each shard with its first row within its split."""
    passed = dict.fromkeys((shard.split for shard in shards), 0)
    for shard in shards:
        yield shard, passed[shard.split]
        passed[shard.split] += shard.examples


def _rows_of(writing: Writing, shard: Shard, start: int) -> Written:
    """Write the rows of one shard, unless an interrupted run has already done it; the note that says so is written last."""
    note = writing.folder / f".done-{shard.name}.json"
    if note.exists():
        stored = read_json(note)
        return Written(chunks=[Chunk(**item) for item in stored["chunks"]], moments=[Moments(**item) for item in stored["moments"]])
    written = _write_shard(writing, shard, start)
    flush(writing.folder, shard.split, writing.columns)
    write_json(note, {"chunks": [asdict(chunk) for chunk in written.chunks], "moments": [asdict(part) for part in written.moments]})
    return written


def _write_shard(writing: Writing, shard: Shard, start: int) -> Written:
    import tensorflow as tf

    path = writing.shards_folder / shard.name
    rows = max(1, ROWS_BYTES // writing.columns[0].stride)
    chunks, parts, count = [], [], 0
    try:
        for values in _preprocessed(path, shard, writing, rows):
            chunks.append(write_rows(writing.folder, shard.split, writing.columns, start=start + count, values=values))
            parts += [moments(values[writing.columns[0].name])] if shard.split == STATISTICS_OF else []
            count += chunks[-1].count
    except tf.errors.OpError as error:
        raise CorruptShard(f"{path}: cannot be read or decoded after record {count}: {error.message}") from error
    if count != shard.examples:
        raise CorruptShard(f"{path}: holds {count} examples, the index says {shard.examples}; run `dvc repro --force shard`")
    return Written(chunks=chunks, moments=parts)


def _preprocessed(path: Path, shard: Shard, writing: Writing, rows: int) -> Iterator[dict[str, np.ndarray]]:
    """The preprocessed examples of one shard in order, about `rows` at a time."""
    import tensorflow as tf

    from tasks.pipelines.kernels import Draw, compute

    def run(record: tf.Tensor) -> dict[str, tf.Tensor]:
        element = {"record": record}
        for op in writing.ops:
            element = compute(op, element, Draw(seed=0, epoch=tf.constant(0, tf.int64)))
        return element

    records: tf.data.Dataset = tf.data.TFRecordDataset(str(path), compression_type="GZIP" if shard.compression == "gzip" else "")
    if shard.damaged:  # TensorFlow's reader stops at the first damaged record
        records = tf.data.Dataset.from_generator(
            lambda: read_records(path, compression=shard.compression, damaged=[]), output_signature=tf.TensorSpec((), tf.string)
        )
    if writing.series:
        for block in records.map(run).as_numpy_iterator():
            steps = np.arange(len(block["features"]), dtype=np.int64)
            yield {"features": block["features"], "key": block["key"] + steps}
    elif all(op.takes != "example" for op in writing.ops):
        yield from records.batch(rows).map(run).as_numpy_iterator()
    else:
        yield from records.map(run, num_parallel_calls=tf.data.AUTOTUNE).batch(rows).as_numpy_iterator()


def main() -> None:
    """Preprocess every example of data/shards/ once and keep the results as mapped columns in data/snapshot/."""
    with door(main) as params:
        layout = Layout()
        shards = read_shard_index(layout.shards)
        begun = time.perf_counter()
        index = snapshot(shards, layout.shards, layout.snapshot, preprocess=params.preprocess, settings=params.snapshot)
        seconds = time.perf_counter() - begun
        examples = sum(split.count for split in index.splits.values())
        stride = sum(column.stride for column in index.columns)
        read = sum(shard.bytes for split in shards.splits for shard in shards.of(split))
        image = index.columns[0]
        # A file of its own: what follows depends on what was written, not on how long that took.
        write_json(layout.snapshot.with_suffix(".json"), {"seconds": seconds, "examples_per_s": examples / seconds, "bytes_per_example": stride})
        say(
            f"snapshot: {examples:,} examples of {np.dtype(image.dtype)} {'×'.join(map(str, image.shape))}, {stride:,} bytes each, "
            f"{examples * stride / max(1, read):.2f} × the shards, {examples * stride / 1e6 / seconds:,.0f} MB/s"
        )


if __name__ == "__main__":
    main()
