"""The data at a glance: tables of each kind of data and target, and sample pictures of a class."""

import io
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.support.csv_tables import write
from tests.support.small_data import data_settings, picture, save_photos
from throughline.data import glance
from throughline.data.ingest import ingest
from throughline.settings import DataSettings

CLASSES, RANGE = ["class", "train", "validation", "test"], ["column", "lowest", "median", "highest"]
OF_TEXTS = [*CLASSES, "least bytes", "median bytes", "most bytes", "first"]
OF_COLUMNS = ["column", "kind", "lowest", "median", "highest", "distinct", "missing", "such as"]
RANK = ["rank", "number", "0", "39.5", "79", "80", "0", "0"]
TABLE = {"source": "table", "missing": {"size": "median"}}
TEXTS = {"source": "text_table", "text_column": "note"}
TABLED = {  # settings, heading and first row of the table of all, and rows of that of the columns
    "classes": (
        {**TABLE, "ignore": ["note", "rank"]},
        [*CLASSES, "first"],
        "even",
        [
            ["size", "number", "0.125", "5.375", "9.875", "70", "10", "0.125"],
            ["town", "category", "", "", "", "3", "0", "a"],
            ["kind", "label", "", "", "", "2", "0", "odd"],
            ["note", "ignored", "", "", "", "80", "0", "word 0"],
        ],
    ),
    "numbers": (
        {**TABLE, "label_column": "rank", "label_kind": "number", "ignore": ["note"]},
        RANGE,
        "label 1",
        [["rank", "label", "", "", "", "80", "0", "0"]],
    ),
    "series": (
        {"source": "time_series", "ignore": ["town", "kind", "note"], "numeric": ["rank"]},
        RANGE,
        "rank",
        [RANK],
    ),
    "texts with a column": ({**TEXTS, "numeric": ["rank"]}, OF_TEXTS, "even", [RANK]),
    "texts alone": (TEXTS, OF_TEXTS, "even", []),
}


@pytest.mark.parametrize(("settings", "heading", "first", "columns"), TABLED.values(), ids=TABLED)
def test_each_kind_of_data_is_tabled_with_its_columns(settings, heading, first, columns, tmp_path):
    rows = [
        [n / 8 if n % 8 else "", "abc"[n % 3], ("odd", "even")[n % 5 > 0], f"word {n}", n]
        for n in range(80)
    ]
    settings = {"path": str(write(tmp_path, "size,town,kind,note,rank", rows)), **settings}
    settings = DataSettings(**{"label_column": "kind", **settings})
    manifest = ingest(settings, tmp_path / "manifest")
    table = glance.tabulate(manifest)
    shown = glance.to_rows(table)
    assert shown[0] == heading and shown[1][0] == first
    assert glance.to_text(table)[1].split()[0] == first.split()[0]
    if heading == RANGE:
        assert shown[1][1:] == ["0", "39.5", "79"]
    else:
        assert sum(map(int, shown[1][1:4])) == 64, "4 of 5 rows are even"
    of_columns = glance.tabulate_columns(manifest)
    others = [] if of_columns is None else glance.to_rows(of_columns)
    assert others[:1] == ([OF_COLUMNS] if columns else [])
    assert not [row for row in columns if row not in others]
    problems = [f"- {problem}" for problem in glance.read_problems(manifest.folder)]
    tables = [[f"| {' | '.join(row)} |" for row in rows] for rows in (shown, others)]
    kept = (manifest.folder / "glance.md").read_text().splitlines()
    said = [line for line in kept if line and "---" not in line]
    assert said == [*tables[0], *problems, *tables[1]]
    assert not (manifest.folder / "glance.png").exists()


def as_folder(root, suffix="jpg"):
    return data_settings(save_photos(root, 40, "cat", "dog", suffix=suffix))


def as_parquet(root):
    files = sorted(save_photos(root / "photos", 40, "cat", "dog").glob("*/*"), reverse=True)
    content, labels = zip(*((file.read_bytes(), file.parent.name) for file in files), strict=True)
    pq.write_table(pa.table({"image": content, "label": labels}), root / "all.parquet")
    return data_settings(root / "all.parquet", "image_table")


def as_numbers(root):
    files = save_photos(root, 40, "cat", "dog").glob("*/*")
    write(root, "path,label", [[file.relative_to(root), n / 8] for n, file in enumerate(files)])
    return data_settings(root, "image_table", label_kind="number")


def as_arrays(root, size=(28, 28), mode="RGB"):
    pixels = np.stack([np.asarray(picture(number, size=size, mode=mode)) for number in range(40)])
    np.savez(root / "a.npz", x=pixels, y=np.arange(40) % 2)
    return data_settings(root / "a.npz", "arrays")


PICTURED = {
    "files": as_folder,
    "converted": partial(as_folder, suffix="webp"),
    "Parquet": as_parquet,
    "numbers": as_numbers,
    "arrays": as_arrays,
    "gray arrays": partial(as_arrays, size=(8, 8), mode="L"),
}


@pytest.mark.integration
def test_each_kind_of_images_has_a_sheet_the_same_whatever_holds_the_examples(tmp_path):
    sheets = {}
    for name, kind in PICTURED.items():
        (tmp_path / name / "in").mkdir(parents=True)
        ingest(kind(tmp_path / name / "in"), tmp_path / name / "manifest")
        sheets[name] = (tmp_path / name / "manifest" / "glance.png").read_bytes()
        drawn = np.asarray(Image.open(io.BytesIO(sheets[name])))
        rows = 1 if name == "numbers" else 2
        assert drawn.shape[0] // 68 == rows, name
        for row, column in np.ndindex(rows, 6):
            place = drawn[4 + row * 68 :, 150 + column * 68 :][:24, :32]
            assert place.std() > 0, f"{name}: a picture, not white"
    assert sheets["files"] == sheets["Parquet"]


@pytest.mark.slow
def test_of_many_classes_the_first_are_shown_and_the_sheet_stays_small(tmp_path):
    names = [f"{place} {'a class with a long name' * (place % 2)}" for place in range(12)]
    noise = np.random.default_rng(0)
    for number in range(120):
        path = tmp_path / "in" / names[number % 12] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise.integers(0, 256, (200, 300, 3), np.uint8)).save(path)
    manifest = ingest(data_settings(tmp_path / "in"), tmp_path / "manifest")
    content = (tmp_path / "manifest" / "glance.png").read_bytes()
    assert len(content) <= 300_000
    assert Image.open(io.BytesIO(content)).height > 8 * 16
    assert glance.describe_sheet(glance.to_rows(glance.tabulate(manifest))).count(",") == 1 + 7
