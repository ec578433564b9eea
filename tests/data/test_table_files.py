"""Images, texts and rows in Parquet and Arrow files are what they are as files, or are refused."""

import io
import json
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.small_data import (
    data_settings,
    picture,
    prepared,
    read_files,
    read_reasons,
    save_photos,
)
from throughline.data.ingest import ingest
from throughline.data.sources import image_table, table, text_table
from throughline.shared.errors import UnreadableSource

pytestmark = pytest.mark.integration

NAMES = ["cat", "dog"]
IMAGE = pa.struct({"bytes": pa.binary(), "path": pa.string()})


def encode(number: int, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    picture(number).save(buffer, kind)
    return buffer.getvalue()


def named_classes(names=NAMES):
    """The metadata that `datasets` writes into a schema."""
    label = {"names": list(names), "_type": "ClassLabel"}
    features = {"image": {"_type": "Image"}, "label": label}
    return {"huggingface": json.dumps({"info": {"features": features}})}


def pictures(numbers, *, path="{}.png", names=NAMES, label=None, image=IMAGE, **more):
    """A table of these pictures, whose classes take turns."""
    cells = [encode(number) for number in numbers]
    if pa.types.is_struct(image):
        paths = [path and path.format(number, NAMES[number % 2]) for number in numbers]
        cells = [{"bytes": one, "path": name} for one, name in zip(cells, paths, strict=True)]
    labels = [number % 2 if label is None else label for number in numbers]
    columns = {"image": pa.array(cells, image), "label": pa.array(labels, pa.int64()), **more}
    return pa.table(columns).replace_schema_metadata(named_classes(names) if names else None)


def write(root: Path, files: dict[str, pa.Table], form: str = "parquet") -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if form == "parquet":
            pq.write_table(content, path, row_group_size=4)
            continue
        opened = {"file": pa.ipc.new_file, "stream": pa.ipc.new_stream}[form]
        with opened(path, content.schema) as file:
            file.write_table(content, max_chunksize=3)
    return root


def settings(path, source="image_table", **changes):
    return data_settings(path, source, **changes)


PARTS = ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"]
FORMS = {
    "a folder of Parquet": (PARTS, "parquet", {}),
    "a folder for each split": (["all/train/0.parquet", "all/train/1.parquet"], "parquet", {}),
    "one Parquet file": (["all.parquet"], "parquet", {}),
    "save_to_disk": ([f"data-0000{n}-of-00002.arrow" for n in range(2)], "stream", {}),
    "Arrow files": (["a.arrow", "b.arrow"], "file", {}),
    "one stream without a suffix": (["table"], "stream", {}),
    "bytes alone": (PARTS, "parquet", {"image": pa.binary()}),
    "the same path for all": (PARTS, "parquet", {"path": "image.png"}),
}


@pytest.fixture
def as_files(tmp_path):
    return save_photos(tmp_path / "files", 24, *NAMES, suffix="png")


@pytest.mark.parametrize(("names", "form", "what"), FORMS.values(), ids=FORMS)
def test_pictures_in_tables_are_the_examples_that_files_are(names, form, what, as_files, tmp_path):
    root, each = tmp_path / "tables", 24 // len(names)
    for place, name in enumerate(names):
        numbers = range(place * each, (place + 1) * each)
        write(root, {name: pictures(numbers, **what)}, form)
    found = ingest(settings(root if len(names) > 1 else root / names[0]), tmp_path / "1")
    expected = ingest(data_settings(as_files), tmp_path / "2")
    assert found.classes == expected.classes == ("cat", "dog")
    of_tables, of_files = (
        {row.digest: (row.label, row.split, row.bytes) for row in each.examples.itertuples()}
        for each in (found, expected)
    )
    assert of_tables == of_files
    assert found.rejected.empty


def test_paths_that_all_examples_have_make_the_same_shards_as_files(as_files, tmp_path):
    write(tmp_path, {"all.parquet": pictures(range(24), path="{1}/{0:02d}.png")})
    by_table = prepared(settings(tmp_path / "all.parquet"), tmp_path / "1")
    by_file = prepared(data_settings(as_files), tmp_path / "2")
    one, other = (read_files(folder / "shards") for folder in (by_table, by_file))
    shards = [name for name in one if name.endswith(".tfrecord")]
    assert shards
    assert all(one[name] == other[name] for name in shards)


four = partial(pictures, range(4))
FOUR = four()
WORDS = pa.table({"image": FOUR["image"], "label": ["x"] * 4})
ALONE = pa.table({"image": pa.array([{"path": "1.png"}] * 4, IMAGE), "label": [0] * 4})
SIZES, TEXTS, MASKS = four(size=[1] * 4), four(size=["1"] * 4), four(mask=[b"x"] * 4)
REFUSED = {
    "paths alone": ([ALONE], "column image holds paths of images without their bytes"),
    "two columns of images": ([MASKS], r"image, mask may all .*set data\.path_column: image"),
    "type": ([FOUR, WORDS], r"b\.parquet: column label has other class names than in .*a\.parquet"),
    "other classes": ([FOUR, four(names=["dog", "cat"])], r"b\.parquet: .* has other class names"),
    "a column more": ([FOUR, SIZES], r"a\.parquet: no column size, which .*b\.parquet has"),
    "another type": ([SIZES, TEXTS], r"b\.parquet: .* size is string, but int64 in .*a\.parquet"),
    "a class without a name": ([four(label=2)], r"a\.parquet: .* holds 2, but .* name 2 classes"),
    "two labels": ([FOUR.append_column("label", FOUR["label"])], "more than one column is named l"),
    "label": ([FOUR.rename_columns(["image", "labels"])], "no column label; did you mean labels"),
}


@pytest.mark.parametrize(("tables", "words"), REFUSED.values(), ids=REFUSED)
def test_tables_that_would_be_read_otherwise_are_refused_in_words(tables, words, tmp_path):
    write(tmp_path, dict(zip(("a.parquet", "b.parquet"), tables, strict=False)))
    path = tmp_path if len(tables) > 1 else tmp_path / "a.parquet"
    with pytest.raises(UnreadableSource, match=f"(?s){words}"):
        ingest(settings(path), tmp_path / "manifest")


def test_what_is_missing_in_a_row_or_a_file_is_said(tmp_path):
    cells = pictures(range(40)).to_pylist()
    cells[2]["image"] = None
    cells[3]["image"]["bytes"] = None
    cells[4]["image"]["bytes"] = b"no image"
    cells[5]["label"] = cells[39]["label"] = -1
    cells[6]["image"]["bytes"] = encode(6, "WEBP")
    train = pa.Table.from_pylist(cells, pictures(range(1)).schema)
    files = {"train-0.parquet": train, "test-0.parquet": pictures(range(40, 44), label=-1)}
    root = write(tmp_path / "in", files)
    (root / "README.md").write_text("what it is")
    (root / ".cache").mkdir()
    (root / ".cache" / "old.parquet").write_bytes(b"left over")
    found = ingest(settings(root), tmp_path / "manifest")
    assert {name[-2:]: reason for name, reason in read_reasons(found).items()} == {
        "02": "image missing",
        "03": "bytes missing: there is only the path 3.png",
        "04": "not an image in JPEG, PNG, GIF, BMP or WebP format",
        "05": "label missing",
        "39": "label missing",
    }
    assert len(found.examples) == 35
    said = "test-0.parquet (4 rows) is left out: label is −1, no class, in every row"
    assert said in found.stats["warnings"]


def test_columns_next_to_images_and_numbers_to_predict_are_read_with_them(tmp_path):
    more = {"area": [*map(float, range(12))], "price": [*range(100, 112)], "mask": [b"x"] * 12}
    write(tmp_path, {"a.parquet": pictures(range(12), names=None, **more)})
    columns = {"numeric": ["area"], "label_column": "price", "label_kind": "number"}
    source = image_table.scan(settings(tmp_path / "a.parquet", path_column="image", **columns))
    assert [file.numbers for file in source.files] == [(100.0 + n,) for n in range(12)]
    assert source.listed is not None
    assert source.listed.values[:, 0].tolist() == [*range(12)]


def test_images_are_those_that_a_column_of_paths_names_unless_it_belongs_to_the_bytes(tmp_path):
    rows = pictures(range(2), image=pa.binary())
    rows = rows.append_column("path", pa.array(["0.png", "1.png"]))
    write(tmp_path, {"a.parquet": rows})
    with pytest.raises(UnreadableSource, match=r"the first is 0\.png.*data\.path_column"):
        image_table.scan(settings(tmp_path))
    for name in ("0.png", "1.png"):
        (tmp_path / name).touch()
    assert image_table.scan(settings(tmp_path)).column is None
    write(tmp_path, {"a.parquet": rows.rename_columns(["bytes", "label", "path"])})
    column = image_table.scan(settings(tmp_path)).column
    assert column and column.name == "bytes"


def test_a_column_without_a_value_is_of_any_type_and_folders_of_one_split_are_named(tmp_path):
    rows = pa.table({"x": [1.0, 2.0], "note": pa.nulls(2), "label": ["a", "b"]})
    other = pa.table({"label": ["a", "b"], "note": ["u", "v"], "x": [3.0, 4.0]})
    root = write(tmp_path, {"year=2020/a.parquet": rows, "year=2021/a.parquet": other})
    (tmp_path / "more.csv").write_text("x,note,label\n5.0,w,a\n")
    found = table.scan(settings(root, "table", missing="category"))
    assert found.values[:, 0].tolist() == [1, 2, 3, 4]
    assert found.warnings[0] == "other files of data are left out: more.csv"
    assert found.warnings[1].startswith("files of 2 folders (year=2020, year=2021) are read as one")


def test_what_datasets_has_cached_next_to_its_data_is_left_out(tmp_path):
    texts = pa.table({"text": ["a", "b"], "label": ["x", "y"]})
    names = ("data-0.arrow", "cache-0.arrow", "lower.arrow")
    write(tmp_path, dict.fromkeys(names, texts), "stream")
    said = "other files of data are left out: cache-0.arrow"
    found = text_table.scan(settings(tmp_path, "text_table"))
    assert (found.total, found.warnings) == (4, [said])
    state = {"_data_files": [{"filename": "data-0.arrow"}]}
    (tmp_path / "state.json").write_text(json.dumps(state))
    found = text_table.scan(settings(tmp_path, "text_table"))
    assert (found.total, found.warnings) == (2, [f"{said}, lower.arrow"])


UNSUPERVISED = "unsupervised-00000-of-00001"
SPLIT_FILES = {  # kind of file, source, what is left out, and what names it
    "Parquet by its file": ("{}.parquet", "table", UNSUPERVISED, f"{UNSUPERVISED}.parquet"),
    "by a pattern": ("{}.parquet", "text_table", UNSUPERVISED, "unsup*"),
    "in folders": ("{}/0000.parquet", "text_table", "imdb/unsupervised", "unsupervised"),
    "lines": ("{}.jsonl", "text_lines", "unlabeled", "unlabeled"),
    "compressed name": ("{}.parquet", "text_table", "fold-0-of-5", "fold"),
}


@pytest.mark.parametrize("form", SPLIT_FILES)
def test_files_next_to_those_of_splits_are_left_out_by_name_and_counted(form, tmp_path):
    pattern, source, other, named = SPLIT_FILES[form]
    usual = ("imdb/train", "imdb/test") if "/" in other else ("train-0-of-1", "test-0-of-1")
    for place, name in enumerate((*usual, other)):
        labels = [-1] * 7 if name == other else [0, 1] * 30
        sizes = [n + place / 8 for n in range(len(labels))]
        content = pa.table({"text": [*map(str, sizes)], "size": sizes, "label": labels})
        path = tmp_path / "imdb" / pattern.format(name)
        write(tmp_path / "imdb", {pattern.format(name): content})
        if path.suffix == ".jsonl":
            path.write_text(content.to_pandas().to_json(orient="records", lines=True))
    data = {"path": tmp_path / "imdb", "source": source, "max_reject_fraction": 0.01}
    data |= {"ignore": ["text"]} if source == "table" else {}
    short = other if "/" in other else other.partition("-")[0]
    with pytest.raises(UnreadableSource, match=rf"leave it out with data\.leave_out: \[{short}"):
        ingest(settings(**data), tmp_path / "manifest")
    found = ingest(settings(**data, leave_out=[named]), tmp_path / "manifest")
    assert found.stats["left_out"] == {f"data.leave_out: {named}": 7}
    assert found.classes == ("0", "1") and len(found.for_split("test")) == 60
    with pytest.raises(UnreadableSource, match=r"data\.leave_out: nothing fits no folder"):
        ingest(settings(**data, leave_out=[named, "nothing"]), tmp_path / "manifest")
    with pytest.raises(UnreadableSource, match=r"data\.leave_out leaves out all of its files"):
        ingest(settings(**data, leave_out=["*"]), tmp_path / "manifest")
