"""Stage 2, shard: write all examples into TFRecord shards in a deterministic, content-keyed global shuffle.

The same examples give the same files, whatever the number of writers. Finished shards survive a kill and are not
written again. TFDS metadata is written beside them, so `tfds.builder_from_directory` opens the folder too.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd

from tasks.cli import door
from tasks.data.manifest import SPLITS, Manifest, map_values, read_manifest
from tasks.data.records import RecordSchema, encode_around, encode_example, encode_examples
from tasks.data.shards import Shard, ShardIndex, write_shard_index
from tasks.data.splits import shard_bounds, shard_order
from tasks.data.tfds_metadata import write_tfds_metadata
from tasks.data.tfrecord import Compression, frame, framed, room_for, shard_name, write_frames
from tasks.errors import DataNotFound
from tasks.files import digest_bytes, digest_file, digest_json, resumable_folder
from tasks.layout import Layout
from tasks.libraries import program_digest
from tasks.progress import in_threads, progress, say
from tasks.settings import ShardSettings

BLOCK_BYTES = 1 << 20  # of records of one size, which are made together
NEEDED = ("key", "row", "label", "bytes", "id", "uri", "digest")  # of the manifest's columns; the last three where examples are files
_READING = threading.Lock()
COMPRESSIONS: dict[str, tuple[Compression, ...]] = {"none": ("none",), "gzip": ("gzip",), "both": ("none", "gzip")}


@dataclass(frozen=True, kw_only=True)
class ShardWork:
    """What one writer needs to write one shard. `values` is the mapped array of all examples, empty where they are files."""

    path: Path
    split: str
    rows: pd.DataFrame
    values: np.ndarray
    schema: RecordSchema
    compression: Compression


def shard(manifest: Manifest, out: Path, *, settings: ShardSettings) -> ShardIndex:
    """Write the shards of all splits into `out`, replacing it only when all are complete.

    Raises:
      DataNotFound: an image file disappeared since ingest.
    """
    same_work = digest_json({"data": manifest.digest, "settings": settings.model_dump(exclude={"writers"}), "program": program_digest("shard")})
    with resumable_folder(out, key=same_work) as folder:
        works = list(_works(manifest, folder, settings))
        # Threads, not processes: reading, hashing and writing happen outside Python's lock, and records of one size are made as arrays.
        written = in_threads(write_shard, works, workers=settings.writers)
        shards = tuple(progress(written, total=len(works), label="shard", unit="shards"))
        index = ShardIndex(schema=manifest.schema, classes=manifest.classes, data_digest=manifest.digest, shards=shards)
        write_tfds_metadata(folder, index)
        write_shard_index(folder, index)
    return index


def write_shard(work: ShardWork) -> Shard:
    """Write one shard, unless an interrupted run has already finished it."""
    kept = work.path.exists()
    digest = digest_file(work.path) if kept else write_frames(work.path, _frames(work), compression=work.compression)
    records = len(work.rows)
    return Shard(
        name=work.path.name,
        split=work.split,
        records=records,
        examples=sum(work.rows["label"].tolist()) if work.schema.payload == "series" else records,
        bytes=work.path.stat().st_size,
        digest=digest,
        compression=work.compression,
    )


def _works(manifest: Manifest, folder: Path, settings: ShardSettings) -> Iterator[ShardWork]:
    schema = manifest.schema
    values = np.empty(0) if schema.payload == "encoded" else map_values(manifest.folder)
    for split in SPLITS:
        rows = manifest.of(split)
        if rows.empty:
            continue
        # A series keeps the order of time.
        order = np.argsort(rows["row"]) if schema.payload == "series" else shard_order(rows)
        rows = rows[list(NEEDED if schema.payload == "encoded" else NEEDED[:4])].iloc[order]
        bounds = shard_bounds(rows["bytes"].tolist(), target_bytes=settings.target_size_mib * 2**20, min_shards=settings.min_shards)
        for compression in COMPRESSIONS[settings.compression]:
            for number, (start, stop) in enumerate(bounds):
                yield ShardWork(
                    path=folder / shard_name(split, number, len(bounds), compression),
                    split=split,
                    rows=rows.iloc[start:stop],
                    values=values,
                    schema=schema,
                    compression=compression,
                )


def _frames(work: ShardWork) -> Iterable[bytes | memoryview]:
    """The framed records of one shard, in order, in parts."""
    if work.schema.payload == "raw":
        return _framed_rows(work)
    return chain.from_iterable(_framed_blocks(work) if work.schema.payload == "series" else _framed_files(work))


def _framed_rows(work: ShardWork) -> Iterator[memoryview]:
    """Examples of one size: whole arrays of records, without a Python call for each of their parts."""
    labels = work.rows["label"].to_numpy(work.schema.label_dtype)
    keys = work.rows["key"].to_numpy()
    places = work.rows["row"].to_numpy()
    size = len(encode_example(key=0, label=labels[0].item(), value=work.values[0].tobytes(), feature=work.schema.feature))
    room = room_for(max(1, min(len(places), BLOCK_BYTES // size)), size)
    for start in range(0, len(places), len(room)):
        part = slice(start, start + len(room))
        block = room[: len(places[part])]
        encode_examples(block["record"], keys=keys[part], labels=labels[part], values=work.values[places[part]], feature=work.schema.feature)
        yield framed(block)


def _framed_blocks(work: ShardWork) -> Iterator[tuple[bytes, ...]]:
    """Blocks of consecutive time steps."""
    for key, row, steps in work.rows[["key", "row", "label"]].itertuples(index=False):
        yield frame(encode_example(key=key, label=steps, value=work.values[row : row + steps].tobytes(), feature=work.schema.feature))


def _framed_files(work: ShardWork) -> Iterator[tuple[bytes, ...]]:
    # By turns: two threads that read and digest small files hand Python's lock to and fro, which takes longer than that. The others
    # flush meanwhile.
    with _READING:
        for identity, key, label, uri, size, digest in work.rows[["id", "key", "label", "uri", "bytes", "digest"]].itertuples(index=False):
            value = _file_bytes(uri, size, identity)
            if digest_bytes(value) != digest:
                raise DataNotFound(f"{uri} (example {identity}) has other contents than at ingest; run `dvc repro`")
            head, tail = encode_around(len(value), key=key, label=label)
            yield frame(head, value, tail)


def _file_bytes(uri: str, size: int, identity: str) -> bytes:
    """The contents of a small file of known size, in as few calls as it takes."""
    try:
        descriptor = os.open(uri, os.O_RDONLY | os.O_NONBLOCK)
        try:
            value = os.read(descriptor, size + 1)
            while 0 < len(value) < size and (more := os.read(descriptor, size + 1 - len(value))):  # one call reads 2 GiB at most
                value += more
        finally:
            os.close(descriptor)
    except OSError as error:
        raise DataNotFound(f"{uri} (example {identity}) was there at ingest and cannot be read now: {error.strerror}; run `dvc repro`") from error
    if len(value) != size:
        raise DataNotFound(f"{uri} (example {identity}) has another size than at ingest, {size:,} bytes then; run `dvc repro`")
    return value


def main() -> None:
    """Write the examples of data/manifest/ into TFRecord files in data/shards/."""
    with door(main) as params:
        layout = Layout()
        manifest = read_manifest(layout.manifest)
        begun = time.perf_counter()
        index = shard(manifest, layout.shards, settings=params.shard)
        seconds = time.perf_counter() - begun
        examples, size = len(manifest.examples), sum(item.bytes for item in index.shards) / 1e6
        rate = f"{size / seconds:,.0f} MB/s, {examples / seconds:,.0f} examples/s"
        what = "blocks of time steps" if index.schema.payload == "series" else "examples"
        say(f"shard: {examples:,} {what} in {len(index.shards)} shards, {size:,.1f} MB, {rate}")


if __name__ == "__main__":
    main()
