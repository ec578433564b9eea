"""Odd files among good ones are rejected with their reasons, in bounded memory; one's own files
are let alone. No example is in two splits, none has a label that cannot be learned.
"""

import os
import random
import re
import shutil
import signal
import zlib
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from tests.fuzz.fuzz_parsers import INSPECT, encode_images, mutate, parse_image
from tests.support.project import SMALL, make_project, run, run_python, write_params
from tests.support.small_data import (
    data_settings,
    flip_bit,
    picture,
    read_reasons,
    save_photos,
    write_files,
)
from throughline.data import ingest as stage
from throughline.data.encodings import decode_probe
from throughline.data.encodings.image_files import is_sound
from throughline.data.ingest import ingest
from throughline.data.manifest import read_manifest
from throughline.data.shards.writing import shard
from throughline.settings import ShardSettings
from throughline.shared.errors import DataNotFound, UnreadableSource, UnusableDataset

pytestmark = pytest.mark.integration

GOOD = 24


def put_png(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    picture(900).save(path)


def put_png_with_a_tail(path: Path) -> None:
    put_png(path)
    os.truncate(path, 50 << 20)


def put_png_with_a_text(path: Path) -> None:
    chunks = PngInfo()
    chunks.add(b"zTXt", b"k\0\0" + zlib.compress(bytes(70 << 20)), after_idat=True)
    picture(900).save(path, pnginfo=chunks)


def put_huge(path: Path) -> None:
    Image.new("L", (10_000, 10_000)).save(path)


def put_16_bits(path: Path) -> None:
    Image.new("I;16", (5000, 4000)).save(path)


def put_nothing(path: Path) -> None:
    path.touch()
    os.truncate(path, 200 << 30)


LARGER = "larger than an image of"
# What is put among good images by its name, and how it is rejected.
CASES = {
    "a/pipe.jpg": (os.mkfifo, "is not a regular file"),
    "a/device.jpg": (lambda path: path.symlink_to("/dev/zero"), "leads outside the data root"),
    "a/sparse.jpg": (put_nothing, f"{LARGER} 50,000,000 pixels can be: 214,748,364,800 bytes"),
    "a/tail.png": (put_png_with_a_tail, f"{LARGER} 1,200 pixels can be: 52,428,800 bytes"),
    "a/x\udcff.png": (put_png, "the name is not UTF-8"),
    "one\ntwo/x.png": (put_png, r"the class name 'one\ntwo' has a line break"),
    "a/huge.png": (put_huge, "more pixels than data.max_pixels: 10000×10000"),
    "a/text.png": (put_png_with_a_text, "damaged image: "),
}


@pytest.fixture
def root(tmp_path):
    return save_photos(tmp_path / "in", GOOD, "a", "b", suffix="png")


def test_odd_files_are_rejected_with_their_reasons_and_the_others_are_used(root, tmp_path):
    put_png(root / ".store" / "x.png")
    (root / "c").symlink_to(root / ".store")  # a class whose folder is not listed otherwise
    (root / "a" / "folder.png").mkdir()  # which is nothing to reject
    for name, (happens, _) in CASES.items():
        happens(root / name)
    manifest = ingest(data_settings(root, follow_links=False), tmp_path / "manifest")
    assert manifest.classes == ("a", "b", "c") and "c/x.png" in {*manifest.examples["id"]}
    assert len(manifest.examples) == GOOD + 1
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
MOST_BYTES = {put_nothing: 50e6, put_huge: 50e6, put_16_bits: 200e6, put_png_with_a_text: 300e6}


@pytest.mark.slow
def test_odd_files_take_bounded_memory(root, tmp_path):
    roots = [shutil.copytree(root, tmp_path / "roots" / put.__name__) for put in MOST_BYTES]
    for put, odd in zip(MOST_BYTES, roots, strict=True):
        put(odd / "a" / "odd.png")
    said = run_python(MEASURE, *map(str, [tmp_path, root, *roots])).stdout
    found = map(float, re.findall("^more: (.*)$", said, re.MULTILINE))
    for (put, most), taken in zip(MOST_BYTES.items(), found, strict=True):
        assert taken < most, put


@pytest.mark.parametrize("labels", [["a", "b\nc", "d", ""], [b"a", b"\xff", b"a", b"b"]])
def test_classes_of_arrays_are_names_on_one_line(tmp_path, labels):
    values = np.random.default_rng(0).integers(0, 256, (40, 3, 3), np.uint8)
    np.savez(tmp_path / "x.npz", x=values, y=np.tile(np.array(labels), 10))
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


OWN = ("data/raw/mine/data.npz", "data/raw/fashion_mnist/own.npz", "data/raw/none/own.npz")


@pytest.mark.slow
def test_files_below_data_raw_survive_every_change_of_fetch(tmp_path, array_file):
    project = make_project(tmp_path / "project", array_file)
    write_files(project, dict.fromkeys(OWN, array_file.read_bytes()))

    def fetch(*options: str) -> str:
        return run(project, "dvc", "repro", *options, "fetch", code=None)

    def survivors() -> tuple[str, ...]:
        return tuple(name for name in OWN if (project / name).exists())

    assert "data/raw/none holds files that fetch did not write" in fetch()
    assert survivors() == OWN
    shutil.rmtree(project / "data" / "raw" / "none")
    fetch()
    write_params(project, SMALL | {"data": SMALL["data"] | {"fetch": "fashion_mnist"}})
    assert re.search("UnexpectedFiles|DataNotFound", fetch())
    write_params(project, SMALL)
    late = project / "data" / "raw" / "none" / "late.txt"
    late.write_text("mine")
    fetch("--force")
    assert survivors() == OWN[:2] and late.exists()


@pytest.mark.slow
def test_ingest_accepts_no_file_that_tensorflow_cannot_decode(tmp_path):
    draw, valid = random.Random(20), encode_images()
    with INSPECT:
        accepted = [parse_image(mutate(draw.choice(valid), draw), tmp_path) for _ in range(200)]
    assert any(accepted) and not all(accepted)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suffix", "mode", "size"),
    [("png", "L", (40, 30)), ("png", "RGB", (900, 700)), ("jpg", "RGB", (40, 30))],
)
def test_files_as_they_are_usually_written_need_no_second_opinion(tmp_path, suffix, mode, size):
    """The data of a large PNG are in several chunks."""
    picture(1, mode=mode, size=size).save(tmp_path / f"x.{suffix}")
    data = (tmp_path / f"x.{suffix}").read_bytes()
    assert is_sound(data) and not is_sound(data[:-1]) and not is_sound(data + b"\n")


@pytest.mark.slow
def test_a_decoder_that_dies_or_hangs_makes_one_file_unusable_and_no_more(tmp_path, monkeypatch):
    picture(1).save(tmp_path / "x.png")
    data = (tmp_path / "x.png").read_bytes()
    with closing(decode_probe.Decoder()) as decoder:
        assert decoder.find_problem(data, height=30, width=40) is None
        for happens in (signal.SIGKILL, signal.SIGSTOP):
            os.kill(decoder._process.pid, happens)
            with monkeypatch.context() as patched:
                patched.setattr(decode_probe, "ANSWER_S", 1.0)  # a stopped one never answers
                said = decoder.find_problem(data, height=30, width=40)
            assert "crashes, or takes longer" in said
            assert decoder.find_problem(data, height=30, width=40) is None
        said = decoder.find_problem(data, height=40, width=30)
        assert said == "TensorFlow decodes 40×30 of 30×40 pixels"
        said = decoder.find_problem(data[:-12], height=30, width=40)
        assert "cannot decode it: Invalid PNG" in said
        process = decoder._process
    assert process.poll() is not None


@pytest.fixture
def images(tmp_path):
    """24 images of two classes, and rows that list them: 12 to train, 6 to validate, 6 to test."""
    paths = sorted(save_photos(tmp_path, 24, "", suffix="png").glob("*.png"))
    splits = ["train"] * 12 + ["validation"] * 6 + ["test"] * 6
    named = zip(paths, "ab" * 12, splits, strict=True)
    return [{"path": path.name, "label": label, "split": split} for path, label, split in named]


def listed(rows, folder, **changes):
    pd.DataFrame(rows).to_csv(folder / "table.csv", index=False)
    settings = data_settings(folder / "table.csv", "image_table", **changes)
    return ingest(settings, folder / "manifest")


@pytest.mark.parametrize(
    ("duplicates", "path", "label", "again", "reason", "split"),
    [
        ("keep", "18.png", "a", "train", ", there in the test split", "test"),
        ("reject", "18.png", "a", None, ", there in the test split", "test"),  # which is not dealt
        ("reject", "00.png", "b", "test", ", there labeled b, there in the test split", "test"),
        ("keep", "00.png", "a", "train", "", "train"),
    ],
)
def test_an_image_listed_twice_is_one_example_and_stays_held_out(
    images, tmp_path, duplicates, path, label, again, reason, split
):
    row = {"path": path, "label": label, "split": again}
    manifest = listed([*images, row], tmp_path, duplicates=duplicates)
    assert read_reasons(manifest) == {path: f"listed twice{reason}"}
    assert len(manifest.examples) == 24 and manifest.examples["key"].is_unique
    assert manifest.examples.set_index("id").loc[path, "split"] == split


def test_an_unknown_split_is_rejected_with_its_name(images, tmp_path):
    rows = [*images[:-2], {**images[-2], "split": "Train"}, {**images[-1], "split": " test "}]
    manifest = listed(rows, tmp_path)
    reason = "split is not one of train, validation, test: Train"
    assert read_reasons(manifest) == {"row 23: 22.png": reason}
    assert manifest.stats["examples"] == {"train": 12, "validation": 6, "test": 5}


@pytest.mark.parametrize("kind", ["number", "class"])
def test_a_label_that_is_no_finite_number_is_rejected(tmp_path, kind):
    labels = [str(number % 3 + (0.5 if kind == "number" else 0)) for number in range(60)]
    frame = pd.DataFrame({"size": np.arange(63) / 7, "label": [*labels, "-inf", "1e300", ""]})
    frame.to_csv(tmp_path / "table.csv", index=False)
    manifest = ingest(data_settings(tmp_path / "table.csv", "table"), tmp_path / "manifest")
    said = [text[:13] for text in read_reasons(manifest).values()]
    assert said == ["label is not ", "label exceeds", "label missing"]
    assert manifest.schema.target.encoding.name == kind
    assert np.isfinite(manifest.examples["label"].to_numpy(float)).all()


def test_missing_validation_is_taken_from_training_and_missing_training_refused(images, tmp_path):
    for other in ("train", None):
        rows = [{**row, "split": "test" if row["split"] == "test" else other} for row in images]
        assert listed(rows, tmp_path).stats["examples"]["validation"] > 0
    with pytest.raises(UnusableDataset, match="names the split of every example, in a column"):
        listed([{**row, "split": "test"} for row in images], tmp_path)


def test_two_examples_with_the_same_key_are_refused(images, tmp_path, monkeypatch):
    monkeypatch.setattr(stage, "example_key", lambda identity: 7)
    with pytest.raises(UnusableDataset, match=r"\d\d.png and \d\d.png have the same key"):
        listed(images, tmp_path)
