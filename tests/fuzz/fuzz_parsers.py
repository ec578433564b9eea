"""Mutated input for every parser, for a bounded time: nothing but user errors may escape.

    make fuzz [SECONDS=60] [SEED=N] python -m tests.fuzz.fuzz_parsers --seconds 60 --target params

It prints its seed, with which a run is repeated. A case that fails is kept in .throughline/fuzz/.
"""

import functools
import io
import random
import secrets
import tempfile
import time
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer
from PIL import Image
from typer import Option

import throughline  # noqa: F401 - sets the environment before TensorFlow is imported
from tests.support.prepared import snapshot
from tests.support.prepared_files import encode_example
from tests.support.project import ROOT
from tests.support.small_data import data_settings, prepared
from throughline.config.params import load_params
from throughline.data.columns.index import read_index
from throughline.data.encodings.base import RejectedValue, StoredFile
from throughline.data.encodings.image_files import ImageInspector
from throughline.data.ingest import ingest
from throughline.data.manifest import read_manifest
from throughline.data.shards.index import read_shard_index
from throughline.data.shards.tfrecord import frame, read_records
from throughline.diagnosis.threshold import parse_threshold
from throughline.kernels.elements import TENSORFLOW_ERRORS, process_record, read_message
from throughline.plan.ops import Decode, Parse
from throughline.shared.errors import UserError

HOME = tempfile.TemporaryDirectory(prefix="fuzz-")  # removed when the process exits
INSPECT = ImageInspector(100_000)  # its decoder starts with its first question
KEPT = ROOT / ".throughline" / "fuzz"
FIGURES = {
    "stall_pct": 12.5,
    "verdict": "input-bound",
    "gpu_pct": None,
    "fits": True,
    "odd": np.nan,
}
Target = Callable[[bytes, Path], object]  # what takes input, and a folder to work in
Examples = Callable[[], Iterable[bytes]]  # valid input
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
        (folder / name).write_bytes(data)
        ingest(data_settings(folder / name, source, max_reject_fraction=1.0), folder / "manifest")
        read_manifest(folder / "manifest")

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
    except TENSORFLOW_ERRORS as error:
        read_message(error).encode()


def read_params(data: bytes, folder: Path) -> None:
    """Check a params.yaml."""
    (folder / "params.yaml").write_bytes(data)
    load_params(folder / "params.yaml")


def check_condition(data: bytes, folder: Path) -> None:
    """Check what a threshold says of figures."""
    parse_threshold(data.decode("utf-8", "surrogateescape"), list(FIGURES)).check(FIGURES)


@functools.cache
def prepared_data() -> Path:
    """A folder with a manifest, shards and a snapshot, made once."""
    folder = Path(HOME.name)
    images = np.random.default_rng(0).integers(0, 256, (60, 3, 3), np.uint8)
    np.savez(folder / "x.npz", x=images, y=np.arange(60) % 3)
    prepared(data_settings(folder / "x.npz", "arrays"), folder)
    index = read_shard_index(folder / "shards")
    snapshot(index, folder / "shards", folder / "snapshot", preprocess=(Decode(),))
    return folder


def read_as(name: str, read: Callable[[Path], object]) -> tuple[Target, Examples]:
    """Read what a stage has written, with this in place of its summary or index; the valid one."""

    def target(data: bytes, folder: Path) -> None:
        (prepared_data() / name).write_bytes(data)
        read((prepared_data() / name).parent)

    return target, lambda: [(prepared_data() / name).read_bytes()]


RECORD = encode_example(key=7, label=1, value=b"image")
ROWS = "".join(f"{number}.5,{'ab'[number % 2]},{'xy'[number % 2]}\n" for number in range(40))
TABLE = f"size,kind,label\n{ROWS}".encode()
SERIES = "time,size\n" + "".join(f"{number},{number}.5\n" for number in range(60))
LISTED = b"path,label,split\nx.png,a,train\n../y.png,b,\n"
CONDITIONS = (b"stall_pct > 10", b"verdict == 'input-bound'", b"gpu_pct < 1", b"fits == True")
PARAMS = (ROOT / "params.yaml", *ROOT.glob("infra/*/*.yaml"))
TARGETS: dict[str, tuple[Target, Examples]] = {
    "image": (parse_image, encode_images),
    "csv": (ingest_as("x.csv", "table"), lambda: [TABLE, b"size,kind,split,label\n1,a,test,x\n"]),
    "parquet": (
        ingest_as("x.parquet", "table"),
        lambda: [pd.read_csv(io.BytesIO(TABLE)).to_parquet()],
    ),
    "image_table": (ingest_as("x.csv", "image_table"), lambda: [LISTED]),
    "series": (ingest_as("x.csv", "time_series"), lambda: [SERIES.encode()]),
    "frames": (read_frames, lambda: [b"".join(map(b"".join, map(frame, (b"one", b"", RECORD))))]),
    "record": (parse_record, lambda: [RECORD]),
    "params": (read_params, lambda: map(Path.read_bytes, PARAMS)),
    "condition": (check_condition, lambda: CONDITIONS),
    "manifest": read_as("manifest/manifest.json", read_manifest),
    "shards": read_as("shards/index.json", read_shard_index),
    "snapshot": read_as("snapshot/index.json", read_index),
}

WORDS = (
    b"", b"\0", b"\xff", b"-1", b"0", b"1e999", b"nan", b"inf", b"null", b"true", b"[]", b"{}",
    b'""', b"\n", b",", b":", b'"', b"'", b"&a", b"*a", b"9" * 40, b"2024-13-45",
    b"!!python/object:os.system", b"<<: *a", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"../", b"label",
    b"split", b"test",
)  # fmt: skip
CHUNKS = (b"tRNS", b"gAMA", b"PLTE", b"iCCP", b"eXIf", b"acTL", b"pHYs", b"hIST", b"ABCD", b"abcd")


def mutate(data: bytes, draw: random.Random) -> bytes:
    """Some bits, pieces and words of the data changed, doubled or gone."""
    if data.startswith(b"\x89PNG") and draw.random() < 0.5:
        return _change_chunk(data, draw)
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 4, 16))):
        start, other = (draw.randrange(len(changed) + 1) for _ in range(2))
        piece = changed[start : start + draw.choice((0, 1, 2, 4, 8, 30, len(changed)))]
        changed[start : start + len(piece)] = draw.choice(
            (
                b"",
                bytes(byte ^ 1 << draw.randrange(8) for byte in piece),
                draw.randbytes(len(piece)),
                draw.choice(WORDS),
                piece + changed[other : other + draw.choice((1, 8, 60))],
            )
        )
    return bytes(changed)


def _change_chunk(data: bytes, draw: random.Random) -> bytes:
    """A chunk of a PNG file changed, renamed, moved, doubled or gone, all with right checksums."""
    chunks, offset = [], 8
    while offset < len(data):
        length = int.from_bytes(data[offset : offset + 4], "big")
        chunks.append(data[offset + 4 : offset + 8 + length])  # kind and content
        offset += 12 + length
    chunk = chunks.pop(draw.randrange(len(chunks)))
    place, flipped = draw.randrange(len(chunks) + 1), bytearray(chunk)
    flipped[draw.randrange(len(chunk))] ^= 1 << draw.randrange(8)
    kind = draw.choice(CHUNKS)
    chunks[place:place] = draw.choice(
        ([], [kind + chunk[4:]], [chunk], [flipped], [chunk, chunk], [chunk, kind + b"123456789"])
    )
    sums = (zlib.crc32(one).to_bytes(4, "big") for one in chunks)
    sizes = ((len(one) - 4).to_bytes(4, "big") for one in chunks)
    return data[:8] + b"".join(map(b"".join, zip(sizes, chunks, sums, strict=True)))


def fuzz(name: str, *, seconds: float, seed: int) -> tuple[int, str]:
    """Run one target; returns how many cases there were, and what is wrong, which ends it."""
    target, examples = TARGETS[name]
    draw, valid, count = random.Random(f"{seed}:{name}"), [*examples()], 0
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
                return count, f"{name}, case {count} of seed {seed}, kept in {KEPT}: {problem}"
    return count, ""


def main(
    seconds: Annotated[float, Option(help="for all targets together")] = 60.0,
    seed: Annotated[int | None, Option(help="that of an earlier run repeats it")] = None,
    target: Annotated[list[str] | None, Option(help="this one alone; may be repeated")] = None,
) -> None:
    """Run all targets, each for its share of the time."""
    warnings.simplefilter("ignore")
    names = target or list(TARGETS)
    seed = secrets.randbelow(2**32) if seed is None else seed
    print(f"seed {seed}", flush=True)
    problems = []
    with INSPECT:
        for name in names:
            count, problem = fuzz(name, seconds=seconds / len(names), seed=seed)
            print(f"{name}: {count:,} cases, {'FAILED' if problem else 'nothing found'}")
            problems += [problem] if problem else []
    print("\n".join(problems))
    raise SystemExit(bool(problems))


if __name__ == "__main__":
    typer.run(main)
