"""Loaders of other libraries on the work of our photo benchmark, in their own environment.

    python benchmarks/peer_loaders.py NAME --photos DIR --work DIR [--size 224]

Answers each line on standard input with the images per second of a moment. All decode JPEG, resize
to a square and stack 64 uint8 images, shuffled, on all cores. Imports nothing of ours. peers.py
describes the environment.
"""

# pyright: reportMissingImports=false
# The libraries are in an environment of their own.

from __future__ import annotations

import argparse
import os
import random
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

BATCH, CORES = 64, len(os.sched_getaffinity(0))
TURN_S = 2.0


def with_pil(data: bytes, size: int) -> np.ndarray:
    import io

    from PIL import Image

    return np.asarray(
        Image.open(io.BytesIO(data)).convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
    )


def with_opencv(data: bytes, size: int) -> np.ndarray:
    """Decode and resize as fast as Python libraries can."""
    import cv2
    import simplejpeg

    return cv2.resize(
        simplejpeg.decode_jpeg(data, colorspace="RGB"), (size, size), interpolation=cv2.INTER_LINEAR
    )


def torch_loader(
    files: list[Path], decode: Callable[[bytes, int], np.ndarray], size: int
) -> Iterator[Any]:
    """Yield batches of PyTorch's DataLoader with a map-style dataset."""
    from torch.utils.data import DataLoader, Dataset

    class Photos(Dataset):
        def __len__(self) -> int:
            return len(files)

        def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
            return decode(files[index].read_bytes(), size), 0

    loader = DataLoader(
        Photos(), BATCH, shuffle=True, num_workers=CORES, persistent_workers=True, prefetch_factor=4
    )
    while True:
        yield from loader


def webdataset_loader(files: list[Path], work: Path, size: int) -> Iterator[Any]:
    """Yield batches of WebDataset: tar shards, a shuffle buffer, PyTorch's workers."""
    import webdataset

    shards = sorted(work.glob("photos-*.tar"))
    if not shards:
        mixed = random.Random(0).sample(files, len(files))
        for number in range(8):
            with tarfile.open(work / f"photos-{number}.tar", "w") as tar:
                for place, file in enumerate(mixed[number::8]):
                    tar.add(file, f"{number:02d}{place:05d}.jpg")
        shards = sorted(work.glob("photos-*.tar"))
    stream = webdataset.WebDataset([str(path) for path in shards], shardshuffle=8).shuffle(1000)
    batches = stream.map(lambda sample: with_opencv(sample["jpg"], size)).batched(BATCH)
    loader = webdataset.WebLoader(
        batches, batch_size=None, num_workers=CORES, persistent_workers=True, prefetch_factor=4
    )
    while True:
        yield from loader


def grain_loader(files: list[Path], size: int) -> Iterator[Any]:
    import grain

    source = grain.MapDataset.source([str(file) for file in files]).shuffle(seed=0).repeat()
    batches = source.map(lambda name: with_opencv(Path(name).read_bytes(), size)).batch(BATCH)
    yield from batches.to_iter_dataset(grain.ReadOptions(num_threads=CORES, prefetch_buffer_size=8))


def spdl_loader(files: list[Path], size: int) -> Iterator[Any]:
    """Yield batches of SPDL's pipeline: FFmpeg decodes and resizes each in a thread."""
    from spdl import io
    from spdl.pipeline import PipelineBuilder

    draw = random.Random(0)

    def batches() -> Iterator[list[str]]:
        while True:
            mixed = [str(file) for file in draw.sample(files, len(files))]
            yield from (mixed[at : at + BATCH] for at in range(0, len(mixed) - BATCH + 1, BATCH))

    def load(names: list[str]) -> np.ndarray:
        return np.asarray(io.to_numpy(io.load_image_batch(names, width=size, height=size)))

    load([str(files[0])])  # within the pipeline an error would only drop batches
    builder = PipelineBuilder().add_source(batches()).pipe(load, concurrency=CORES).add_sink(8)
    running = builder.build(num_threads=CORES)
    with running.auto_stop():
        yield from running


def dali_loader(files: list[Path], size: int) -> Iterator[Any]:
    """Yield batches of NVIDIA DALI on the CPU."""
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=BATCH, num_threads=CORES, device_id=None)
    def photos() -> Any:
        encoded, _ = fn.readers.file(
            files=[str(file) for file in files], random_shuffle=True, initial_fill=1000
        )
        return fn.resize(
            fn.decoders.image(encoded, device="cpu", output_type=types.RGB),
            size=(size, size),
            interp_type=types.INTERP_LINEAR,
        )

    running = photos()
    running.build()
    while True:
        yield running.run()[0]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "name", choices=["torch_pil", "torch_opencv", "webdataset", "grain", "spdl", "dali"]
    )
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--size", type=int, default=224)
    options = parser.parse_args()
    size = options.size
    files = sorted(options.photos.rglob("*.jpg"))
    loaders: dict[str, Callable[[], Iterator[Any]]] = {
        "torch_pil": lambda: torch_loader(files, with_pil, size),
        "torch_opencv": lambda: torch_loader(files, with_opencv, size),
        "webdataset": lambda: webdataset_loader(files, options.work, size),
        "grain": lambda: grain_loader(files, size),
        "spdl": lambda: spdl_loader(files, size),
        "dali": lambda: dali_loader(files, size),
    }
    batches = loaders[options.name]()
    for _ in range(8):
        next(batches)
    for _ in sys.stdin:
        count, began = 0, time.perf_counter()
        while time.perf_counter() - began < TURN_S:
            next(batches)
            count += BATCH
        print(count / (time.perf_counter() - began), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
