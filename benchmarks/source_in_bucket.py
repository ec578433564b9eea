"""How long ingest and shard take from a local bucket or a folder: for all photos, and one change.

    python -m benchmarks.source_in_bucket --photos 2000 --rounds 5

Starts its own SeaweedFS. Store and stages share cores and disk, so this bounds the cost of reading
object by object and says nothing about a network or a cloud's store. A test counts the objects that
are read (`tests/data/test_bucket_sources.py`), through a proxy.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from infra.local import s3
from tasks.upload import upload
from throughline.data.ingest import ingest
from throughline.data.manifest import read_manifest
from throughline.data.shards.writing import shard
from throughline.settings import DataSettings, ShardSettings

SIZE = (160, 120)
BUCKET = "benchmark"
WORK = ("ingest", "ingest, one changed", "shard")


def write_photo(path: Path, seed: int) -> None:
    small = np.random.default_rng(seed).integers(0, 256, (12, 16, 3), np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(small).resize(SIZE, Image.Resampling.BICUBIC).save(path, quality=90)


def measure_once(place: str, changed: str, folder: Path, out: Path) -> dict[str, float]:
    """Return the seconds of each task from a place, in which one photo is replaced in between."""
    settings, seconds = DataSettings(source="image_folder", path=place), {}
    for name in WORK:
        if name == "ingest, one changed":
            photo = folder / "a" / "00000.jpg"
            write_photo(photo, time.time_ns())
            if changed != str(photo):
                upload(photo, changed)
        started_at = time.perf_counter()
        if name == "shard":
            shard(read_manifest(out / "manifest"), out / "shards", settings=ShardSettings())
        else:
            ingest(settings, out / "manifest", inspections=out / "kept")
        seconds[name] = time.perf_counter() - started_at
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--photos", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        folder, url = root / "photos", f"s3://{BUCKET}/photos"
        for number in range(options.photos):
            write_photo(folder / "ab"[number % 2] / f"{number:05d}.jpg", number)
        with s3.temporary_store(root / "stack", BUCKET) as variables:
            os.environ.update(variables)
            upload(folder, url)
            time.sleep(2.5)  # until files count as settled
            places = {str(folder): str(folder / "a/00000.jpg"), url: f"{url}/a/00000.jpg"}
            taken: dict[str, list[dict[str, float]]] = {place: [] for place in places}
            for _ in range(options.rounds):
                for place, changed in places.items():
                    out = Path(tempfile.mkdtemp(dir=root))
                    taken[place].append(measure_once(place, changed, folder, out))
                    shutil.rmtree(out)
        for place, rounds in taken.items():
            for work in WORK:
                seconds = [one[work] for one in rounds]
                middle, least, most = statistics.median(seconds), min(seconds), max(seconds)
                where = "bucket" if place == url else "folder"
                print(f"{where} {work}: {middle:.2f} s ({least:.2f} to {most:.2f})")


if __name__ == "__main__":
    main()
