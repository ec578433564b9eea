"""Do ingest and TensorFlow agree about which image files can be used? On randomly mutated files.

    python -m benchmarks.decoding --files 3000   # exit code 1 where they disagree; --seed repeats

Each file is examined as ingest does. A file that is accepted must decode in TensorFlow, to the size
that ingest gives. Files that are refused although TensorFlow decodes them are counted: Pillow is
stricter, and decides.
"""

from __future__ import annotations

import argparse
import io
import random
import secrets
import struct
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from throughline.data.encodings.base import FileInfo, RejectedValue, StoredFile
from throughline.data.encodings.image_files import ImageInspector

MAX_PIXELS = 1_000_000
Mutation = Callable[[bytearray, random.Random], bytes]


def seeds(draw: random.Random) -> Iterator[tuple[str, bytes]]:
    """Yield valid files of every format with random sizes, modes and encoder options."""
    while True:
        size = draw.randint(1, 60), draw.randint(1, 60)
        pixels = np.random.default_rng(draw.getrandbits(32)).integers(0, 256, (4, 5, 3), np.uint8)
        picture = Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC)
        kind, mode, options = draw.choice(
            [
                ("PNG", "RGB", {}),
                ("PNG", "RGB", {"optimize": True}),
                ("PNG", "L", {"compress_level": 0}),
                ("PNG", "RGBA", {}),
                ("PNG", "P", {}),
                ("PNG", "RGB", {"dpi": (72, 72)}),
                ("PNG", "I;16", {}),
                ("PNG", "1", {}),
                ("JPEG", "RGB", {}),
                ("JPEG", "RGB", {"progressive": True}),
                ("JPEG", "L", {"quality": 95}),
                ("JPEG", "CMYK", {}),
                ("JPEG", "RGB", {"subsampling": 0, "optimize": True}),
                ("JPEG", "RGB", {"restart_marker_blocks": 2}),
                ("JPEG", "RGB", {"comment": b"x"}),
                ("GIF", "P", {}),
                ("BMP", "RGB", {}),
                ("WEBP", "RGB", {}),
                ("WEBP", "RGB", {"lossless": True}),
            ]
        )
        file = io.BytesIO()
        (
            picture.convert("L").convert("I").convert("I;16")
            if mode == "I;16"
            else picture.convert(mode)
        ).save(file, kind, **options)
        yield kind.lower(), file.getvalue()


def flip(data: bytearray, draw: random.Random) -> bytes:
    for _ in range(draw.choice((1, 1, 2, 5, 20))):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(data)


def overwrite(data: bytearray, draw: random.Random) -> bytes:
    """Overwrite a few bytes, often with significant values."""
    for _ in range(draw.choice((1, 2, 8))):
        data[draw.randrange(len(data))] = draw.choice(
            (0, 1, 0x7F, 0x80, 0xD9, 0xDA, 0xFE, 0xFF, draw.randrange(256))
        )
    return bytes(data)


def cut(data: bytearray, draw: random.Random) -> bytes:
    return bytes(data[: -draw.choice((1, 2, 4, 8, 12, 16, draw.randint(1, len(data) - 1)))])


def append(data: bytearray, draw: random.Random) -> bytes:
    return bytes(data) + draw.choice(
        (b"\0", b"\n", bytes(data), draw.randbytes(40), b"\xff\xd9", bytes(data[-12:]))
    )


def drop(data: bytearray, draw: random.Random) -> bytes:
    start = draw.randrange(len(data))
    del data[start : start + draw.choice((1, 4, 12, 50))]
    return bytes(data)


def double(data: bytearray, draw: random.Random) -> bytes:
    start, length = draw.randrange(len(data)), draw.choice((1, 4, 12, 50))
    return bytes(data[: start + length] + data[start:])


def rewrite_chunk(data: bytearray, draw: random.Random) -> bytes:
    """Change, move, double or rename a PNG chunk, and fix its checksum; flip bits elsewhere."""
    if not data.startswith(b"\x89PNG"):
        return flip(data, draw)
    chunks, offset = [], 8
    while offset + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, offset)
        chunks.append(
            (
                bytes(data[offset + 4 : offset + 8]),
                bytearray(data[offset + 8 : offset + 8 + length]),
            )
        )
        offset += 12 + length
    place = draw.randrange(len(chunks))
    kind, content = chunks[place]
    what = draw.randrange(6)
    if what == 0:
        chunks[place] = (
            draw.choice(
                (
                    b"tRNS",
                    b"gAMA",
                    b"PLTE",
                    b"sBIT",
                    b"iCCP",
                    b"hIST",
                    b"bKGD",
                    b"ABCD",
                    b"abcd",
                    b"cHRM",
                )
            ),
            content,
        )
    elif what == 1:
        chunks.insert(draw.randrange(len(chunks) + 1), (kind, content))
    elif what == 2:
        chunks.insert(
            draw.randrange(1, len(chunks) + 1),
            (
                draw.choice((b"gAMA", b"tRNS", b"iCCP", b"eXIf", b"acTL", b"pHYs")),
                draw.randbytes(9),
            ),
        )
    elif what == 3:
        del chunks[place]
    elif content:
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    parts = (
        struct.pack(">I", len(body))
        + name
        + body
        + struct.pack(">I", zlib.crc32(name + bytes(body)))
        for name, body in chunks
    )
    return bytes(data[:8]) + b"".join(parts)


def rename(data: bytearray, draw: random.Random) -> bytes:
    """Change nothing: only the suffix will be wrong."""
    return bytes(data)


MUTATIONS: tuple[Mutation, ...] = (
    flip,
    flip,
    overwrite,
    cut,
    append,
    drop,
    double,
    rewrite_chunk,
    rewrite_chunk,
    rename,
)


def mutated(count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Yield mutated files, each with a name that tells the mutation."""
    draw = random.Random(seed)
    files = seeds(draw)
    for number in range(count):
        kind, data = next(files)
        change = draw.choice(MUTATIONS)
        suffix = draw.choice(("png", "jpg", "gif")) if change is rename else kind
        yield f"{number:05d}-{change.__name__}.{suffix}", change(bytearray(data), draw)


def compare(count: int, seed: int, folder: Path) -> tuple[Counter[str], Mapping[str, str]]:
    """Count how often ingest and TensorFlow agree; list TensorFlow's errors on accepted files."""
    import tensorflow as tf

    seen, disagreements = Counter(), {}
    converted = folder / "converted"
    converted.mkdir()
    with ImageInspector(MAX_PIXELS) as inspect:
        for name, data in mutated(count, seed):
            path = folder / name
            path.write_bytes(data)
            try:
                examined: FileInfo | None = inspect(StoredFile(path=path, root=folder), converted)
            except RejectedValue:
                examined = None
            try:
                image = tf.io.decode_image(
                    (examined.path if examined else path).read_bytes(),
                    channels=3,
                    expand_animations=False,
                )
                size, problem = tuple(image.shape[:2]), ""
            except tf.errors.OpError as error:
                size, problem = None, error.message
            if examined and size != examined.shape[:2]:
                disagreements[name] = problem or f"{size}, and not {examined.shape[:2]}"
            verdict = (
                "accepted" if examined else "refused by ingest alone" if size else "refused by both"
            )
            seen[
                f"{verdict}, converted"
                if examined and examined.path.parent == converted
                else verdict
            ] += 1
            path.unlink()
    return seen, disagreements


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=3000, help="mutated files to compare")
    parser.add_argument(
        "--seed", type=int, default=secrets.randbelow(2**32), help="repeat the run of this seed"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        print(f"seed {options.seed}", flush=True)
        seen, disagreements = compare(options.files, options.seed, Path(name))
    print(", ".join(f"{count} {what}" for what, count in sorted(seen.items())))
    for file, problem in disagreements.items():
        print(f"{file}: accepted, but TensorFlow: {problem}")
    print(f"{len(disagreements)} disagreements")
    sys.exit(bool(disagreements))


if __name__ == "__main__":
    main()
