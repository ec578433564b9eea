"""What does a Dask cluster cost per shard, and how does that grow with the number of shards?

    python -m benchmarks.dask_shards --work DIR [--shards 100 1000] [--workers 2]

Writes the same small arrays with threads and with local Dask workers, in alternating processes.
Prints how many more milliseconds per shard Dask takes than threads, and the peak memory of the
process that is stage, client and scheduler.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.command_line import command_line
from throughline.data.ingest import ingest
from throughline.data.manifest import read_manifest
from throughline.data.shards.writing import shard
from throughline.settings import DataSettings, ShardSettings
from throughline.shared.engine import use_engine

ROWS, SIDE, REPEATS = 20_000, 8, 3
SPAWN = multiprocessing.get_context("spawn")


def prepare(work: Path) -> None:
    if (work / "manifest").exists():
        return
    work.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    values = draw.integers(0, 256, (ROWS, SIDE, SIDE), np.uint8)
    np.savez(work / "data.npz", x=values, y=np.arange(ROWS) % 10)
    ingest(DataSettings(source="arrays", path=str(work / "data.npz")), work / "manifest")


def write(work: Path, shards: int, workers: int) -> tuple[float, float]:
    """Write at least so many training shards; return seconds per shard and peak memory [MiB]."""
    os.chdir(work)
    manifest = read_manifest(Path("manifest"))
    shutil.rmtree("shards", ignore_errors=True)
    with use_engine(workers=workers):
        started_at = time.perf_counter()
        index = shard(manifest, Path("shards"), settings=ShardSettings(min_shards=shards))
        seconds = time.perf_counter() - started_at
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return seconds / len(index.shards), memory


def main() -> None:
    parser = command_line("dask_shards", __doc__, results=False)
    parser.add_argument("--work", type=Path, required=True, metavar="DIR")
    parser.add_argument("--shards", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    work = options.work.absolute()
    prepare(work)
    for shards in options.shards:
        found: dict[int, list[tuple[float, float]]] = {0: [], options.workers: []}
        for _ in range(REPEATS):
            for workers, runs in found.items():
                with ProcessPoolExecutor(1, mp_context=SPAWN) as pool:
                    runs.append(pool.submit(write, work, shards, workers).result())
        threads, dask = (
            [statistics.median(column) for column in zip(*runs, strict=True)]
            for runs in found.values()
        )
        print(
            f"{shards} shards at least: {1e3 * threads[0]:.1f} ms each with threads,"
            f" {1e3 * dask[0]:.1f} with {options.workers} workers:"
            f" {1e3 * (dask[0] - threads[0]):.1f} ms more; memory"
            f" {threads[1]:.0f} and {dask[1]:.0f} MiB"
        )


if __name__ == "__main__":
    main()
