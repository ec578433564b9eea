"""Published benchmarks of input pipelines, in their shape on this machine: what was published on
which hardware, what comes out here, and both per core.

    python -m benchmarks.published --suite dlio --work DIR
    python -m benchmarks.published --suite presto --work DIR [--photos DIR]
    python -m benchmarks.published --suite landscape --work DIR --python ENV/bin/python

dlio: ResNet-50 of MLPerf Storage. Records of 114,660 bytes that are not decoded; how many
accelerators are kept busy for 90 % of the time. Our configurations run beside that benchmark's
TensorFlow reader, rewritten. Its rules ask for data of five times the memory; here it is in the
page cache, so readers are compared and not disks.

presto: the image pipeline of PRESTO (decode, shorter side to 256, center, random crop of 224) from
what each of its cuts stores, and the choice of a search by `python -m tasks.tune`. Its storage was
a cluster of hard disks; here it is the page cache.

landscape: RANDOM of the data-loader landscape (Ofeidis et al.), JPEGs of uniform noise, 256×256:
our configurations beside other libraries' loaders, whose environment benchmarks/peers.py describes.
Published are plots, and that libraries differ little on one accelerator.

A row says how comparable it is: *same data* is the published data made again; *same shape* is data
and work of the same kind and size, so that ratios compare; *cited* was not run here.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from ruamel.yaml import YAML

from benchmarks import data, peers
from benchmarks.command_line import command_line, write_results
from benchmarks.input_pipelines import start_workers, take_turns, turn
from benchmarks.tuning import run
from throughline.data.known_datasets import make_photos
from throughline.results.tuning import TuningResult

ROUNDS = 5
RECORD = (182, 210, 3)  # 114,660 bytes
RECORDS = 4_096
READER_THREADS, TRANSFER_BYTES = 8, 262_144  # from DLIO's configuration
BUSY = 0.9  # share of time in which an accelerator has to compute
# Batch size and seconds to compute a batch.
ACCELERATORS = {"resnet50_tf": (64, 0.098), "resnet50_h100": (400, 0.224)}
STREAMS = ("naive", "heuristic", "autotune", "vectorized", "map_parallel")
OURS = ("shards_global", "snapshot", "optimized")
READER = "DLIO's TensorFlow reader"
CUTS = {"unprocessed": 107.0, "concatenated": 962.0, "resized": 1_789.0, "centered": 576.0}
PRESTO_CORES = 8
NOISE, NOISE_SIDE, NOISE_ROUNDS = 5_000, 256, 5  # the published benchmark had 50,000
PHOTOS, QUALITY = 2_000, 97  # 500×375, hardly compressed like ImageNet's (115 kB on average)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A line of a table: published and measured examples per second, or None."""

    name: str
    published: float | None
    published_cores: int | None
    here: float | None
    comparable: str
    note: str = ""

    def __str__(self) -> str:
        cores = os.cpu_count() or 1
        cells = (
            self.name,
            _rate(self.published),
            _rate(self.published and self.published / (self.published_cores or 1)),
            _rate(self.here),
            _rate(self.here and self.here / cores),
            self.comparable,
            self.note,
        )
        return f"| {' | '.join(cells)} |"


HEADING = (
    "| what | published, examples/s | per core | here, examples/s | per core | comparable | |\n"
    "|---|---:|---:|---:|---:|---|---|"
)


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def main() -> None:
    parser = command_line("published", __doc__)
    parser.add_argument("--suite", choices=("dlio", "presto", "landscape"), required=True)
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="prepared data")
    parser.add_argument("--photos", type=Path, metavar="DIR", help="class folders of JPEG photos")
    parser.add_argument(
        "--python", type=Path, metavar="FILE", help="interpreter of the peers' environment"
    )
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    if options.suite == "landscape":
        if options.python is None:
            parser.error("--suite landscape takes --python, of the peers' environment")
        rows = landscape(options.work, options.python)
    else:
        rows = (
            dlio(options.work) if options.suite == "dlio" else presto(options.work, options.photos)
        )
    print(HEADING, *rows, sep="\n")
    write_results(options.json, [vars(row) for row in rows])


def dlio(work: Path) -> list[Row]:
    """Read records without decoding, in batches of each accelerator's size."""
    archive = work / "records.npz"
    if not archive.exists():
        records = np.random.default_rng(0).integers(0, 256, (RECORDS, *RECORD), np.uint8)
        np.savez(archive, x=records, y=np.arange(RECORDS) % 10)
    rows = []
    for name, (batch_size, compute_s) in ACCELERATORS.items():
        presets = data.presets("images")
        document = {
            "data": {
                "source": "arrays",
                "path": str(archive.resolve()),
                "split": {"validation": 0.01, "test": 0.0},
            },
            "preprocess": ["decode"],
            "batch_size": batch_size,
            "pipelines": {each: presets[each] for each in (*STREAMS, *OURS)},
        }
        workload = data.prepare("dlio", document, work)
        shards = [str(path) for path in sorted(workload.layout.shards.glob("train-*.tfrecord"))]
        rates = race([workload], {READER: (read_as_dlio, shards, batch_size)})
        needed = batch_size / compute_s
        best = max(STREAMS, key=lambda each: rates[each])
        rows.append(
            Row(
                name=f"{name}: an accelerator that is never idle, batch {batch_size}",
                published=needed,
                published_cores=None,
                here=None,
                comparable="cited",
            )
        )
        for each, rate in sorted(rates.items(), key=lambda item: -item[1]):
            fed = f"{rate / (BUSY * needed):.1f} accelerators, {rate / rates[best]:.1f} × `{best}`"
            rows.append(
                Row(
                    name=each if each == READER else f"`{each}`",
                    published=None,
                    published_cores=None,
                    here=rate,
                    comparable="same shape",
                    note=fed,
                )
            )
    return rows


def read_as_dlio(files: Sequence[str], batch_size: int, pipe: Connection) -> None:
    """Serve DLIO's TensorFlow reader: records one after another, each parsed by Python."""
    import tensorflow as tf

    def parse(record: Any) -> Any:
        features = {"image": tf.io.FixedLenFeature([], tf.string)}
        image = tf.io.parse_single_example(record, features)["image"]
        return tf.io.decode_raw(image, tf.uint8)

    records = tf.data.TFRecordDataset(list(files), buffer_size=TRANSFER_BYTES).repeat()
    images = records.map(
        lambda record: tf.py_function(parse, [record], tf.uint8), num_parallel_calls=READER_THREADS
    )
    batches: Iterator[Any] = iter(images.batch(batch_size, drop_remainder=True))
    pipe.send((READER, next(batches).shape))
    while pipe.recv() != "end":
        pipe.send(turn((batch, batch) for batch in batches))


def presto(work: Path, photos: Path | None) -> list[Row]:
    """Run the image pipeline from what each cut stores, and search for the best cut."""
    path = _compress_little(work, photos)
    ahead = {"map": {"parallel": "cores"}, "prefetch": 2}
    document = {
        "data": {
            "source": "image_folder",
            "path": str(path.resolve()),
            "split": {"validation": 0.01, "test": 0.0},
        },
        "preprocess": ["decode", {"resize": {"shorter": 256}}],
        "augment": [{"random_crop": {"height": 224, "width": 224}}],
        "postprocess": [{"rescale": {"scale": 1 / 127.5, "offset": -1.0}}],
        "batch_size": 64,
        "pipelines": {
            "unprocessed_float": {"read": "files", **ahead},
            "concatenated_float": {"read": "shards", **ahead},
            "resized_float": data.presets("images")["snapshot"],
        },
    }
    workload = data.prepare("presto", document, work)
    raced = race([workload], {})
    rates = {cut: raced.get(f"{cut}_float") for cut in CUTS}  # batches are centered floats
    least = rates["unprocessed"] or 1.0
    rows = [
        Row(
            name=cut,
            published=published,
            published_cores=PRESTO_CORES,
            here=rate,
            comparable="same shape" if rate else "cited",
            note=f"published {published / CUTS['unprocessed']:.1f} × unprocessed,"
            + (f" here {rate / least:.1f} ×" if rate else " and no snapshot here stores floats"),
        )
        for (cut, published), rate in zip(CUTS.items(), rates.values(), strict=True)
    ]
    return [*rows, _searched(work / "presto-search", document)]


def landscape(work: Path, python: Path) -> list[Row]:
    """Decode and stack JPEGs of noise, by our configurations and by other libraries."""
    images = work / "noise-images"
    if not images.exists():
        draw, made = np.random.default_rng(0), work / "noise.partial"
        for number in range(NOISE):
            file = made / str(number % 10) / f"{number:05d}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            pixels = draw.integers(0, 256, (NOISE_SIDE, NOISE_SIDE, 3), np.uint8)
            Image.fromarray(pixels).save(file)
        made.rename(images)
    theirs = peers.Theirs(python=python, photos=images, work=work, size=NOISE_SIDE)
    rounds = peers.run_all(data.noise(images, work), theirs, NOISE_ROUNDS)
    rates = {name: statistics.median(values) for name, values in rounds.items()}
    return [
        Row(
            name=f"`{name}`" if name in peers.OURS else name,
            published=None,
            published_cores=None,
            here=rate,
            comparable="same data",
            note=f"{rate / rates['torch_pil']:.1f} × PyTorch's with Pillow",
        )
        for name, rate in sorted(rates.items(), key=lambda item: -item[1])
    ]


def _compress_little(work: Path, photos: Path | None) -> Path:
    kept = work / "photos-hardly-compressed"
    if not kept.exists():
        if photos is None:
            (photos := work / "photos").mkdir(exist_ok=True)
            print(make_photos(photos, count=PHOTOS), file=sys.stderr)
        for file in sorted(photos.rglob("*.jpg"))[:PHOTOS]:
            copy = work / "photos.partial" / file.relative_to(photos)
            copy.parent.mkdir(parents=True, exist_ok=True)
            with Image.open(file) as photo:
                photo.save(copy, quality=QUALITY, subsampling=0)
        (work / "photos.partial").rename(kept)
    sizes = [file.stat().st_size for file in kept.rglob("*.jpg")]
    print(f"{len(sizes):,} photos of {statistics.mean(sizes) / 1e3:.0f} kB", file=sys.stderr)
    return kept


def _searched(folder: Path, document: Mapping[str, Any]) -> Row:
    folder.mkdir(exist_ok=True)
    with (folder / "params.yaml").open("w") as file:
        YAML(typ="safe").dump(dict(document), file)
    for stage in ("ingest", "shard", "snapshot"):
        run(folder, f"tasks.{stage}")
    run(folder, "tasks.tune", "--out=found", "--epochs=30")
    found = TuningResult.read(folder / "found")
    return Row(
        name="chosen by the search",
        published=None,
        published_cores=None,
        here=None,
        comparable="same shape",
        note=f"`{found.chosen}` after {found.searched_s:.0f} s: {found.outcome}",
    )


def race(
    workloads: Sequence[data.Workload],
    others: Mapping[str, tuple[Callable[[Sequence[str], int, Connection], None], list[str], int]],
) -> dict[str, float]:
    """Return median examples/s of all configurations and of other readers, in alternation."""
    context, pipes = multiprocessing.get_context("spawn"), {}
    with ExitStack() as stack:
        for workload in workloads:
            pipes |= start_workers(workload, list(workload.params.pipelines), stack)
        for name, (target, files, batch_size) in others.items():
            pipes[name], theirs = context.Pipe()
            process = context.Process(target=target, args=(files, batch_size, theirs))
            process.start()
            theirs.close()  # so that its end is noticed
            stack.callback(process.join)
            stack.callback(pipes[name].send, "end")
        for pipe in pipes.values():
            pipe.recv()
        rounds = []
        for number in range(ROUNDS):
            rounds.append(take_turns(pipes))
            print(f"round {number + 1} of {ROUNDS}", file=sys.stderr, flush=True)
    return {name: statistics.median(one[name] for one in rounds) for name in pipes}


if __name__ == "__main__":
    main()
