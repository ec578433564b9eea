"""How fast a snapshot's columns, and its first rows, come from a local object store or from files.

    python -m benchmarks.object_storage --images 20000 --rounds 5

Starts its own SeaweedFS. Store and reader share cores and disk, so this bounds the reader's cost
and says nothing about a network or a cloud's store. A test counts the bytes that are fetched
(`tests/pipelines/test_stored_columns.py`), through a proxy.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from infra.local import s3
from throughline.data.columns.stored import Destination
from throughline.data.ingest import ingest
from throughline.data.shards.files import ShardFiles
from throughline.data.shards.index import read_shard_index
from throughline.data.shards.writing import shard
from throughline.data.storage import Storage
from throughline.pipelines.read.prepared_data import PreparedData, open_prepared_data
from throughline.pipelines.write.snapshot import write_snapshot
from throughline.plan.ops import Decode
from throughline.settings import DataSettings, ShardSettings
from throughline.shared.object_store import open_store

SIDE = 64  # pixels, of three bytes each
BATCH = 256
BUCKET = "benchmark"


def prepare(folder: Path, images: int) -> None:
    """Write images of noise as shards and manifest."""
    draw = np.random.default_rng(0)
    np.savez(
        folder / "data.npz",
        x=draw.integers(0, 256, (images, SIDE, SIDE, 3), np.uint8),
        y=np.arange(images) % 10,
    )
    settings = DataSettings(source="arrays", path=str(folder / "data.npz"))
    manifest = replace(ingest(settings, folder / "manifest"), folder=folder / "manifest")
    shard(manifest, folder / "shards", settings=ShardSettings(target_size_mib=64))


def read_first_rows(open_data: Callable[[], PreparedData]) -> float:
    """Return the seconds from opening to the first random batch of the training split."""
    started_at = time.perf_counter()
    values = open_data().memmap("train", "image")
    rows = np.random.default_rng(1).integers(0, len(values), BATCH)
    values[rows].sum()
    return time.perf_counter() - started_at


def measure(folder: Path, url: str, rounds: int) -> None:
    """Print seconds to write, MB/s of fetching, and seconds to the first rows."""
    index = read_shard_index(folder / "shards")

    def write(out: str, address: str = "") -> float:
        started_at = time.perf_counter()
        store = open_store(address) if address else None
        where = Destination(folder=folder / out, store=store)
        write_snapshot(index, ShardFiles(folder=folder / "shards"), where, preprocess=(Decode(),))
        return time.perf_counter() - started_at

    def open_data(out: str, cache: Path) -> PreparedData:
        return open_prepared_data(
            manifest=folder / "manifest",
            shards=folder / "shards",
            snapshot=folder / out,
            preprocess=(Decode(),),
            storage=Storage(url=url, cache=cache),
        )

    print(f"written into files {write('files'):.2f} s, into the store {write('put', url):.2f} s")
    data = open_data("put", folder / "cache")
    size = data.snapshot.splits["train"].bytes(data.input_column)
    times: dict[str, list[float]] = {"files": [], "fetched": [], "in the cache": [], "copied": []}
    for _ in range(rounds):
        cache = Path(tempfile.mkdtemp(dir=folder))
        times["files"].append(read_first_rows(lambda: open_data("files", folder)))
        for name in ("fetched", "in the cache"):
            times[name].append(read_first_rows(lambda cache=cache: open_data("put", cache)))
        started_at = time.perf_counter()
        shutil.copy(folder / "files" / "train" / "image.bin", cache / "copy")
        times["copied"].append(time.perf_counter() - started_at)
        shutil.rmtree(cache)
    print(f"column of {size / 1e6:,.0f} MB; seconds, median of {rounds} (least to most):")
    for name, taken in times.items():
        middle = statistics.median(taken)
        print(f"{name:13} {middle:.3f} ({min(taken):.3f} to {max(taken):.3f})", end="")
        print(f", {size / 1e6 / middle:,.0f} MB/s" if name in ("fetched", "copied") else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, options.images)
        with s3.temporary_store(folder / "stack", BUCKET) as variables:
            os.environ.update(variables)
            measure(folder, f"s3://{BUCKET}/columns", options.rounds)


if __name__ == "__main__":
    main()
