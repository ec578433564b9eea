"""Stage 2, shard: write all examples into TFRecord shards in a deterministic, content-keyed global shuffle.

The same examples give the same files, whatever the number of writers. Finished shards survive a kill and are not
written again. TFDS metadata is written beside them, so `tfds.builder_from_directory` opens the folder too.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from tasks.data.manifest import SPLITS, Manifest, read_manifest
from tasks.data.order import shard_bounds, shard_order
from tasks.data.records import encode_example, example_key
from tasks.data.shards import Shard, ShardIndex, write_shard_index
from tasks.data.tfds_metadata import write_tfds_metadata
from tasks.data.tfrecord import Compression, shard_name, write_records
from tasks.errors import DataNotFound
from tasks.files import digest_file, digest_json, resumable_folder
from tasks.progress import progress, say
from tasks.settings import ShardSettings
from tasks.stage import Layout, door


@dataclass(frozen=True, kw_only=True)
class ShardWork:
    """What one writer needs to write one shard; small enough to send to another process."""

    path: Path
    split: str
    rows: pd.DataFrame
    images: Path | None
    compression: Compression


def shard(manifest: Manifest, out: Path, *, settings: ShardSettings) -> ShardIndex:
    """Write the shards of all splits into `out`, replacing it only when all are complete.

    Raises:
      DataNotFound: an image file disappeared since ingest.
    """
    same_work = digest_json({"data": manifest.digest, "settings": settings.model_dump(exclude={"writers"})})
    with resumable_folder(out, key=same_work) as folder:
        works = list(_works(manifest, folder, settings))
        with ProcessPoolExecutor(settings.writers, mp_context=multiprocessing.get_context("spawn")) as pool:
            results = pool.map(write_shard, works)
            shards = tuple(progress(results, total=len(works), label="shard", unit="shards"))
        index = ShardIndex(
            schema=manifest.schema,
            classes=manifest.classes,
            data_digest=manifest.digest,
            compression=settings.compression,
            shards=shards,
        )
        write_tfds_metadata(folder, index)
        write_shard_index(folder, index)
    return index


def write_shard(work: ShardWork) -> Shard:
    """Write one shard, unless an interrupted run has already finished it."""
    if not work.path.exists():
        write_records(work.path, _records(work), compression=work.compression)
    return Shard(
        name=work.path.name,
        split=work.split,
        examples=len(work.rows),
        bytes=work.path.stat().st_size,
        digest=digest_file(work.path),
    )


def _works(manifest: Manifest, folder: Path, settings: ShardSettings) -> Iterator[ShardWork]:
    images = manifest.folder / "images.npy"
    for split in SPLITS:
        rows = manifest.examples[manifest.examples["split"] == split]
        if rows.empty:
            continue
        rows = rows.iloc[shard_order(rows["digest"].tolist(), rows["id"].tolist())]
        bounds = shard_bounds(rows["bytes"].tolist(), target_bytes=settings.target_size_mib * 2**20, min_shards=settings.min_shards)
        for number, (start, stop) in enumerate(bounds):
            yield ShardWork(
                path=folder / shard_name(split, number, len(bounds), settings.compression),
                split=split,
                rows=rows.iloc[start:stop],
                images=images if manifest.schema.payload == "raw" else None,
                compression=settings.compression,
            )


def _records(work: ShardWork) -> Iterator[bytes]:
    images = None if work.images is None else np.load(work.images, mmap_mode="r", allow_pickle=False)
    ids, labels, rows, uris = (work.rows[name].tolist() for name in ("id", "label", "row", "uri"))
    for identity, label, row, uri in zip(ids, labels, rows, uris, strict=True):
        image = _file_bytes(uri, identity) if images is None else images[row].tobytes()
        yield encode_example(key=example_key(identity), label=label, image=image)


def _file_bytes(uri: str, identity: str) -> bytes:
    try:
        return Path(uri).read_bytes()
    except OSError as error:
        raise DataNotFound(f"{uri} (example {identity}) was there at ingest and cannot be read now: {error.strerror}; run `dvc repro`") from error


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
        say(f"shard: {examples:,} examples in {len(index.shards)} shards, {size:,.1f} MB, {rate}")


if __name__ == "__main__":
    main()
