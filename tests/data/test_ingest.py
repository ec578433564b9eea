"""Ingest lists what is unusable with its reason; what is usable decodes to what a person sees."""

import shutil
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests.support.csv_tables import scan, write
from tests.support.project import SMALL, run_stages, write_params
from tests.support.small_data import data_settings, picture, read_reasons, save_photos
from throughline.data.encodings.image_files import DARK_NOTE
from throughline.data.ingest import ingest
from throughline.data.manifest import read_manifest
from throughline.results.snapshot import SnapshotCost
from throughline.shared.errors import TooManyRejects, UnreadableSource, UnusableDataset
from throughline.shared.file_lock import hold_outputs

pytestmark = pytest.mark.integration


@pytest.fixture
def folder(tmp_path):
    """Two classes of ten good photos each."""
    return save_photos(tmp_path / "in", 20, "a", "b")


def write_png(path, **chunks):
    """A PNG of these chunks and the last one."""
    content = b"\x89PNG\r\n\x1a\n"
    for name, data in {**chunks, "IEND": b""}.items():
        kind = name.encode()
        checksum = struct.pack(">I", zlib.crc32(kind + data))
        content += struct.pack(">I", len(data)) + kind + data + checksum
    path.write_bytes(content)


def test_every_kind_of_bad_file_is_rejected_with_its_reason(folder, tmp_path):
    one, other = ((folder / "a" / name).read_bytes() for name in ("00.jpg", "02.jpg"))
    odd = {"zero.jpg": b"", "text.png": b"no picture", "cut.jpg": one[:300]}
    for name, content in {**odd, "copy.jpg": one, "other.jpg": other}.items():
        (folder / "b" / name).write_bytes(content)
    manifest = ingest(data_settings(folder), tmp_path / "manifest")
    found = read_reasons(manifest)
    assert found.pop("b/cut.jpg").startswith("damaged image")
    assert found == {
        "b/zero.jpg": "empty file",
        "b/text.png": "not an image in JPEG, PNG, GIF, BMP or WebP format",
        "b/copy.jpg": "duplicate of a/00.jpg, there labeled a",
        "b/other.jpg": "duplicate of a/02.jpg, there labeled a",
    }
    assert manifest.stats["reject_reasons"]["duplicate"] == 2, "whatever they copy"
    assert (len(manifest.examples), manifest.stats["rejected"]) == (20, 5)


def test_rejects_are_counted_and_too_many_leave_the_old_manifest(tmp_path):
    rows = [f"{row + 3},{row + 3},{'ab'[row % 2]}," for row in range(60)]
    rows += [",1,a,", "2,,a,", "x,1,a,", "y of z,1,b,", "1e99,1,a,", "2,1,a,dev", "2,1,b,x: y"]
    path = write(tmp_path, "price of house,time: start,kind,split", [[row] for row in rows])
    causes = {
        "price of house is missing (data.missing: median keeps the row)": 1,
        "time: start is missing (data.missing: median keeps the row)": 1,
        "price of house is not a number (set data.missing_values if it means missing)": 2,
        "price of house exceeds the range of float32": 1,
        "split is not one of train, validation, test": 2,
    }
    settings = data_settings(path, "table", label_column="kind")
    manifest = ingest(settings, tmp_path / "manifest")
    assert manifest.stats["reject_reasons"] == causes
    said = r"7 of 67 examples are unusable, 10\.4%.*allows 10\.0%, 6 of them"
    with pytest.raises(TooManyRejects, match=said) as caught:
        ingest(settings.model_copy(update={"max_reject_fraction": 0.1}), tmp_path / "manifest")
    assert len(read_manifest(tmp_path / "manifest").examples) == 60, "the earlier one"
    for cause, count in causes.items():
        assert f"{count} × {cause}, such as row " in str(caught.value)


def bmp_with_unused_bytes(path):
    """A 32-bit BMP of gray pixels that says which bytes are transparency, all of them 0."""
    masks = struct.pack("<4I", 0xFF0000, 0xFF00, 0xFF, 0xFF000000)
    header = struct.pack("<IiiHHIIiiII", 108, 4, 4, 1, 32, 3, 64, 0, 0, 0, 0) + masks
    start = struct.pack("<2sIHHI", b"BM", 122 + 64, 0, 0, 122)
    path.write_bytes(start + header.ljust(108, b"\0") + bytes([100, 100, 100, 0]) * 16)


# The header of a PNG of 16 and one of 2 bits, its clear color, its row, and the pixels seen.
CLEAR_COLORS = {
    "sixteen.png": (*((2, 1, 16, 2), b"\x12\x34" * 3, b"\x12\x34" * 3 + b"\x80\0" * 3), [255, 128]),
    "two.png": ((4, 1, 2, 0), b"\0\1", bytes([0b00011011]), [0, 255, 170, 255]),
}
FILES = (  # by the mode in which Pillow writes them
    *("1.png", "LA.png", "P.png", "RGBA.png", "I;16.png"),
    *("L.jpg", "CMYK.jpg", "P.gif", "RGB.bmp", "L.webp", "RGBA.webp"),
)


@pytest.fixture(scope="module")
def converted(tmp_path_factory) -> dict[str, tuple[Path, Path]]:
    """Images of every format and mode: their files, and those that the manifest names."""
    root = tmp_path_factory.mktemp("formats")
    folder = root / "in" / "a"
    folder.mkdir(parents=True)
    for number, name in enumerate(FILES):
        mode = name.partition(".")[0]
        original = picture(number, mode={"I;16": "L", "RGBA": "RGBA"}.get(mode, "RGB"))
        lossless = {"lossless": True} if name.endswith(".webp") else {}
        original.convert(mode).save(folder / name, **lossless)
    bmp_with_unused_bytes(folder / "unused.bmp")
    Image.new("RGBA", (8, 8), (255, 0, 0, 0)).save(folder / "clear.png")
    for name, (header, clear, row, _) in CLEAR_COLORS.items():
        ihdr = struct.pack(">IIBBBBB", *header, 0, 0, 0)
        write_png(folder / name, IHDR=ihdr, tRNS=clear, IDAT=zlib.compress(b"\0" + row))
    picture(60).save(folder / "garbage.webp", exif=b"Exif\0\0no header at all")
    exif = Image.Exif()
    exif[0x0112] = 6
    picture(93, size=(40, 20)).save(folder / "turned.jpg", exif=exif, quality=95)
    save_photos(root / "in", 30, "b", suffix="png")  # so that both splits get some
    manifest = ingest(data_settings(root / "in"), root / "manifest")
    assert not len(manifest.rejected)
    uris = manifest.examples.set_index("id")["uri"]
    return {path.name: (path, Path(uris[f"a/{path.name}"])) for path in folder.iterdir()}


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


def test_transparency_is_laid_over_white_and_exif_orientation_is_applied(converted):
    names = ("clear.png", "turned.jpg", "garbage.webp", "unused.bmp", *CLEAR_COLORS)
    content = [converted[name][1].read_bytes() for name in names]
    decoded = [tf.io.decode_image(one, expand_animations=False).numpy() for one in content]
    images = dict(zip(names, decoded, strict=True))
    assert images["clear.png"].shape == (8, 8, 3) and images["clear.png"].min() == 255
    assert images["turned.jpg"].shape == (40, 20, 3)
    assert images["garbage.webp"].shape == (30, 40, 3)
    assert images["unused.bmp"].min() == images["unused.bmp"].max() == 100
    for name, (*_, pixels) in CLEAR_COLORS.items():
        assert images[name][0, :, 0].tolist() == pixels


def test_16_bits_are_scaled_alike_whatever_values_an_image_has(tmp_path):
    """A frame without light stays black: its scale is that of its neighbors."""
    steps, factors = np.arange(64, dtype=np.uint16).reshape(8, 8), {"bright": 1040, "dark": 4}
    root = save_photos(tmp_path / "in", 30, "a", "b", suffix="png")
    for name, factor in factors.items():
        Image.fromarray(steps * factor).save(root / "a" / f"{name}.png")
    manifest = ingest(data_settings(root), tmp_path / "manifest")
    uris = manifest.examples.set_index("id")["uri"]
    for name, factor in factors.items():
        with Image.open(uris[f"a/{name}.png"]) as image:
            np.testing.assert_array_equal(np.asarray(image), np.round(steps * (factor / 257)))
    assert manifest.stats["notes"][DARK_NOTE] == 1


def test_a_single_class_and_an_empty_validation_split_are_refused(folder, tmp_path):
    with pytest.raises(UnusableDataset, match="no example fell into the validation split, and 20"):
        ingest(data_settings(folder, split={"validation": 0, "test": 0}), tmp_path / "manifest")
    shutil.rmtree(folder / "b")
    with pytest.raises(UnusableDataset, match="single class, a"):
        ingest(data_settings(folder), tmp_path / "manifest")


def test_copies_in_a_held_out_split_win_and_odd_tables_are_warned_of(folder, tmp_path):
    for number in (0, 1):
        shutil.copy(folder / "ab"[number] / f"0{number}.jpg", folder / "b" / f"test{number}.jpg")
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.jpg"))
    names.remove("b/03.jpg")
    rows = [[name, name[0], "test" if "test" in name else "train"] for name in names]
    write(folder, "path,label,split", rows)
    manifest = ingest(data_settings(folder, "image_table"), tmp_path / "manifest")
    assert read_reasons(manifest) == {
        "a/00.jpg": "duplicate of b/test0.jpg, there labeled b, there in the test split",
        "b/01.jpg": "duplicate of b/test1.jpg, there in the test split",
    }
    said = "1 image is in no row of the table, such as "
    assert f"{said}{folder / 'b' / '03.jpg'}" in manifest.stats["warnings"]
    (warning,) = [each for each in manifest.stats["warnings"] if "differ in label" in each]
    assert "a/00.jpg as a, b/test0.jpg as b" in warning and warning.startswith("in 1 cases")
    assert manifest.stats["examples"].keys() == {"train", "validation", "test"}
    tested = manifest.examples[manifest.examples["split"] == "test"]
    assert tested["id"].tolist() == ["b/test0.jpg", "b/test1.jpg"], "nothing else is dealt to it"


def test_a_class_of_a_list_is_not_spelled_in_two_ways(folder):
    path = write(folder, "path,label", [["a/00.jpg", "1"], ["a/02.jpg", "1.0"], ["b/01.jpg", "2"]])
    with pytest.raises(UnreadableSource, match="label holds 1 and"):
        scan(path, "image_table")
    assert len(scan(path, "image_table", label_kind="class").files) == 3


@pytest.mark.slow
def test_one_stage_at_a_time_prepares_data(tmp_path, capsys):
    (tmp_path / "source").mkdir()
    images = np.random.default_rng(0).integers(0, 256, (60, 8, 6), np.uint8)
    np.savez(tmp_path / "source" / "data.npz", x=images, y=np.arange(60) % 2)
    write_params(tmp_path, SMALL)
    stages = ("ingest", "shard", "snapshot")
    run_stages(tmp_path, *stages)
    cost = SnapshotCost.read(tmp_path / "data")
    assert 8 * 6 < cost.bytes_per_example < 100, "of an image, its key and its label"
    assert cost.seconds * cost.examples_per_s == pytest.approx(60)
    before = sorted((tmp_path / "data").iterdir())
    with hold_outputs(tmp_path / "data", "preparing data"):
        for stage in stages:
            with pytest.raises(SystemExit):
                run_stages(tmp_path, stage)
            said = capsys.readouterr().err
            assert "another process is preparing data and writes into data" in said
    assert sorted((tmp_path / "data").iterdir()) == before
    run_stages(tmp_path, *stages)
