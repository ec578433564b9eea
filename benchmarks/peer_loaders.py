"""Other libraries' loaders for the photos of our benchmark, in their own environment.

    python benchmarks/peer_loaders.py NAME --files DIR

Answers each line on standard input with the examples per second of a turn (`turns.py` asks). All
decode JPEG, resize to 224×224 and stack uint8 images, shuffled, on all cores; `dlio` reads records
instead. Imports nothing of this project: the environment is that of peers-requirements.txt.
"""

# pyright: reportMissingImports=false

import argparse
import os
import random
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

SIZE, CORES = 224, len(os.sched_getaffinity(0))
WORKERS: Any = {"num_workers": CORES, "persistent_workers": True, "prefetch_factor": 4}
TURN_S, SETTLE_S = 1.0, 0.7
READER_THREADS, TRANSFER_BYTES = 8, 262_144  # from DLIO's configuration


def serve(batches: Iterator[Any], count: Callable[[Any], int]) -> None:
    """Say when the first batch is ready; then answer each line with the rate of a turn."""
    next(batches)
    print("ready", flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()  # first, batches that were prepared before are used up
        while time.perf_counter() - began < SETTLE_S:
            next(batches)
        examples, steps, began = 0, 0, time.perf_counter()
        while steps < 2 or time.perf_counter() - began < TURN_S:
            examples += count(next(batches))
            steps += 1
        print(examples / (time.perf_counter() - began), flush=True)


def with_opencv(data: bytes) -> np.ndarray:
    import cv2
    import simplejpeg

    pixels = simplejpeg.decode_jpeg(data, colorspace="RGB")
    return cv2.resize(pixels, (SIZE, SIZE), interpolation=cv2.INTER_LINEAR)


def torch_opencv(files: list[Path], batch: int, decode: Any = with_opencv) -> Iterator[Any]:
    from torch.utils.data import DataLoader, Dataset

    class Photos(Dataset):
        def __len__(self) -> int:
            return len(files)

        def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
            return decode(files[index].read_bytes()), 0

    loader = DataLoader(Photos(), batch, shuffle=True, **WORKERS)
    while True:
        yield from loader


def torch_pil(files: list[Path], batch: int) -> Iterator[Any]:
    import io

    from PIL import Image

    def decode(data: bytes) -> np.ndarray:
        image = Image.open(io.BytesIO(data)).convert("RGB")
        return np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BILINEAR))

    return torch_opencv(files, batch, decode)


def webdataset(files: list[Path], batch: int) -> Iterator[Any]:
    import webdataset

    mixed = random.Random(0).sample(files, len(files))
    with tempfile.TemporaryDirectory() as work:
        shards = [f"{work}/{number}.tar" for number in range(8)]
        for number, shard in enumerate(shards):
            with tarfile.open(shard, "w") as tar:
                for place, file in enumerate(mixed[number::8]):
                    tar.add(file, f"{number:02d}{place:05d}.jpg")
        stream = webdataset.WebDataset(shards, shardshuffle=8).shuffle(1000)
        batches = stream.map(lambda sample: with_opencv(sample["jpg"])).batched(batch)
        loader = webdataset.WebLoader(batches, batch_size=None, **WORKERS)
        while True:
            yield from loader


def grain(files: list[Path], batch: int) -> Iterator[Any]:
    import grain

    source = grain.MapDataset.source(files).shuffle(seed=0).repeat()
    batches = source.map(lambda file: with_opencv(file.read_bytes())).batch(batch)
    options = grain.ReadOptions(num_threads=CORES, prefetch_buffer_size=8)
    yield from batches.to_iter_dataset(options)


def dali(files: list[Path], batch: int) -> Iterator[Any]:
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=batch, num_threads=CORES, device_id=None)
    def photos() -> Any:
        names = [*map(str, files)]
        encoded, _ = fn.readers.file(files=names, random_shuffle=True, initial_fill=1000)
        images = fn.decoders.image(encoded, device="cpu", output_type=types.RGB)
        return fn.resize(images, size=(SIZE, SIZE), interp_type=types.INTERP_LINEAR)

    running = photos()
    running.build()
    while True:
        yield running.run()[0]


def dlio(files: list[Path], batch: int) -> Iterator[Any]:
    """Yield batches of DLIO's TensorFlow reader: records in order, each parsed by Python."""
    import tensorflow as tf

    def parse(record: Any) -> Any:
        features = {"image": tf.io.FixedLenFeature([], tf.string)}
        image = tf.io.parse_single_example(record, features)["image"]
        return tf.io.decode_raw(image, tf.uint8)

    records = tf.data.TFRecordDataset([*map(str, files)], buffer_size=TRANSFER_BYTES).repeat()
    images = records.map(
        lambda record: tf.py_function(parse, [record], tf.uint8), num_parallel_calls=READER_THREADS
    )
    yield from images.batch(batch, drop_remainder=True)


LOADERS = {each.__name__: each for each in (torch_pil, torch_opencv, webdataset, grain, dali, dlio)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=LOADERS)
    parser.add_argument("--files", type=Path, required=True, help="a folder of *.jpg or *.tfrecord")
    parser.add_argument("--batch", type=int, default=64, help="examples per batch")
    options = parser.parse_args()
    files = sorted(options.files.rglob("*.jpg")) or sorted(options.files.glob("train-*.tfrecord"))
    serve(LOADERS[options.name](files, options.batch), lambda batch: options.batch)
    os._exit(0)  # libraries' threads and workers would go on


if __name__ == "__main__":
    main()
