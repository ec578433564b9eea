"""How fast TFRecord shards are written, compared with a TFRecordWriter loop and with the disk, and
for 10,000 to 1,000,000 records.

python -m benchmarks.sharding --photos DIR --json FILE
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import throughline  # noqa: F401 - sets the environment before TensorFlow is imported
from benchmarks import data
from benchmarks.command_line import command_line, write_results
from throughline.data.ingest import ingest
from throughline.data.manifest import Manifest, read_manifest
from throughline.data.shards.writing import shard
from throughline.settings import DataSettings, ShardSettings

ROUNDS = 5
# of two each; a shared disk's rate varies by a factor of five between writes
DISK_ROUNDS = 8
CURVE = (10_000, 30_000, 100_000, 300_000, 1_000_000)
SETTINGS = ShardSettings()


def time_sharding(manifest: Manifest, folder: Path) -> float:
    """Return the seconds that sharding takes, including flush and digests.

    The shards are removed, as by the other two, because a virtual machine writes more slowly to
    memory that it has not used before.
    """
    began = time.perf_counter()
    shard(manifest, folder, settings=SETTINGS)
    seconds = time.perf_counter() - began
    shutil.rmtree(folder)
    return seconds


def plain_loop(manifest: Manifest, path: Path) -> float:
    """Return the seconds of the usual loop, a TFRecordWriter.write per Example, and a flush."""
    import tensorflow as tf

    values = np.load(manifest.folder / "values.npy", mmap_mode="r")
    began = time.perf_counter()
    with tf.io.TFRecordWriter(str(path)) as writer:
        for row, label in zip(manifest.examples["row"], manifest.examples["label"], strict=True):
            features = {
                "image": tf.train.Feature(
                    bytes_list=tf.train.BytesList(value=[values[row].tobytes()])
                ),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
                "key": tf.train.Feature(int64_list=tf.train.Int64List(value=[row])),
            }
            writer.write(
                tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
            )
    with path.open("rb") as written:
        os.fsync(written.fileno())
    seconds = time.perf_counter() - began
    path.unlink()
    return seconds


def disk_rate(path: Path, size: int) -> float:
    """Return the bytes per second of writing and flushing a file of `size` bytes."""
    block = os.urandom(1 << 20)
    began = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(max(1, size >> 20)):
            file.write(block)
        os.fsync(file.fileno())
    seconds = time.perf_counter() - began
    path.unlink()
    return max(1, size >> 20) * (1 << 20) / seconds


def curve_point(count: int) -> None:
    """Ingest and shard `count` records of 28×28, and print seconds and peak memory."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        np.savez(
            folder / "data.npz",
            x=np.random.default_rng(0).integers(0, 256, (count, 28, 28), np.uint8),
            y=np.arange(count) % 10,
        )
        manifest = ingest(
            DataSettings(source="arrays", path=str(folder / "data.npz")), folder / "manifest"
        )
        manifest = replace(manifest, folder=folder / "manifest")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        seconds = time_sharding(manifest, folder / "shards")
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(
            json.dumps(
                {
                    "records": count,
                    "seconds": round(seconds, 3),
                    "records_per_s": round(count / seconds),
                    "more_memory_mb": (after - before) // 1024,
                }
            )
        )


def _spread(rates: list[float]) -> str:
    return f"{statistics.median(rates):,.0f} MB/s ({min(rates):,.0f} to {max(rates):,.0f})"


def main() -> None:
    parser = command_line("sharding", __doc__)
    parser.add_argument(
        "--photos",
        type=Path,
        metavar="DIR",
        help="class folders of JPEG photos; without it, photos are left out",
    )
    parser.add_argument("--point", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.point:
        curve_point(options.point)
        return
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        small = read_manifest(data.fashion_mnist(work).layout.manifest)
        times = [
            (time_sharding(small, work / f"ours-{n}"), plain_loop(small, work / "loop.tfrecord"))
            for n in range(ROUNDS)
        ]
        records = len(small.examples)
        mine, loop = (statistics.median(column) for column in zip(*times, strict=True))
        results["fashion_mnist"] = {
            "records_per_s": round(records / mine),
            "loop_records_per_s": round(records / loop),
            "ratio": round(loop / mine, 2),
        }
        print(
            f"Fashion-MNIST: {records / mine:,.0f} records/s, a TFRecordWriter loop"
            f" {records / loop:,.0f}, ratio {loop / mine:.1f}"
        )
        if options.photos:
            settings = DataSettings(source="image_folder", path=str(options.photos))
            large = ingest(settings, work / "manifest")
            size = int(large.stats["bytes"])
            rates = [size / time_sharding(large, work / "photos") / 1e6]
            disks = []
            # Each follows itself and the other one, because freed pages are quicker to write to.
            for _ in range(DISK_ROUNDS):
                disks += [disk_rate(work / "plain", size) / 1e6 for _ in range(2)]
                rates += [size / time_sharding(large, work / "photos") / 1e6 for _ in range(2)]
            rate, disk = statistics.median(rates), statistics.median(disks)
            results["photos"] = {
                "mb_per_s": round(rate, 1),
                "disk_mb_per_s": round(disk, 1),
                "ratio": round(rate / disk, 2),
            }
            print(
                f"photos: {_spread(rates)}, the disk alone {_spread(disks)}, ratio"
                f" {rate / disk:.2f}"
            )
    results["curve"] = []
    for count in CURVE:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.sharding", "--point", str(count)],
            capture_output=True,
            text=True,
            check=True,
        )
        results["curve"].append(json.loads(done.stdout.strip().splitlines()[-1]))
        print(results["curve"][-1])
    write_results(options.json, results)


if __name__ == "__main__":
    main()
