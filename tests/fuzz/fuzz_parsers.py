"""Mutated input for every parser, for a bounded time: nothing but the user errors that each of them
promises may escape.

    make fuzz [SECONDS=60] [SEED=N] python -m tests.fuzz.fuzz_parsers --seconds 60 --target params
    # prints the seed, with which a run is repeated

A target takes bytes; `SEEDS` has valid input for each. A case that fails is kept below
.throughline/fuzz/.
"""

import argparse
import functools
import io
import random
import secrets
import sys
import tempfile
import time
import traceback
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

import throughline  # noqa: F401 - sets the environment before TensorFlow is imported
from tests.support.prepared import snapshot
from tests.support.prepared_files import encode_example
from tests.support.project import ROOT
from tests.support.small_data import prepared
from throughline.config.params import load_params
from throughline.data.columns.index import read_index
from throughline.data.encodings.base import RejectedValue, StoredFile
from throughline.data.encodings.image_files import ImageInspector
from throughline.data.ingest import ingest
from throughline.data.manifest import read_manifest
from throughline.data.shards.index import read_shard_index
from throughline.data.shards.tfrecord import frame, read_records
from throughline.diagnosis.threshold import parse_threshold
from throughline.kernels.elements import process_record
from throughline.plan.ops import Decode, Parse
from throughline.settings import DataSettings
from throughline.shared.errors import UserError

HOME = tempfile.TemporaryDirectory(prefix="fuzz-")  # removed when the process exits
INSPECT = ImageInspector(100_000)  # its decoder starts with its first question
KEPT = ROOT / ".throughline" / "fuzz"
Target = Callable[[bytes, Path], object]


def parse_image(data: bytes, folder: Path) -> bool:
    """Look at an image file; returns whether ingest accepts it.

    What ingest accepts, TensorFlow must decode to the size that ingest gives.
    """
    import tensorflow as tf

    (folder / "x.png").write_bytes(data)
    (folder / "converted").mkdir(exist_ok=True)
    try:
        found = INSPECT(StoredFile(path=folder / "x.png", root=folder), folder / "converted")
    except RejectedValue as reason:
        str(reason).encode()
        return False
    image = tf.io.decode_image(found.path.read_bytes(), channels=3, expand_animations=False)
    if tuple(image.shape[:2]) != found.shape[:2]:
        raise ValueError(f"TensorFlow decodes {image.shape[:2]}, and not {found.shape[:2]}")
    return True


def ingest_as(name: str, source: str) -> Target:
    """Learn from a file of this name."""

    def target(data: bytes, folder: Path) -> None:
        path, out = folder / name, folder / "manifest"
        path.write_bytes(data)
        ingest(DataSettings(source=source, path=str(path), max_reject_fraction=1.0), out)  # type: ignore[arg-type]
        read_manifest(out)

    return target


def read_frames(data: bytes, folder: Path) -> None:
    """Read the frames of a TFRecord file, strictly and leaving out what is damaged."""
    path = folder / "x.tfrecord"
    path.write_bytes(data)
    for compression in ("none", "gzip"):
        list(read_records(path, compression=compression, damaged=[]))
    list(read_records(path, compression="none"))


def parse_record(data: bytes, folder: Path) -> None:
    """Parse one record as pipelines do."""
    import tensorflow as tf

    ops = (Parse(dtypes=(("image", "string"), ("label", "int64"))),)
    try:
        process_record(ops, tf.constant(data))
    except tf.errors.OpError as error:
        str(error)


def read_params(data: bytes, folder: Path) -> None:
    """Check a params.yaml."""
    (folder / "params.yaml").write_bytes(data)
    load_params(folder / "params.yaml")


@functools.cache
def prepared_data() -> Path:
    """A folder with a manifest, shards and a snapshot, made once."""
    folder = Path(HOME.name)
    images = np.random.default_rng(0).integers(0, 256, (60, 3, 3), np.uint8)
    np.savez(folder / "x.npz", x=images, y=np.arange(60) % 3)
    prepared(DataSettings(source="arrays", path=str(folder / "x.npz")), folder)
    index = read_shard_index(folder / "shards")
    snapshot(index, folder / "shards", folder / "snapshot", preprocess=(Decode(),))
    return folder


def read_as(name: str, read: Callable[[Path], object]) -> tuple[Target, Callable[[], list[bytes]]]:
    """Read what a stage has written, with this in place of its summary or index; the valid one."""

    def target(data: bytes, folder: Path) -> None:
        path = prepared_data() / name
        path.write_bytes(data)
        read(path.parent)

    return target, lambda: [(prepared_data() / name).read_bytes()]


ENCODINGS = [
    *(("PNG", mode, {}) for mode in ("RGB", "RGBA", "P", "I;16", "1")),
    *(("PNG", "RGB", {"dpi": (72, 72)}), ("PNG", "L", {"compress_level": 0})),
    *(("JPEG", mode, {}) for mode in ("RGB", "L", "CMYK")),
    *(("JPEG", "RGB", {"progressive": True}), ("JPEG", "RGB", {"restart_marker_blocks": 2})),
    ("JPEG", "RGB", {"subsampling": 0, "optimize": True}),
    *(("GIF", "P", {}), ("BMP", "RGB", {}), ("WEBP", "RGB", {"lossless": True})),
]


def encode_images() -> list[bytes]:
    """A valid image of every format, with encoders' options that decoders read differently."""
    pixels = np.random.default_rng(1).integers(0, 256, (9, 7, 3), np.uint8)
    picture, images = Image.fromarray(pixels), []
    for kind, mode, options in ENCODINGS:
        file = io.BytesIO()
        shown = picture.convert("L").convert("I") if mode == "I;16" else picture
        shown.convert(mode).save(file, kind, **options)
        images.append(file.getvalue())
    return images


_RECORD = encode_example(key=7, label=1, value=b"image")
_ROWS = "".join(f"{number}.5,{'ab'[number % 2]},{'xy'[number % 2]}\n" for number in range(40))
_TABLE = f"size,kind,label\n{_ROWS}".encode()
_SERIES = "".join(f"{number},{number}.5\n" for number in range(60))
_FIGURES = {"stall_pct": 12.5, "verdict": "input-bound", "steps": 3, "gpu_pct": None, "fits": True}
_FIGURES["odd"] = float("nan")


def check_condition(data: bytes, folder: Path) -> None:
    """Check what a threshold says of figures."""
    condition = data.decode("utf-8", "surrogateescape")
    parse_threshold(condition, list(_FIGURES)).check(_FIGURES)


TARGETS: dict[str, tuple[Target, Callable[[], list[bytes]]]] = {
    "image": (parse_image, encode_images),
    "csv": (
        ingest_as("x.csv", "table"),
        lambda: [_TABLE, b"size,kind,split,label\n1,a,test,x\n"],
    ),
    "parquet": (
        ingest_as("x.parquet", "table"),
        lambda: [pd.read_csv(io.BytesIO(_TABLE)).to_parquet()],
    ),
    "image_table": (
        ingest_as("x.csv", "image_table"),
        lambda: [b"path,label,split\nx.png,a,train\n../y.png,b,\n"],
    ),
    "series": (ingest_as("x.csv", "time_series"), lambda: [f"time,size\n{_SERIES}".encode()]),
    "frames": (
        read_frames,
        lambda: [b"".join(b"".join(frame(data)) for data in (b"one", b"", _RECORD))],
    ),
    "record": (parse_record, lambda: [_RECORD]),
    "params": (
        read_params,
        lambda: [
            path.read_bytes() for path in (ROOT / "params.yaml", *ROOT.glob("infra/*/*.yaml"))
        ],
    ),
    "manifest": read_as("manifest/manifest.json", read_manifest),
    "shards": read_as("shards/index.json", read_shard_index),
    "snapshot": read_as("snapshot/index.json", read_index),
    "condition": (
        check_condition,
        lambda: [b"stall_pct > 10", b"verdict == 'input-bound'", b"gpu_pct < 1", b"fits == True"],
    ),
}
_WORDS = (
    b"", b"\0", b"\xff", b"-1", b"0", b"1e999", b"nan", b"inf", b"null", b"true", b"[]", b"{}",
    b'""', b"\n", b",", b":", b'"', b"'", b"&a", b"*a", b"9" * 40, b"2024-13-45",
    b"!!python/object:os.system", b"<<: *a", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"../", b"label",
    b"split", b"test",
)  # fmt: skip


_CHUNKS = (b"tRNS", b"gAMA", b"PLTE", b"iCCP", b"eXIf", b"acTL", b"pHYs", b"hIST", b"ABCD", b"abcd")


def change_chunk(data: bytes, draw: random.Random) -> bytes:
    """A chunk of a PNG file changed, renamed, moved, doubled or gone, all with right checksums."""
    chunks, offset = [], 8
    while offset < len(data):
        length = int.from_bytes(data[offset : offset + 4], "big")
        chunks.append(data[offset + 4 : offset + 8 + length])  # kind and content
        offset += 12 + length
    place = draw.randrange(len(chunks))
    chunk, what = chunks.pop(place), draw.randrange(5)
    if what == 0:
        chunks.insert(place, draw.choice(_CHUNKS) + chunk[4:])
    elif what == 1:
        chunks.insert(draw.randrange(len(chunks) + 1), chunk)
    elif what == 2:
        chunks[place:place] = [
            chunk,
            draw.choice([draw.choice(_CHUNKS) + draw.randbytes(9), chunk]),
        ]
    elif what == 3 and chunk[4:]:
        changed = bytearray(chunk)
        changed[draw.randrange(4, len(changed))] ^= 1 << draw.randrange(8)
        chunks.insert(place, bytes(changed))
    return data[:8] + b"".join(
        (len(one) - 4).to_bytes(4, "big") + one + zlib.crc32(one).to_bytes(4, "big")
        for one in chunks
    )


def mutate(data: bytes, draw: random.Random) -> bytes:
    """Some bits, bytes, pieces, words and lines of the data changed, doubled or gone."""
    if data.startswith(b"\x89PNG") and draw.random() < 0.5:
        return change_chunk(data, draw)
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 4, 16))):
        start = draw.randrange(len(changed) + 1)
        end = min(len(changed), start + draw.choice((0, 1, 2, 4, 8, 30)))
        what = draw.randrange(6)
        if what == 0 and start < len(changed):
            changed[start] ^= 1 << draw.randrange(8)
        elif what == 1:
            changed[start:end] = draw.choice(_WORDS)
        elif what == 2:
            del changed[start:end]
        elif what == 3:
            other = draw.randrange(len(changed) + 1)
            changed[start:start] = changed[other : other + draw.choice((1, 8, 60))]
        elif what == 4:
            changed[start:end] = draw.randbytes(end - start)
        elif draw.random() < 0.2:
            lines = changed.split(b"\n")
            draw.shuffle(lines)
            changed = bytearray(b"\n").join(lines)
        else:
            del changed[draw.randrange(len(changed) + 1) :]
    return bytes(changed)


def fuzz(name: str, *, seconds: float, seed: int) -> tuple[int, list[str]]:
    """Run one target; returns how many cases there were, and what is wrong, which ends it."""
    target, examples = TARGETS[name]
    draw, valid, count = random.Random(f"{seed}:{name}"), examples(), 0
    ends = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < ends:
            data = draw.choice(valid) if count < len(valid) else mutate(draw.choice(valid), draw)
            count += 1
            problem = ""
            try:
                target(data, Path(folder))
            except UserError as error:
                problem = "" if str(error).strip() else "an error without words"
            except Exception:  # noqa: BLE001 - that is what is looked for
                problem = traceback.format_exc(limit=-4)
            if problem:
                KEPT.mkdir(parents=True, exist_ok=True)
                (KEPT / f"{name}-{seed}-{count}").write_bytes(data)
                return count, [f"{name}, case {count} of seed {seed}, kept in {KEPT}: {problem}"]
    return count, []


def main() -> None:
    """Run all targets, each for its share of the time."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="for all targets together")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32))
    parser.add_argument(
        "--target", choices=list(TARGETS), action="append", help="this one alone; may be repeated"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    names = options.target or list(TARGETS)
    print(f"seed {options.seed}", flush=True)
    failed = []
    with INSPECT:
        for name in names:
            count, problems = fuzz(name, seconds=options.seconds / len(names), seed=options.seed)
            print(f"{name}: {count:,} cases, {'FAILED' if problems else 'nothing found'}")
            failed += problems
    print("\n".join(failed))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
