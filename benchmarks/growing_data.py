"""How long preparation takes when data grows: at first, with nothing changed, with one file
changed, and with one removed. Measures ingest alone with its peak of memory or, with --project, all
of `dvc repro snapshot` in a clone.

python -m benchmarks.growing_data --files 100000 --work DIR [--rounds 5] [--profile] [--project]
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from flows.run.changed_params import join_overlays
from flows.run.parameters import Changes
from flows.run.resolution import resolve
from throughline.config.params_file import read_yaml
from throughline.data.ingest import ingest
from throughline.data.inspection_cache import SETTLED_NS
from throughline.settings import DataSettings, SplitSettings

ROOT = Path(__file__).parents[1]
CLASSES = 10
SIDE = 48  # pixels
DIFFERENT = 1000  # pictures; a number in a comment makes each file's content different


def make_files(root: Path, count: int) -> None:
    """Write `count` JPEG files of about 1.5 kB into class folders, unless they are there."""
    if (root / ".made").exists() and (root / ".made").read_text() == str(count):
        return
    shutil.rmtree(root, ignore_errors=True)
    pictures = [encode(seed) for seed in range(min(count, DIFFERENT))]
    for number in range(CLASSES):
        (root / f"class{number}").mkdir(parents=True)
    for number in range(count):
        data = with_comment(pictures[number % len(pictures)], number)
        (root / f"class{number % CLASSES}" / f"{number:08d}.jpg").write_bytes(data)
    (root / ".made").write_text(str(count))


def encode(seed: int) -> bytes:
    from io import BytesIO

    small = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), np.uint8)
    file = BytesIO()
    Image.fromarray(small).resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(file, "JPEG")
    return file.getvalue()


def with_comment(jpeg: bytes, number: int) -> bytes:
    comment = f"{number:016d}".encode()
    return jpeg[:2] + b"\xff\xfe" + (len(comment) + 2).to_bytes(2, "big") + comment + jpeg[2:]


def run_ingest(root: Path, work: Path, *, kept: bool) -> dict[str, float]:
    """Run ingest in a new process; return seconds without imports, and peak memory [MB]."""
    command = [sys.executable, "-m", "benchmarks.growing_data", "--ingest", str(root)]
    shutil.rmtree(work / "manifest", ignore_errors=True)  # as DVC does before the stage
    if not kept:
        shutil.rmtree(work / "kept", ignore_errors=True)
    done = subprocess.run(
        [*command, "--work", str(work)], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def make_project(root: Path, folder: Path) -> None:
    """Make a clone of this project that reads the files of `root`, unless it exists."""
    if folder.exists():
        return
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    overlay = {
        "data": {"source": "image_folder", "path": str(root.resolve()), "fetch": "none"},
        "preprocess": ["decode", {"resize": {"height": SIDE, "width": SIDE}}],
    }
    changes = Changes(overlay=join_overlays(read_yaml(ROOT / "infra/demo/photos.yaml"), overlay))
    (folder / "params.yaml").write_text(resolve(ROOT, changes).text)


def run_project(folder: Path, *, kept: bool) -> dict[str, float]:
    """Return the seconds of `dvc repro snapshot`; without `kept`, of its first run."""
    if not kept:
        for name in ("data", ".throughline", ".dvc/cache", ".dvc/tmp"):
            shutil.rmtree(folder / name, ignore_errors=True)
        (folder / "dvc.lock").unlink(missing_ok=True)
    before, started_at = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        ["dvc", "repro", "snapshot"], cwd=folder, capture_output=True, text=True, check=False
    )
    seconds, after = time.perf_counter() - started_at, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"s": seconds, "cpu_s": cpu_s, "peak_mb": after.ru_maxrss / 1024}


def ingest_here(root: Path, work: Path, *, profile: bool) -> None:
    """Run ingest, print seconds and peak memory, and with `profile` where the time goes."""
    settings = DataSettings(
        source="image_folder", path=str(root), split=SplitSettings(validation=0.1, test=0.1)
    )
    profiler = cProfile.Profile()
    before = resource.getrusage(resource.RUSAGE_SELF)
    started_at = time.perf_counter()
    if profile:
        profiler.enable()
    ingest(settings, work / "manifest", inspections=work / "kept")
    if profile:
        profiler.disable()
        pstats.Stats(profiler).sort_stats("tottime").print_stats(40)
    seconds = time.perf_counter() - started_at
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps({"s": seconds, "cpu_s": cpu_s, "peak_mb": after.ru_maxrss / 1024}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=Path, required=True, help="a folder for all that is written")
    parser.add_argument("--profile", action="store_true", help="profile one first ingest alone")
    parser.add_argument("--project", action="store_true", help="all stages up to the snapshot")
    parser.add_argument("--ingest", type=Path, metavar="DIR", help=argparse.SUPPRESS)
    options = parser.parse_args()
    work, root = options.work, options.work / "photos"
    if options.ingest:
        ingest_here(options.ingest, work, profile=False)
        return
    make_files(root, options.files)
    time.sleep(2 * SETTLED_NS / 1e9)
    if options.profile:
        shutil.rmtree(work / "kept", ignore_errors=True)
        ingest_here(root, work, profile=True)
        return
    if options.project:
        make_project(root, work / "project")
    changed = root / "class0" / "00000000.jpg"
    removed = sorted((root / "class1").iterdir())
    cases: dict[str, Callable[[int], object]] = {
        "first": lambda round_: None,
        "nothing changed": lambda round_: None,
        "one changed": lambda round_: changed.write_bytes(
            with_comment(changed.read_bytes(), round_)
        ),
        "one removed": lambda round_: removed[round_].unlink(),
    }
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
    for round_ in range(options.rounds):
        for name, change in cases.items():
            change(round_)
            time.sleep(1.1 * SETTLED_NS / 1e9)
            kept = name != "first"
            taken[name].append(
                run_project(work / "project", kept=kept)
                if options.project
                else run_ingest(root, work, kept=kept)
            )
            print(name, taken[name][-1], flush=True)
    (root / ".made").unlink()
    for name, rounds in taken.items():
        seconds = sorted(one["s"] for one in rounds)
        print(
            f"{options.files:,} files, {name}: {statistics.median(seconds):.2f} s"
            f" ({seconds[0]:.2f} to {seconds[-1]:.2f}),"
            f" {statistics.median(one['cpu_s'] for one in rounds):.2f} s of a core,"
            f" at most {max(one['peak_mb'] for one in rounds):,.0f} MB"
        )


if __name__ == "__main__":
    main()
