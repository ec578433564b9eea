"""Sample pictures of each class are drawn of whatever holds images, the same of the same ones."""

import io
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.support.csv_tables import write
from tests.support.small_data import data_settings, picture, save_photos
from throughline.data.contact_sheet import write_sheet
from throughline.data.glance import describe_sheet, tabulate, to_rows
from throughline.data.ingest import ingest

pytestmark = pytest.mark.integration


def as_folder(root, suffix="jpg"):
    return data_settings(save_photos(root, 40, "cat", "dog", suffix=suffix))


def as_parquet(root):
    save_photos(root / "photos", 40, "cat", "dog")
    files = sorted((root / "photos").glob("*/*"))
    content, labels = zip(*((file.read_bytes(), file.parent.name) for file in files), strict=True)
    pq.write_table(pa.table({"image": content, "label": labels}), root / "all.parquet")
    return data_settings(root / "all.parquet", "image_table")


def as_list(root, **of_numbers):
    files = [*save_photos(root, 40, "cat", "dog").glob("*/*")]
    labels = [n / 8 if of_numbers else file.parent.name for n, file in enumerate(files)]
    rows = [f"{file.relative_to(root)},{label}" for file, label in zip(files, labels, strict=True)]
    (root / "list.csv").write_text("\n".join(["path,label", *rows]))
    return data_settings(root, "image_table", **of_numbers)


def as_arrays(root, size=(28, 28), mode="RGB"):
    pixels = np.stack([np.asarray(picture(number, size=size, mode=mode)) for number in range(40)])
    np.savez(root / "a.npz", x=pixels, y=np.arange(40) % 2)
    return data_settings(root / "a.npz", "arrays")


KINDS = {
    "files": as_folder,
    "converted": partial(as_folder, suffix="webp"),
    "Parquet": as_parquet,
    "a list": as_list,
    "arrays": as_arrays,
    "gray arrays": partial(as_arrays, size=(8, 8), mode="L"),
    "numbers": partial(as_list, label_kind="number"),
}


def test_each_kind_of_images_has_a_sheet_the_same_whatever_holds_the_examples(tmp_path):
    sheets = {}
    for name, kind in KINDS.items():
        (tmp_path / name / "in").mkdir(parents=True)
        settings = kind(tmp_path / name / "in")
        ingest(settings, tmp_path / name / "manifest")
        sheets[name] = (tmp_path / name / "manifest" / "glance.png").read_bytes()
        drawn = np.asarray(Image.open(io.BytesIO(sheets[name])))
        rows = 1 if settings.label_kind == "number" else 2
        assert drawn.shape[0] // 68 == rows, name
        for row in range(rows):
            for column in range(6):
                place = drawn[4 + row * 68 :, 150 + column * 68 :][:24, :32]
                assert place.std() > 0, f"{name}: a picture, not white"
    assert sheets["files"] == sheets["Parquet"] == sheets["a list"]


@pytest.mark.slow
def test_of_many_classes_the_first_are_shown_and_the_sheet_stays_small(tmp_path):
    names = [f"{place} {'a class with a long name' * (place % 2)}" for place in range(12)]
    root = tmp_path / "in"
    noise = np.random.default_rng(0)
    for number in range(120):
        path = root / names[number % 12] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise.integers(0, 256, (200, 300, 3), np.uint8)).save(path)
    manifest = ingest(data_settings(root), tmp_path / "manifest")
    content = (tmp_path / "manifest" / "glance.png").read_bytes()
    assert len(content) <= 300_000
    assert Image.open(io.BytesIO(content)).height > 8 * 16
    shown = describe_sheet(to_rows(tabulate(manifest)))
    assert shown.count(",") == 1 + 7


def test_none_is_drawn_where_reading_is_dear_or_there_are_no_images(tmp_path):
    manifest = ingest(as_folder(tmp_path / "in"), tmp_path / "manifest")
    sheet = tmp_path / "manifest" / "glance.png"
    sheet.unlink()
    folder = tmp_path / "manifest"
    far = manifest.examples.assign(uri="s3://bucket/x.png")
    gone = manifest.examples.assign(uri=str(tmp_path / "gone.png"))
    for examples in (far, gone):
        write_sheet(replace(manifest, examples=examples, folder=folder), ["cat", "dog"], out=folder)
        assert not sheet.exists()
    table = write(tmp_path, "x,label", [[n + 0.5, "ab"[n % 2]] for n in range(60)])
    ingest(data_settings(table, "table"), tmp_path / "rows")
    assert not (tmp_path / "rows" / "glance.png").exists()
