"""Published benchmarks of input pipelines, repeated on this machine.

    python -m benchmarks.published --suite dlio
    python -m benchmarks.published --suite presto [--photos DIR]

dlio: ResNet-50 of MLPerf Storage. Records of 114,660 bytes, which are not decoded, in batches of
each accelerator's size; the last line says how many accelerators are kept busy for 90 % of the
time. Compared with that benchmark's TensorFlow reader, rewritten. Its rules require five times as
much data as memory; here data is in the page cache, so readers are compared, not disks.

presto: the image pipeline of PRESTO (decode, shorter side to 256, center, random crop of 224), from
what each of its cuts stores, beside the published rates (photos of 115 kB from a cluster of hard
disks; here they are in the page cache) and what `python -m tasks.tune` chooses.
"""

import sys
from pathlib import Path

import numpy as np

from benchmarks import data
from benchmarks.command_line import add_photos, command_line
from benchmarks.turns import our_loaders, peer_loaders, show, take_turns
from throughline.results.tuning import TuningResult

RECORD, RECORDS = (182, 210, 3), 4_096  # 114,660 bytes each
BUSY = 0.9  # share of time in which an accelerator has to compute
# Batch size and seconds to compute a batch.
ACCELERATORS = {"resnet50_tf": (64, 0.098), "resnet50_h100": (400, 0.224)}
STREAMS = ("naive", "heuristic", "autotune", "vectorized", "map_parallel")
STORED = ("shards_global", "snapshot", "optimized")
# Published examples/s of the cuts that can be repeated; a snapshot stores no centered floats.
CUTS = {"unprocessed": 107.0, "concatenated": 962.0, "resized": 1_789.0}


def main() -> None:
    parser = command_line("published", __doc__)
    add_photos(parser)
    parser.add_argument("--suite", choices=("dlio", "presto"), required=True)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each (default: 5)")
    options = parser.parse_args()
    {"dlio": dlio, "presto": presto}[options.suite](options.work, options.photos, options.rounds)


def dlio(work: Path, _: Path | None, rounds: int) -> None:
    archive = work / "records.npz"
    work.mkdir(parents=True, exist_ok=True)
    if not archive.exists():
        records = np.random.default_rng(0).integers(0, 256, (RECORDS, *RECORD), np.uint8)
        np.savez(archive, x=records, y=np.arange(RECORDS) % 10)
    source = {"source": "arrays", "path": str(archive), "fetch": "none"}
    for name, (batch_size, compute_s) in ACCELERATORS.items():
        folder = data.prepare(
            work / "dlio",
            {"data": source | {"split": {"validation": 0.01, "test": 0.0}}, "augment": []},
            {"batch_size": batch_size, **data.choose_presets(*STREAMS, *STORED)},
        )
        shards, size = folder / "data" / "shards", f"--batch={batch_size}"
        reader = peer_loaders(sys.executable, shards, ["dlio"], size)
        rates = take_turns(our_loaders(folder, [*STREAMS, *STORED]) | reader, rounds=rounds)
        show(name, rates, max(STREAMS, key=lambda each: rates[each]))
        busy = BUSY * batch_size / compute_s
        print("accelerators:", *(f"{each} {rate / busy:.1f}" for each, rate in rates.items()))


def presto(work: Path, photos: Path | None, rounds: int) -> None:
    ahead = {"map": {"parallel": "cores"}, "prefetch": 2}
    folder = data.prepare(
        work / "presto",
        data.from_files(
            data.find_photos(work, photos),
            preprocess=["decode", {"resize": {"shorter": 256}}],
            augment=[{"random_crop": data.CROP_224}],
            postprocess=[{"rescale": {"scale": 1 / 127.5, "offset": -1.0}}],
        ),
        data.choose_presets(  # batches are centered floats
            unprocessed_float={"read": "files", **ahead},
            concatenated_float={"read": "shards", **ahead},
            resized_float=data.presets("images")["snapshot"],
        ),
    )
    loaders = our_loaders(folder, [f"{cut}_float" for cut in CUTS])
    show("here", take_turns(loaders, rounds=rounds), "unprocessed_float")
    show("published, on 8 cores", CUTS, "unprocessed")
    data.run_module(folder, "tasks.tune", "--out=found", "--epochs=30")
    print(TuningResult.read(folder / "found").sentence)


if __name__ == "__main__":
    main()
