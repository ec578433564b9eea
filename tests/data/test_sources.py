"""Each source says what is there in one of three forms, and names what it cannot read."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from throughline.data.sources import fashion_mnist, file_folder, image_table, time_series
from throughline.data.sources.base import ExampleFile, Rejected
from throughline.data.sources.tabular import read_split, read_table
from throughline.settings import DataSettings
from throughline.shared.errors import DataNotFound, UnreadableSource

TABLE = DataSettings(source="table", path="unused")


def write_idx(path: Path, values: np.ndarray, *, shape: tuple[int, ...] | None = None) -> None:
    """Write a gzipped IDX file of unsigned bytes, whose header may say another shape."""
    header = bytes((0, 0, 8, values.ndim)) + struct.pack(
        f">{values.ndim}I", *(shape or values.shape)
    )
    path.write_bytes(gzip.compress(header + values.astype(np.uint8).tobytes()))


def write_fashion(folder: Path, *, labels: dict[str, list[int]]) -> DataSettings:
    """Write the four files with two images of 2×3 per part, image n of value n."""
    for part in ("train", "t10k"):
        images = np.full((2, 2, 3), [[[0]], [[1]]])
        write_idx(folder / f"{part}-images-idx3-ubyte.gz", images)
        write_idx(folder / f"{part}-labels-idx1-ubyte.gz", np.array(labels[part]))
    return DataSettings(source="fashion_mnist", path=str(folder))


def test_fashion_mnist_brings_classes_by_name_and_its_own_test_split(tmp_path):
    scanned = fashion_mnist.scan(write_fashion(tmp_path, labels={"train": [9, 0], "t10k": [1, 8]}))
    assert scanned.labels == ["Ankle boot", "T-shirt/top", "Trouser", "Bag"]
    assert scanned.ids == ["train/00000", "train/00001", "test/00000", "test/00001"]
    assert scanned.splits == [None, None, "test", "test"]
    assert scanned.values.shape == (4, *scanned.schema.input.shape) == (4, 2, 3, 1)
    assert scanned.values[:, 0, 0, 0].tolist() == [0, 1, 0, 1]


def test_fashion_mnist_needs_a_label_for_each_image(tmp_path):
    settings = write_fashion(tmp_path, labels={"train": [9, 0], "t10k": [1]})
    with pytest.raises(UnreadableSource, match="2 test images but 1 labels"):
        fashion_mnist.scan(settings)


def test_an_idx_file_that_is_not_what_its_header_says_is_named(tmp_path):
    path = tmp_path / "file.gz"
    with pytest.raises(DataNotFound, match=r"file\.gz is missing; set `data\.fetch"):
        fashion_mnist.read_idx(path, dimensions=1)
    write_idx(path, np.arange(5), shape=(6,))
    with pytest.raises(UnreadableSource, match=r"holds 5 values, its header says \(6,\)"):
        fashion_mnist.read_idx(path, dimensions=1)
    with pytest.raises(UnreadableSource, match="not an IDX file of unsigned bytes with 3 dim"):
        fashion_mnist.read_idx(path, dimensions=3)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(UnreadableSource, match="not a complete GZIP file"):
        fashion_mnist.read_idx(path, dimensions=1)


def test_class_folders_name_the_classes_and_nothing_is_passed_over_in_silence(tmp_path):
    for name in ("bird/owl/1.JPG", "cat/2.png", "cat/.hidden.png", "cat/notes.txt", "3.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "dog").mkdir()
    (tmp_path / "tomcat").symlink_to("cat")
    scanned = file_folder.scan(DataSettings(source="image_folder", path=str(tmp_path)))
    assert scanned.files == [
        ExampleFile(id="bird/owl/1.JPG", path=tmp_path / "bird/owl/1.JPG", label="bird/owl"),
        ExampleFile(id="cat/2.png", path=tmp_path / "cat/2.png", label="cat"),
    ]
    assert {item.id: item.reason for item in scanned.rejected} == {
        "3.png": "is outside any class folder",
        "tomcat": "folder is a link to cat, which is listed itself",
    }
    assert scanned.empty_classes == ["dog"]


def test_a_folder_without_class_folders_is_refused_with_what_is_there(tmp_path):
    (tmp_path / "1.png").touch()
    with pytest.raises(DataNotFound, match=r"1\.png: is outside any class folder"):
        file_folder.scan(DataSettings(source="image_folder", path=str(tmp_path)))
    with pytest.raises(DataNotFound, match="is not a folder"):
        file_folder.scan(DataSettings(source="image_folder", path=str(tmp_path / "1.png")))


def test_rows_of_an_image_table_are_files_or_rejected_with_their_reason(tmp_path):
    path = tmp_path / "images.csv"
    path.write_text("path,label,split\na.png,007,test\nb.png,,\n,cat,\nc.png,cat,tset\n")
    scanned = image_table.scan(DataSettings(source="image_table", path=str(path)))
    assert scanned.files == [
        ExampleFile(id="a.png", path=tmp_path / "a.png", label="007", split="test")
    ]
    assert scanned.rejected == [
        Rejected(id="row 2: b.png", reason="label missing"),
        Rejected(id="row 3", reason="path missing"),
        Rejected(id="row 4: c.png", reason="split is not one of train, validation, test: tset"),
    ]


def test_an_image_table_may_be_named_by_the_folder_that_holds_its_images(tmp_path):
    table = tmp_path / "images.csv"
    table.write_text("path,label\na.png,cat\n")
    by_table, by_folder = (
        image_table.scan(DataSettings(source="image_table", path=str(path)))
        for path in (table, tmp_path)
    )
    assert by_folder.files == by_table.files and not by_folder.warnings
    assert "does not watch" in by_table.warnings[0]
    (tmp_path / "other.tsv").touch()
    with pytest.raises(DataNotFound, match=r"holds 2 tables \(images.csv, other.tsv\)"):
        image_table.scan(DataSettings(source="image_table", path=str(tmp_path)))


def test_a_tsv_is_read_with_tabs(tmp_path):
    (tmp_path / "table.tsv").write_text("text\tlabel\na, b\tx\n")
    table = read_table(tmp_path / "table.tsv", TABLE)
    assert (table.cells("text"), table.cells("label")) == (["a, b"], ["x"])


def test_what_is_no_table_is_named(tmp_path):
    path = tmp_path / "table.parquet"
    with pytest.raises(DataNotFound, match=r"table\.parquet does not exist"):
        read_table(path, TABLE)
    path.write_text("height,label\n")
    with pytest.raises(UnreadableSource, match="is not a readable Parquet table"):
        read_table(path, TABLE)


@pytest.mark.parametrize(
    ("value", "split", "reason"),
    [
        (" train ", "train", None),
        (float("nan"), None, None),
        ("", None, None),
        ("dev", None, "split is not one of train, validation, test: dev"),
        (["train"], None, "split is no name: ['train']"),
    ],
)
def test_a_table_may_name_a_row_s_split(value, split, reason):
    assert read_split(value) == (split, reason)


def test_a_series_has_the_numeric_columns_in_the_order_of_time(tmp_path):
    path = tmp_path / "series.csv"
    path.write_text("day,place,heat,rain\n2026-01-01,x,1,0.5\n2026-01-02,y,2,0.25\n")
    series = time_series.scan(DataSettings(source="time_series", path=str(path), time_column="day"))
    assert (series.schema.input.columns.names, series.schema.input.shape) == (
        ("heat", "rain"),
        (2,),
    )
    assert series.values.dtype == np.float32
    assert series.values.tolist() == [[1, 0.5], [2, 0.25]]


def test_a_row_that_a_series_lacks_is_warned_of(tmp_path):
    path = tmp_path / "series.csv"
    days = [f"2026-01-{day:02d}" for day in range(1, 32) if day not in (9, 20, 21)]
    settings = DataSettings(source="time_series", path=str(path), time_column="day")
    for times in (days, [day[-2:].lstrip("0") for day in days]):
        rows = [f"{day},{number / 8}" for number, day in enumerate(times)]
        path.write_text("\n".join(["day,heat", *rows]))
        (warning,) = time_series.scan(settings).warnings
        assert warning.startswith("day grows 2 times more than 1.5 times as much as it does from")
        assert f"first before row 9 ({times[7]}, {times[8]})" in warning
    path.write_text("\n".join(["day,heat", *rows[:8]]))
    assert time_series.scan(settings).warnings == []


def test_nanoseconds_are_in_the_order_of_time(tmp_path):
    path = tmp_path / "series.csv"
    path.write_text("at,heat\n1700000000000000000,1.5\n1700000000000000001,2.5\n")
    series = time_series.scan(DataSettings(source="time_series", path=str(path), time_column="at"))
    assert series.values.tolist() == [[1.5], [2.5]]


def test_one_array_is_a_series_of_one_column(tmp_path):
    np.save(tmp_path / "series.npy", np.arange(4))
    series = time_series.scan(DataSettings(source="time_series", path=str(tmp_path / "series.npy")))
    assert series.schema.input.columns.names == ("column_0",)
    assert series.values.tolist() == [[0], [1], [2], [3]]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([1.0, 1e300], "row 2, column column_0 is 1e\\+300"),
        ([1.0, np.nan], "row 2, column column_0 is nan"),
        ([0, 1_700_000_001], "float32 keeps the first seven digits"),
        ([98765432.1, 98765432.4], "column_0 holds numbers such as .*, or save float32 if"),
    ],
)
def test_an_array_that_float32_does_not_hold_is_refused(tmp_path, values, reason):
    np.save(tmp_path / "series.npy", values)
    with pytest.raises(UnreadableSource, match=reason):
        time_series.scan(DataSettings(source="time_series", path=str(tmp_path / "series.npy")))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("day,heat\n1,1\n2,\n3,\n", "row 2, column heat is missing, and 1 more values"),
        ("day,heat\n1,1\n2,inf\n3,1\n", "row 2, column heat is 'inf', no number"),
        ("day,heat\n1,1\n2,1e300\n3,1\n", "row 2, column heat exceeds the range of float32"),
        ("day,heat\n1,1\n3,1\n2,1\n", "day does not increase in row 3"),
        ("day,heat\n1,1\n1,1\n", "day does not increase in row 2"),
        ("day,place\n1,x\n2,y\n", "no numeric column; set data.numeric"),
        ("day,heat\n2026-01-01,1\nsoon,2\n", "day in row 2 is 'soon', neither a number nor"),
        ("day,heat\n01/12/2026,1\n02/01/2026,2\n", r"several ways.* row 2 \(02/01/2026\); write"),
        ("day,heat\n1700000000000000001,1\n1700000000000000000,2\n", "not increase in row 2"),
        ("day,heat\n01.12.2026,1\n02.01.2026,2\n", "day does not increase in row 2"),
    ],
    ids=[
        "gap",
        "infinite",
        "too large",
        "backwards",
        "doubled",
        "no numbers",
        "no date",
        "two ways",
        "nanoseconds",
        "day first",
    ],
)
def test_a_series_with_gaps_or_out_of_order_is_refused_by_row(tmp_path, text, reason):
    path = tmp_path / "series.csv"
    path.write_text(text)
    with pytest.raises(UnreadableSource, match=reason):
        time_series.scan(DataSettings(source="time_series", path=str(path), time_column="day"))
