"""One odd file among good ones: it is rejected with its reason in bounded memory, and the others
are used.
"""

from __future__ import annotations

import io
import os
import shutil
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.support.project import run_python
from tests.support.small_data import data_settings, flip_bit, picture, read_reasons
from throughline.data.ingest import ingest
from throughline.data.manifest import read_manifest
from throughline.data.shards.writing import shard
from throughline.settings import ShardSettings
from throughline.shared.errors import DataNotFound, UnreadableSource

pytestmark = pytest.mark.integration

GOOD = 40


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(path: Path, *, width: int, height: int, depth: int, kind: int) -> None:
    """A PNG of zeros, a few kilobytes whatever its size."""
    rows = zlib.compress(bytes((width * depth // 8 + 1) * height), 9)
    header = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    )


def sparse(path: Path, size: int, begins: bytes = b"") -> None:
    path.write_bytes(begins)
    os.truncate(path, size)


def encode_png() -> bytes:
    file = io.BytesIO()
    picture(900).save(file, "PNG")
    return file.getvalue()


def put(path: Path, data: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)


def linked_folder_outside(root: Path) -> None:
    put(root.parent / "outside" / "x.png", encode_png())
    (root / "linked").symlink_to(root.parent / "outside")


def huge_text(root: Path) -> None:
    data = encode_png()
    text = chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(70 << 20)))
    (root / "a" / "x.png").write_bytes(data[:-12] + text + data[-12:])


# What is put among good images, and how it is rejected; None where it is nothing to reject.
CASES: dict[str, tuple[Callable[[Path], None], str | None, str]] = {
    "pipe": (lambda root: os.mkfifo(root / "a" / "x.jpg"), "a/x.jpg", "is no regular file"),
    "link to a device": (
        lambda root: (root / "a" / "x.jpg").symlink_to("/dev/zero"),
        *("a/x.jpg", "leads outside the data root"),
    ),
    "link to nothing": (
        lambda root: (root / "a" / "x.jpg").symlink_to(root / "a" / "nothing.jpg"),
        *("a/x.jpg", "cannot be read: No such file"),
    ),
    "sparse zeros": (
        lambda root: sparse(root / "a" / "x.jpg", 200 << 30),
        "a/x.jpg",
        "larger than an image of 50,000,000 pixels can be: 214,748,364,800 bytes",
    ),
    "sparse after an image": (
        lambda root: sparse(root / "a" / "x.png", 50 << 20, encode_png()),
        *("a/x.png", "larger than an image of 1,200 pixels can be: 52,428,800 bytes"),
    ),
    "bytes in the name": (
        lambda root: put(root / "a" / os.fsdecode(b"x\xff.png"), encode_png()),
        *("a/x\\xff.png", "the name is no UTF-8"),
    ),
    "line break in the class": (
        lambda root: put(root / "one\ntwo" / "x.png", encode_png()),
        *("one two/x.png", r"the class name 'one\ntwo' has a line break"),
    ),
    "linked folder outside": (
        linked_folder_outside,
        *("linked", "folder is a link that leads outside the data root"),
    ),
    "linked folder inside": (
        lambda root: (root / "linked").symlink_to(root / "a"),
        *("linked", "folder is a link to a, which is listed itself"),
    ),
    "huge": (
        lambda root: png(root / "a" / "x.png", width=10_000, height=10_000, depth=8, kind=0),
        *("a/x.png", "more pixels than data.max_pixels: 10000×10000"),
    ),
    "folder named like an image": (lambda root: (root / "a" / "x.png").mkdir(), None, ""),
    "huge text": (huge_text, "a/x.png", "damaged image: "),
}


@pytest.fixture
def root(tmp_path):
    """Two classes of good images."""
    for number in range(GOOD):
        path = tmp_path / "in" / "ab"[number % 2] / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(number).save(path)
    return tmp_path / "in"


@pytest.mark.parametrize("case", CASES)
def test_one_odd_file_is_rejected_with_its_reason_and_the_others_are_used(root, tmp_path, case):
    happens, identity, reason = CASES[case]
    happens(root)
    manifest = ingest(data_settings(root), tmp_path / "manifest")
    assert len(manifest.examples) == GOOD and manifest.classes == ("a", "b")
    assert list(read_reasons(manifest)) == ([identity] if identity else [])
    assert identity is None or read_reasons(manifest)[identity].startswith(reason)


# Ingests a folder of good images, then others, and prints after each how much more memory than
# the first it has taken at most.
MEASURE = """
import resource, sys
from pathlib import Path
from tests.support.small_data import data_settings
from throughline.data.ingest import ingest

out, good, *roots = map(Path, sys.argv[1:])

def peak(root):
    ingest(data_settings(root), out / root.name)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

usual = peak(good)
for root in roots:
    print("more:", peak(root) - usual)
"""
MOST_BYTES = {"sparse zeros": 50e6, "huge": 50e6, "sixteen bits": 200e6, "huge text": 300e6}


def test_odd_files_take_bounded_memory(root, tmp_path):
    roots = [shutil.copytree(root, tmp_path / "roots" / case) for case in MOST_BYTES]
    for case, odd in zip(MOST_BYTES, roots, strict=True):
        if case == "sixteen bits":
            png(odd / "a" / "x.png", width=5000, height=4000, depth=16, kind=0)
        else:
            CASES[case][0](odd)
    said = run_python(MEASURE, *map(str, [tmp_path, root, *roots])).stdout
    found = [float(line.split()[1]) for line in said.splitlines() if line.startswith("more:")]
    for (case, most), taken in zip(MOST_BYTES.items(), found, strict=True):
        assert taken < most, case


def test_a_linked_class_folder_whose_target_is_not_listed_otherwise_is_a_class(root, tmp_path):
    put(root / ".store" / "x.png", encode_png())
    (root / "c").symlink_to(root / ".store")
    manifest = ingest(data_settings(root), tmp_path / "manifest")
    assert manifest.classes == ("a", "b", "c") and not read_reasons(manifest)
    assert "c/x.png" in set(manifest.examples["id"])


@pytest.mark.parametrize("path", ["fifo", "gone", "a"])
def test_what_a_table_lists_may_be_as_odd(root, tmp_path, path):
    os.mkfifo(root / "fifo")
    rows = [{"path": f"{'ab'[n % 2]}/{n:02d}.png", "label": "ab"[n % 2]} for n in range(GOOD)]
    pd.DataFrame([*rows, {"path": path, "label": "a"}]).to_csv(root / "table.csv", index=False)
    manifest = ingest(data_settings(root / "table.csv", "image_table"), tmp_path / "manifest")
    assert list(read_reasons(manifest)) == [path] and len(manifest.examples) == GOOD


@pytest.mark.parametrize(
    "labels", [np.array(["a", "b\nc", "d", ""]), np.array([b"a", b"\xff", b"a", b"b"])]
)
def test_classes_of_arrays_are_names_on_one_line(tmp_path, labels):
    values = np.random.default_rng(0).integers(0, 256, (40, 3, 3), np.uint8)
    np.savez(tmp_path / "x.npz", x=values, y=np.tile(labels, 10))
    manifest = ingest(data_settings(tmp_path / "x.npz", "arrays"), tmp_path / "manifest")
    assert all(len(name.splitlines()) == 1 and name.encode() for name in manifest.classes)


def test_a_single_array_is_told_from_an_archive(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((4, 3, 3), np.uint8))
    with pytest.raises(UnreadableSource, match=r"x\.npy holds a single array"):
        ingest(data_settings(tmp_path / "x.npy", "arrays"), tmp_path / "manifest")


def test_other_contents_of_the_same_size_are_noticed_before_they_are_stored(root, tmp_path):
    ingest(data_settings(root), tmp_path / "manifest")
    manifest = replace(read_manifest(tmp_path / "manifest"), folder=tmp_path / "manifest")
    flip_bit(root / "a" / "00.png", -20)
    with pytest.raises(DataNotFound, match=r"a/00\.png \(example a/00\.png\) has other contents"):
        shard(manifest, tmp_path / "shards", settings=ShardSettings(writers=2))
    assert not (tmp_path / "shards").exists()
