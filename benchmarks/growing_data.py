"""How long `dvc repro snapshot` takes in a clone of this project: at first, with nothing changed
(also the ingest stage alone), with one file changed, and with one removed.

    python -m benchmarks.growing_data [--files 100000] [--rounds 3]
"""

import resource
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.command_line import command_line
from benchmarks.data import ROOT, demo, write_params
from throughline.data.inspection_cache import SETTLED_NS

CLASSES, SIDE = 10, 48  # pixels of a side
RUNS = ("first", "nothing changed", "ingest, nothing changed", "one changed", "one removed")
SNAPSHOT = ("dvc", "repro", "snapshot")
INGEST = (sys.executable, "-m", "tasks.ingest")


def write_picture(path: Path, seed: int) -> None:
    small = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(small).resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(path)


def make_project(root: Path, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    data = {"source": "image_folder", "path": str(root), "fetch": "none"}
    resize = {"resize": {"height": SIDE, "width": SIDE}}
    write_params(folder, demo("photos"), {"data": data, "preprocess": ["decode", resize]})


def main() -> None:
    parser = command_line("growing_data", __doc__)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    root, folder = options.work / "growing" / "photos", options.work / "growing" / "project"
    shutil.rmtree(root, ignore_errors=True)
    files = [root / f"{n % CLASSES}" / f"{n:08d}.jpg" for n in range(options.files)]
    for seed, file in enumerate(files):
        write_picture(file, seed)
    seconds: dict[str, list[float]] = {name: [] for name in RUNS}
    for number in range(options.rounds):
        make_project(root, folder)
        for name in RUNS:
            if name == "one changed":
                write_picture(files[0], options.files + number)
            elif name == "one removed":
                files.pop().unlink()
            time.sleep(2 * SETTLED_NS / 1e9)
            began = time.perf_counter()
            command = INGEST if name.startswith("ingest") else SNAPSHOT
            subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, check=True)
            seconds[name].append(time.perf_counter() - began)
            print(name, seconds[name][-1], flush=True)
    for name, values in seconds.items():
        print(f"{options.files:,} files, {name}: {statistics.median(values):.2f} s")
    peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"at most {peak_mb:,.0f} MB in one process")


if __name__ == "__main__":
    main()
