"""Ingest looks at everything once: what is unusable is listed with its reason, what is usable
decodes to what a person sees.
"""

from __future__ import annotations

import re
import shutil
import struct
import zipfile
import zlib
from pathlib import Path

import cv2
import numpy as np
import pandas as pd
import psutil
import pytest
import tensorflow as tf
from PIL import Image

from tests.support.project import SMALL, run_stages, write_params
from tests.support.small_data import data_settings, picture, read_reasons
from throughline.data.encodings.image_files import BESIDES_PIXELS, DARK_NOTE
from throughline.data.ingest import ingest
from throughline.data.manifest import read_manifest
from throughline.data.sources import image_table
from throughline.shared.errors import (
    DataNotFound,
    MissingInput,
    TooManyRejects,
    UnreadableSource,
    UnusableDataset,
)
from throughline.shared.layout import STORE_HOME, WORKSPACES, Layout
from throughline.shared.output_lock import hold_outputs


@pytest.fixture
def folder(tmp_path):
    """Two classes of ten good photos each."""
    for number in range(20):
        path = tmp_path / "in" / ("a", "b")[number % 2] / f"{number:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(number).save(path)
    return tmp_path / "in"


def company(folder):
    """Enough other photos that both splits get some."""
    for number in range(30):
        picture(1000 + number).save(folder / f"c{number}.png")


def huge_png(path, side=10_000):
    """A PNG whose header promises 100 megapixels."""
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    write_png(path, IHDR=header, IDAT=zlib.compress(bytes(side * 3 + 1) * 50))


def write_png(path, **chunks):
    """A PNG of these chunks and the last one."""
    content = b"\x89PNG\r\n\x1a\n"
    for name, data in {**chunks, "IEND": b""}.items():
        kind = name.encode()
        checksum = struct.pack(">I", zlib.crc32(kind + data))
        content += struct.pack(">I", len(data)) + kind + data + checksum
    path.write_bytes(content)


def test_every_kind_of_bad_file_is_rejected_with_its_reason(folder, tmp_path):
    (folder / "a" / "zero.jpg").write_bytes(b"")
    (folder / "a" / "text.png").write_text("not a picture")
    (folder / "a" / "cut.jpg").write_bytes((folder / "a" / "00.jpg").read_bytes()[:300])
    (folder / "b" / "copy.jpg").write_bytes((folder / "a" / "00.jpg").read_bytes())
    (folder / "loose.jpg").write_bytes((folder / "a" / "02.jpg").read_bytes())
    outside = tmp_path / "outside.jpg"
    picture(99).save(outside)
    (folder / "a" / "link.jpg").symlink_to(outside)
    huge_png(folder / "b" / "huge.png")
    (folder / "empty").mkdir()
    before = psutil.Process().memory_info().rss
    manifest = ingest(data_settings(folder), tmp_path / "manifest")
    assert psutil.Process().memory_info().rss - before < 100e6
    found = read_reasons(manifest)
    assert found["a/zero.jpg"] == "empty file"
    assert found["a/text.png"] == "not an image in JPEG, PNG, GIF, BMP or WebP format"
    assert found["a/cut.jpg"].startswith("damaged image")
    assert found["b/copy.jpg"] == "duplicate of a/00.jpg, there labeled a"
    assert found["loose.jpg"] == "is outside any class folder"
    assert found["a/link.jpg"] == "leads outside the data root"
    assert found["b/huge.png"] == "more pixels than data.max_pixels: 10000×10000"
    assert len(manifest.examples) == 20
    assert manifest.stats["empty_classes"] == ["empty"]
    assert manifest.stats["rejected"] == len(found) == 7


def test_too_many_rejects_stop_and_leave_the_earlier_manifest(folder, tmp_path):
    ingest(data_settings(folder), tmp_path / "manifest")
    (folder / "a" / "zero.jpg").write_bytes(b"")
    with pytest.raises(
        TooManyRejects, match=r"1 of 21 examples are unusable, 4.8%.*allows 1.0%, 0 of them"
    ) as caught:
        ingest(data_settings(folder, max_reject_fraction=0.01), tmp_path / "manifest")
    assert "\n  1 × empty file, such as a/zero.jpg\n" in str(caught.value)
    with pytest.raises(TooManyRejects):
        ingest(data_settings(folder, max_reject_fraction=0.04), tmp_path / "manifest")
    assert len(read_manifest(tmp_path / "manifest").examples) == 20


def test_the_list_of_rejects_opens_from_where_one_stands(folder, tmp_path, monkeypatch):
    """In the project, although the run works in a worktree of its own."""
    worktree = tmp_path / "project" / WORKSPACES / "short"
    worktree.mkdir(parents=True)
    monkeypatch.setenv(STORE_HOME, str(tmp_path / "project"))
    monkeypatch.chdir(worktree)
    (folder / "a" / "zero.jpg").write_bytes(b"")
    with pytest.raises(TooManyRejects) as caught:
        ingest(data_settings(folder, max_reject_fraction=0.01), Layout().manifest)
    named = re.search(r"all of them: (\S+)", str(caught.value))
    assert named and not Path(named[1]).is_absolute()
    assert "zero.jpg" in (tmp_path / "project" / named[1]).read_text()


def test_rejects_are_counted_by_kind(folder, tmp_path):
    for number in range(3):
        Image.new("L", (400 + number, 400)).save(folder / "a" / f"large-{number}.png")
    with pytest.raises(TooManyRejects) as caught:
        ingest(
            data_settings(folder, max_reject_fraction=0.01, max_pixels=159_999),
            tmp_path / "manifest",
        )
    kind = "3 × more pixels than data.max_pixels, such as a/large-0.png (400×400)"
    assert f"\n  {kind}\n" in str(caught.value)
    assert "duplicates" not in str(caught.value)
    shutil.copy(folder / "a" / "large-0.png", folder / "a" / "large-9.png")
    with pytest.raises(TooManyRejects, match=r"data\.duplicates: keep"):
        ingest(data_settings(folder, max_reject_fraction=0.01), tmp_path / "manifest")


def bmp_with_masks(path, fourth):
    """A 32-bit BMP of gray pixels that says which bytes are transparency, all of them `fourth`."""
    masks = struct.pack("<4I", 0xFF0000, 0xFF00, 0xFF, 0xFF000000)
    header = struct.pack("<IiiHHIIiiII", 108, 4, 4, 1, 32, 3, 64, 0, 0, 0, 0) + masks
    pixels = bytes([100, 100, 100, fourth]) * 16
    offset = 14 + 108
    start = struct.pack("<2sIHHI", b"BM", offset + 64, 0, 0, offset)
    path.write_bytes(start + header.ljust(108, b"\0") + pixels)


MODES = {  # that Pillow can write to a file of the format
    ".png": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"),
    ".jpg": ("1", "L", "RGB", "CMYK"),
    ".gif": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"),
    ".bmp": ("1", "L", "P", "RGB", "RGBA"),
    ".webp": ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"),
}
FILES = [f"{mode}{suffix}" for suffix, modes in MODES.items() for mode in modes]


@pytest.fixture(scope="module")
def converted(tmp_path_factory) -> dict[str, tuple[Path, Path]]:
    """Images of every format and mode, and such as few programs write: their files, and those that
    the manifest names, by name.
    """
    root = tmp_path_factory.mktemp("formats")
    folder = root / "in" / "a"
    folder.mkdir(parents=True)
    for number, name in enumerate(FILES):
        mode = name.partition(".")[0]
        original = picture(number, mode={"I;16": "L", "RGBA": "RGBA"}.get(mode, "RGB"))
        lossless = {"lossless": True} if name.endswith(".webp") else {}
        original.convert(mode).save(folder / name, **lossless)
    bmp_with_masks(folder / "unused.bmp", 0)
    bmp_with_masks(folder / "half.bmp", 128)
    picture(91).save(folder / "phone.jpg", "MPO", save_all=True, append_images=[picture(92)])
    Image.new("RGBA", (8, 8), (255, 0, 0, 0)).save(folder / "clear.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    picture(93, size=(40, 20)).save(folder / "turned.jpg", exif=exif, quality=95)
    (root / "in" / "b").mkdir()
    company(root / "in" / "b")
    manifest = ingest(data_settings(root / "in"), root / "manifest")
    assert not len(manifest.rejected)
    uris = manifest.examples.set_index("id")["uri"]
    return {path.name: (path, Path(uris[f"a/{path.name}"])) for path in folder.iterdir()}


def decode(path: Path) -> np.ndarray:
    """An image as training sees it."""
    return tf.io.decode_image(path.read_bytes(), expand_animations=False).numpy().astype(int)


@pytest.mark.parametrize("name", FILES)
def test_every_format_and_mode_decodes_to_what_a_person_sees(converted, name):
    path, stored = converted[name]
    with Image.open(path) as saved:
        expected = np.asarray(saved.convert("RGB" if saved.mode != "I;16" else "I"), int)
    if expected.ndim == 2:  # 16 bits
        expected = np.repeat(np.round(expected / 257)[..., None], 3, axis=2)
    seen = tf.io.decode_image(stored.read_bytes(), channels=3, expand_animations=False)
    assert seen.shape == expected.shape
    assert np.abs(seen.numpy() - expected).max() <= (3 if path.suffix == ".jpg" else 1)


def test_16_bits_are_scaled_alike_whatever_values_an_image_has(tmp_path):
    """A frame without light stays black: its scale is that of its neighbors."""
    steps = np.arange(64, dtype=np.uint16).reshape(8, 8)
    for name, values in {
        "a/bright": steps * 1040,
        "a/dark": steps * 4,
        "a/twelve": steps * 65,
        "b/other": steps * 199,
    }.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(values).save(tmp_path / "in" / f"{name}.png")
    for name, factor in (("color", 1040), ("dim", 65)):
        deep = np.stack([steps * factor] * 3, axis=2)
        assert cv2.imwrite(str(tmp_path / "in" / "a" / f"{name}.png"), deep)
    company(tmp_path / "in" / "b")
    manifest = ingest(
        data_settings(tmp_path / "in", split={"validation": 0.5, "test": 0}), tmp_path / "manifest"
    )
    uris = manifest.examples.set_index("id")["uri"]
    for name, factor in {"a/bright.png": 1040, "a/dark.png": 4}.items():
        with Image.open(uris[name]) as image:
            np.testing.assert_array_equal(np.asarray(image), np.round(steps * (factor / 257)))
    assert manifest.stats["notes"][DARK_NOTE] == 3
    with Image.open(uris["a/dim.png"]) as image:
        assert np.asarray(image).max() == 63 * 65 // 256


def test_the_unused_fourth_bytes_of_a_bmp_are_no_transparency(converted):
    for name, gray in {"unused.bmp": 100, "half.bmp": 177}.items():
        image = decode(converted[name][1])
        assert image.min() == image.max() == gray


def test_a_jpeg_with_further_pictures_stays_as_it_is(converted):
    path, stored = converted["phone.jpg"]
    assert stored == path
    with Image.open(path) as image:
        assert np.abs(decode(path) - np.asarray(image)).max() <= 3


def test_transparency_is_laid_over_white_and_exif_orientation_is_applied(converted):
    clear = decode(converted["clear.png"][1])
    assert clear.shape == (8, 8, 3) and clear.min() == 255
    assert decode(converted["turned.jpg"][1]).shape == (40, 20, 3)


@pytest.mark.parametrize(
    ("bits", "colors", "clear", "row", "pixels"),
    [
        (16, 2, ">3H", (0x1234, 0x1234, 0x1234, 0x8000, 0x8000, 0x8000), [255, 128]),
        (4, 0, ">H", 0x05FA, [0, 255, 255, 170]),
        (2, 0, ">H", 0b00011011, [0, 255, 170, 255]),
    ],
)
def test_the_clear_color_of_a_png_is_of_its_own_bits(tmp_path, bits, colors, clear, row, pixels):
    folder, count = tmp_path / "in", len(pixels)
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
    key = (0x1234,) * 3 if bits == 16 else (5,) if bits == 4 else (1,)
    data = struct.pack(">6H", *row) if bits == 16 else row.to_bytes(2 if bits == 4 else 1, "big")
    write_png(
        folder / "a" / "clear.png",
        IHDR=struct.pack(">IIBBBBB", count, 1, bits, colors, 0, 0, 0),
        tRNS=struct.pack(clear, *key),
        IDAT=zlib.compress(b"\0" + data),
    )
    company(folder / "b")
    manifest = ingest(data_settings(folder), tmp_path / "manifest")
    stored = decode(Path(manifest.examples.set_index("id")["uri"]["a/clear.png"]))
    assert stored[0, :, 0].tolist() == pixels


def test_an_animation_may_be_larger_than_its_first_picture(folder, tmp_path):
    pictures = [Image.effect_noise((64, 64), 200 + number % 50) for number in range(1100)]
    path = folder / "a" / "moving.gif"
    pictures[0].save(path, save_all=True, append_images=pictures[1:])
    assert path.stat().st_size > BESIDES_PIXELS + 64 * 64 * 8
    manifest = ingest(data_settings(folder), tmp_path / "manifest")
    assert "a/moving.gif" in set(manifest.examples["id"])


def test_a_class_of_which_only_copies_of_another_are_there_is_none(tmp_path):
    folder = tmp_path / "in"
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
    company(folder / "a")
    first = min((folder / "a").iterdir())
    shutil.copy(first, folder / "b" / first.name)
    with pytest.raises(UnusableDataset, match="there is a single class, a"):
        ingest(data_settings(folder, max_reject_fraction=0.5), tmp_path / "manifest")


def test_transparent_gray_of_16_bits_is_gray_over_white(tmp_path):
    """By one value that stands for it, or by a channel, with which Pillow makes colors of it."""
    (tmp_path / "in" / "a").mkdir(parents=True)
    (tmp_path / "in" / "b").mkdir()
    header = struct.pack(">IIBBBBB", 3, 1, 16, 0, 0, 0, 0)
    rows = zlib.compress(b"\0" + struct.pack(">3H", 100 * 257, 7, 100 * 257 + 1))
    keyed, mixed = (tmp_path / "in" / "a" / name for name in ("keyed.png", "mixed.png"))
    write_png(keyed, IHDR=header, tRNS=struct.pack(">H", 100 * 257), IDAT=rows)
    rows = zlib.compress(b"\0" + struct.pack(">6H", 100 * 257, 65535, 100 * 257, 0, 7, 65535))
    write_png(mixed, IHDR=header[:9] + b"\4" + header[10:], IDAT=rows)
    company(tmp_path / "in" / "b")
    manifest = ingest(data_settings(tmp_path / "in"), tmp_path / "manifest")
    uris = manifest.examples.set_index("id")["uri"]
    assert decode(Path(uris["a/keyed.png"])).tolist() == [[[255], [0], [100]]]
    assert decode(Path(uris["a/mixed.png"])).tolist() == [[[100], [255], [0]]]


def test_a_photo_whose_exif_is_none_is_read_as_it_stands(folder, tmp_path):
    for kind in ("jpeg", "webp"):  # of which one is converted
        garbage = {"exif": b"Exif\0\0no header at all", "dpi": (72, 72)}
        picture(60).save(folder / "a" / f"garbage.{kind}", **garbage)
    manifest = ingest(data_settings(folder), tmp_path / "manifest")
    assert not len(manifest.rejected)
    uris = manifest.examples.set_index("id")["uri"]
    assert Path(uris["a/garbage.jpeg"]) == folder / "a" / "garbage.jpeg"
    assert decode(Path(uris["a/garbage.webp"])).shape == decode(folder / "a" / "garbage.jpeg").shape


def test_a_single_class_is_refused(tmp_path):
    (tmp_path / "in" / "only").mkdir(parents=True)
    for number in range(4):
        picture(number).save(tmp_path / "in" / "only" / f"{number}.jpg")
    with pytest.raises(UnusableDataset, match="single class, only"):
        ingest(data_settings(tmp_path / "in"), tmp_path / "manifest")


def test_an_empty_validation_split_is_refused(folder, tmp_path):
    with pytest.raises(
        UnusableDataset, match="none of the 20 examples fell into the validation split"
    ):
        ingest(data_settings(folder, split={"validation": 0, "test": 0}), tmp_path / "manifest")


def test_baseline_copies_win_over_training_copies(folder, tmp_path):
    (folder / "b" / "test.jpg").write_bytes((folder / "b" / "01.jpg").read_bytes())
    rows = [
        {"path": str(path.relative_to(folder)), "label": path.parent.name}
        for path in sorted(folder.rglob("*.jpg"))
    ]
    table = pd.DataFrame(rows).assign(
        split=lambda frame: ["test" if "test" in path else None for path in frame["path"]]
    )
    table.to_csv(folder / "table.csv", index=False)
    manifest = ingest(data_settings(folder / "table.csv", "image_table"), tmp_path / "manifest")
    assert read_reasons(manifest) == {"b/01.jpg": "duplicate of b/test.jpg"}
    tested = manifest.examples[manifest.examples["split"] == "test"]
    assert tested["id"].tolist() == ["b/test.jpg"], (
        "where the source names a test split, nothing else is dealt to it"
    )


def test_a_class_of_a_list_is_not_spelled_in_two_ways(folder):
    (folder / "list.csv").write_text("path,label\na/01.jpg,1\na/02.jpg,1.0\nb/03.jpg,2\n")
    settings = data_settings(folder / "list.csv", "image_table")
    with pytest.raises(UnreadableSource, match=r"label holds 1 and 1\.0, the same value"):
        image_table.scan(settings)
    kept = settings.model_copy(update={"label_kind": "class"})
    assert {file.label for file in image_table.scan(kept).files} == {"1", "1.0", "2"}


def test_a_table_may_lack_files_and_stays_inside_its_folder(folder, tmp_path):
    picture(50).save(tmp_path / "secret.jpg")
    rows = [{"file": f"{'ab'[n % 2]}/{n:02d}.jpg", "class": "ab"[n % 2]} for n in range(20)]
    rows += [{"file": "gone.jpg", "class": "a"}, {"file": "../secret.jpg", "class": "b"}]
    pd.DataFrame(rows).to_parquet(folder / "table.parquet")
    columns = {"path_column": "file", "label_column": "class"}
    manifest = ingest(
        data_settings(folder / "table.parquet", "image_table", **columns), tmp_path / "manifest"
    )
    found = read_reasons(manifest)
    assert found.keys() == {"gone.jpg", "../secret.jpg"}
    assert found["gone.jpg"].startswith("cannot be read: No such file")
    assert found["../secret.jpg"] == "leads outside the data root"


@pytest.mark.integration
def test_one_stage_at_a_time_prepares_data(tmp_path, capsys):
    (tmp_path / "source").mkdir()
    images = np.random.default_rng(0).integers(0, 256, (60, 8, 6), np.uint8)
    np.savez(tmp_path / "source" / "data.npz", x=images, y=["cat", "dog"] * 30)
    write_params(tmp_path, SMALL)
    stages = ("ingest", "shard", "snapshot")
    run_stages(tmp_path, *stages)
    before = sorted((tmp_path / "data").iterdir())
    with hold_outputs(tmp_path / "data", "preparing data"):
        for stage in stages:
            with pytest.raises(SystemExit):
                run_stages(tmp_path, stage)
            said = capsys.readouterr().err
            assert "another process is preparing data and writes into data" in said
    assert sorted((tmp_path / "data").iterdir()) == before
    run_stages(tmp_path, *stages)


@pytest.mark.integration
def test_a_class_that_is_not_trained_on_is_said(tmp_path, capsys):
    draw = np.random.default_rng(0)
    (tmp_path / "source").mkdir()
    np.savez(
        tmp_path / "source" / "data.npz",
        x=draw.integers(0, 256, (81, 12, 10), np.uint8),
        y=["cat", "dog"] * 40 + ["rare"],
    )
    for seed in range(10):
        split = {"validation": 0.3, "test": 0.3, "seed": seed}
        write_params(tmp_path, {**SMALL, "data": {**SMALL["data"], "split": split}})
        run_stages(tmp_path, "ingest")
        balance = read_manifest(tmp_path / "data" / "manifest").stats["class_balance"]
        said = "no example in the training split: class rare" in capsys.readouterr().out
        assert said == ("rare" not in balance["train"])
        if said:
            return
    pytest.fail("no seed puts the one example elsewhere")


def test_arrays_are_never_unpickled_and_are_checked(tmp_path):
    np.savez(tmp_path / "evil.npz", x=np.array([{"a": 1}], dtype=object), y=np.arange(1))
    with pytest.raises(UnreadableSource, match="pickled arrays are refused"):
        ingest(data_settings(tmp_path / "evil.npz", "arrays"), tmp_path / "manifest")
    np.savez(tmp_path / "float.npz", x=np.zeros((4, 3, 3)), y=np.arange(4))
    with pytest.raises(UnreadableSource, match="dtype float64"):
        ingest(data_settings(tmp_path / "float.npz", "arrays"), tmp_path / "manifest")
    np.savez(tmp_path / "short.npz", x=np.zeros((4, 3, 3), np.uint8), y=np.arange(3))
    with pytest.raises(UnreadableSource, match="one class per image"):
        ingest(data_settings(tmp_path / "short.npz", "arrays"), tmp_path / "manifest")
    with pytest.raises(UnreadableSource, match="no array z; known: x, y"):
        ingest(data_settings(tmp_path / "short.npz", "arrays", features="z"), tmp_path / "manifest")
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04nonsense")
    with pytest.raises(UnreadableSource):
        ingest(data_settings(tmp_path / "broken.npz", "arrays"), tmp_path / "manifest")
    path = tmp_path / "packed.npz"
    np.savez_compressed(path, x=np.zeros((4, 3, 3), np.uint8), y=np.arange(4))
    with zipfile.ZipFile(path) as archive:
        start = archive.getinfo("x.npy").header_offset
    data = bytearray(path.read_bytes())
    data[start + 30 + sum(struct.unpack_from("<HH", data, start + 26))] = 0xFF  # no kind of block
    path.write_bytes(data)
    with pytest.raises(UnreadableSource, match=r"x cannot be read .*invalid block type"):
        ingest(data_settings(path, "arrays"), tmp_path / "manifest")


@pytest.mark.parametrize("source", ["image_folder", "image_table", "arrays", "fashion_mnist"])
def test_a_missing_source_is_reported(tmp_path, source):
    with pytest.raises(DataNotFound):
        ingest(data_settings(tmp_path / "nowhere", source), tmp_path / "manifest")
    with pytest.raises(MissingInput, match="dvc repro ingest"):
        read_manifest(tmp_path / "manifest")


def test_the_digest_follows_content_only(folder, tmp_path):
    one = ingest(data_settings(folder), tmp_path / "one")
    two = ingest(data_settings(folder), tmp_path / "two")
    assert one.digest == two.digest
    picture(77).save(folder / "a" / "00.jpg")
    assert ingest(data_settings(folder), tmp_path / "three").digest != one.digest
