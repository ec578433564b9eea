"""Odd files among good ones are rejected with their reasons, in bounded memory."""

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
from tests.support.small_data import data_settings, flip_bit, picture, read_reasons, save_photos
from throughline.data.ingest import ingest
from throughline.data.manifest import read_manifest
from throughline.data.shards.writing import shard
from throughline.settings import ShardSettings
from throughline.shared.errors import DataNotFound, UnreadableSource

pytestmark = pytest.mark.integration

GOOD = 24


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(path: Path, *, width: int, height: int, depth: int, kind: int) -> None:
    """A PNG of zeros, a few kilobytes whatever its size."""
    rows = zlib.compress(bytes((width * depth // 8 + 1) * height), 9)
    header = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunks)


def sparse(path: Path, size: int, begins: bytes = b"") -> None:
    path.write_bytes(begins)
    os.truncate(path, size)


def encode_png() -> bytes:
    file = io.BytesIO()
    picture(900).save(file, "PNG")
    return file.getvalue()


def put_png(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(encode_png())


def huge(path: Path) -> None:
    png(path, width=10_000, height=10_000, depth=8, kind=0)


def huge_text(path: Path) -> None:
    data = encode_png()
    text = chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(70 << 20)))
    path.write_bytes(data[:-12] + text + data[-12:])


HUGE, SPARSE, HUGE_TEXT = "a/huge.png", "a/sparse.jpg", "a/text.png"
# What is put among good images by its name, and how it is rejected.
CASES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a/pipe.jpg": (os.mkfifo, "is not a regular file"),
    "a/device.jpg": (lambda path: path.symlink_to("/dev/zero"), "leads outside the data root"),
    SPARSE: (
        lambda path: sparse(path, 200 << 30),
        "larger than an image of 50,000,000 pixels can be: 214,748,364,800 bytes",
    ),
    "a/tail.png": (
        lambda path: sparse(path, 50 << 20, encode_png()),
        "larger than an image of 1,200 pixels can be: 52,428,800 bytes",
    ),
    "a/x\udcff.png": (put_png, "the name is not UTF-8"),
    "one\ntwo/x.png": (put_png, r"the class name 'one\ntwo' has a line break"),
    HUGE: (huge, "more pixels than data.max_pixels: 10000×10000"),
    HUGE_TEXT: (huge_text, "damaged image: "),
}


@pytest.fixture
def root(tmp_path):
    return save_photos(tmp_path / "in", GOOD, "a", "b", suffix="png")


def test_odd_files_are_rejected_with_their_reasons_and_the_others_are_used(root, tmp_path):
    (root / "a" / "folder.png").mkdir()  # which is nothing to reject
    for name, (happens, _) in CASES.items():
        happens(root / name)
    manifest = ingest(data_settings(root, follow_links=False), tmp_path / "manifest")
    assert len(manifest.examples) == GOOD and manifest.classes == ("a", "b")
    found, printed = read_reasons(manifest), {"\n": " ", "\udcff": r"\xff"}
    for name, (_, reason) in CASES.items():
        assert found.pop(name.translate(str.maketrans(printed))).startswith(reason), name
    assert not found


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
MOST_BYTES = {SPARSE: 50e6, HUGE: 50e6, "a/sixteen.png": 200e6, HUGE_TEXT: 300e6}


@pytest.mark.slow
def test_odd_files_take_bounded_memory(root, tmp_path):
    roots = [shutil.copytree(root, tmp_path / "roots" / Path(name).stem) for name in MOST_BYTES]
    for name, odd in zip(MOST_BYTES, roots, strict=True):
        if name in CASES:
            CASES[name][0](odd / name)
        else:
            png(odd / name, width=5000, height=4000, depth=16, kind=0)
    said = run_python(MEASURE, *map(str, [tmp_path, root, *roots])).stdout
    found = [float(line.split()[1]) for line in said.splitlines() if line.startswith("more:")]
    for (name, most), taken in zip(MOST_BYTES.items(), found, strict=True):
        assert taken < most, name


def test_a_linked_class_folder_whose_target_is_not_listed_otherwise_is_a_class(root, tmp_path):
    put_png(root / ".store" / "x.png")
    (root / "c").symlink_to(root / ".store")
    manifest = ingest(data_settings(root), tmp_path / "manifest")
    assert manifest.classes == ("a", "b", "c") and not read_reasons(manifest)
    assert "c/x.png" in set(manifest.examples["id"])


def test_what_a_table_lists_may_be_as_odd(root, tmp_path):
    os.mkfifo(root / "fifo")
    picture(50).save(tmp_path / "outside.png")
    odd = ["fifo", "gone", "a", "../outside.png"]
    rows = [{"path": f"{'ab'[n % 2]}/{n:02d}.png", "label": "ab"[n % 2]} for n in range(GOOD)]
    rows += [{"path": path, "label": "a"} for path in odd]
    pd.DataFrame(rows).to_csv(root / "table.csv", index=False)
    manifest = ingest(data_settings(root / "table.csv", "image_table"), tmp_path / "manifest")
    assert {*read_reasons(manifest)} == {*odd} and len(manifest.examples) == GOOD


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
