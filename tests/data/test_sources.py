"""Each source says what is there in one of three forms, and names what it cannot read."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from tests.support.small_data import write_files
from throughline.data.found import ExampleFile, Rejected
from throughline.data.sources import SCANNERS, fashion_mnist, image_table, open_source
from throughline.data.sources.text_table import KeptCells
from throughline.data.tables.table_columns import check_names, name_columns, read_listing
from throughline.settings import DataSettings
from throughline.shared.errors import DataNotFound, UnreadableSource


def write_idx(path: Path, values: np.ndarray, *, shape: tuple[int, ...] | None = None) -> None:
    """Write a gzipped IDX file of unsigned bytes, whose header may say another shape."""
    header = struct.pack(f">4B{values.ndim}I", 0, 0, 8, values.ndim, *(shape or values.shape))
    path.write_bytes(gzip.compress(header + values.astype(np.uint8).tobytes()))


def test_fashion_mnist_brings_classes_by_name_and_its_own_test_split(tmp_path):
    """Of two images of 2×3 per part, image n of value n."""
    for part, labels in (("train", [9, 0]), ("t10k", [1, 8])):
        write_idx(tmp_path / f"{part}-images-idx3-ubyte.gz", np.full((2, 2, 3), [[[0]], [[1]]]))
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte.gz", np.array(labels))
    scanned = fashion_mnist.scan(DataSettings(source="fashion_mnist", path=str(tmp_path)))
    assert scanned.labels == ["Ankle boot", "T-shirt/top", "Trouser", "Bag"]
    assert scanned.ids == ["train/00000", "train/00001", "test/00000", "test/00001"]
    assert scanned.splits == [None, None, "test", "test"]
    assert scanned.values.shape == (4, *scanned.schema.input.shape) == (4, 2, 3, 1)
    assert scanned.values[:, 0, 0, 0].tolist() == [0, 1, 0, 1]


def test_an_idx_file_that_is_not_what_its_header_says_is_named(tmp_path):
    path = tmp_path / "file.gz"
    with pytest.raises(DataNotFound, match=r"file\.gz is missing; set `data\.fetch"):
        fashion_mnist.read_idx(path, dimensions=1)
    write_idx(path, np.arange(5), shape=(6,))
    with pytest.raises(UnreadableSource, match=r"holds 5 values, but its header says \(6,\)"):
        fashion_mnist.read_idx(path, dimensions=1)
    with pytest.raises(UnreadableSource, match="not an IDX file of unsigned bytes with 3 dim"):
        fashion_mnist.read_idx(path, dimensions=3)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(UnreadableSource, match="not a complete GZIP file"):
        fashion_mnist.read_idx(path, dimensions=1)


def test_rows_of_an_image_table_are_files_or_rejected_with_their_reason(tmp_path):
    rows = "path,label,split\na.png,007,test\nb.png,,\n,cat,\nc.png,cat,tset\n"
    write_files(tmp_path, {"images.csv": rows, **dict.fromkeys(("a.png", "b.png", "c.png"), "")})
    path = str(tmp_path / "images.csv")
    scanned = image_table.scan(DataSettings(source="image_table", path=path))
    (found,) = scanned.files
    assert found == ExampleFile(id="a.png", path=tmp_path / "a.png", label="007", split="test")
    assert scanned.rejected == [
        Rejected(id="row 2: b.png", reason="label missing"),
        Rejected(id="row 3", reason="path missing"),
        Rejected(id="row 4: c.png", reason="split is not one of train, validation, test: tset"),
    ]


def test_an_image_table_may_be_named_by_the_folder_that_holds_its_images(tmp_path):
    write_files(tmp_path, {"images.csv": "path,label\na.png,cat\n", "a.png": ""})
    by_table, by_folder = (
        image_table.scan(DataSettings(source="image_table", path=str(path)))
        for path in (tmp_path / "images.csv", tmp_path)
    )
    assert by_folder.files == by_table.files and not by_folder.warnings
    assert "does not watch" in by_table.warnings[0]
    (tmp_path / "other.tsv").write_text("id\n1\n")
    words = r"columns, .*: images.csv \(label, path\); other.tsv \(id\); .*data.leave_out"
    with pytest.raises(UnreadableSource, match=words):
        image_table.scan(DataSettings(source="image_table", path=str(tmp_path)))


def test_cells_are_known_when_all_are_there():
    columns = {"numeric": ["size"], "categorical": ["color"], "missing_values": ["NA"]}
    columns |= {"missing": {"size": "median", "color": "category"}}
    target = {"label_column": "price", "label_kind": "number"}
    settings = DataSettings(source="text_table", path="items.csv", **columns, **target)
    kept = KeptCells(path=Path("items.csv"), settings=settings, names=("size", "color", "price"))
    rows = [(" 1,5", "NA", "10"), ("2,25", "red", "11"), ("", "red", "x"), ("4", "blue", "13")]
    found = read_listing(kept.make_table(rows))
    assert found.columns.columns.categories == (("", "blue", "red"),)
    np.testing.assert_array_equal(found.columns.values, [[1.5, 0], [2.25, 2], [np.nan, 2], [4, 1]])
    np.testing.assert_array_equal(found.numbers, [[10], [11], [np.nan], [13]])
    assert found.problems == [None, None, "label is not a number: 'x'", None]
    assert found.label_kind == "number"
    assert found.dialect == ["numbers have decimal commas (data.decimal sets it)"]


def test_names_are_given_once_and_are_not_those_of_the_examples():
    settings = DataSettings(source="text_table", path="x", numeric=["text", "label"])
    with pytest.raises(UnreadableSource) as refusal:
        named = name_columns(settings, "text_column")
        named |= {"data.text_column": ["review"]}
        check_names(Path("x"), settings, named, input_name="text")
    assert "label (data.label_column and data.numeric)" in str(refusal.value)
    assert "a column that the model sees is named text, like the text itself" in str(refusal.value)


@pytest.mark.parametrize("source", ["table", "text_table", "image_table"])
def test_tables_in_a_folder_are_one_with_the_splits_that_their_names_say(tmp_path, source):
    """As published: one of them is another table, and one has no labels."""
    tables = {
        "train.csv": "text,size,label\na.png,1.5,x\nb.png,2.5,y\n",
        "valid.csv": "label,text,size\ny,a.png,1.25\n",
        "test.csv": "text,size,label\nb.png,2,x\n",
    }
    others = ("more/part.csv", ".old.csv", "README.txt", "part.csv.gz", "part.txt")
    write_files(tmp_path, {**tables, **dict.fromkeys(("a.png", "b.png", *others), "")})
    settings = DataSettings(source=source, path=str(tmp_path), path_column="text", ignore=["text"])

    def splits(found):
        listed = {"image_table": "files", "text_table": "documents"}.get(source)
        return [one.split for one in getattr(found, listed)] if listed else found.splits

    found = SCANNERS[source](settings)
    assert splits(found) == ["test", "train", "train", "validation"]
    said = "other files of data are left out: more/part.csv, part.csv.gz, part.txt"
    assert said in found.warnings
    (tmp_path / "sample_submission.csv").write_text("text,label\na.png,x\n")
    with pytest.raises(UnreadableSource, match=r"data\.leave_out: \[sample_submission\]"):
        SCANNERS[source](settings)
    chosen = settings.model_copy(update={"leave_out": ["sample_submission", "valid.csv"]})
    found = SCANNERS[source](chosen)
    assert splits(found) == ["test", None, None]
    left_out = ("data.leave_out: sample_submission", "data.leave_out: valid.csv")
    assert found.left_out == dict.fromkeys(left_out, 2)
    (tmp_path / "test.csv").rename(tmp_path.parent / f"{tmp_path.name}.csv")
    (tmp_path / "test.csv").symlink_to(tmp_path.parent / f"{tmp_path.name}.csv")
    assert splits(SCANNERS[source](chosen)) == ["test", None, None]
    (tmp_path / "test.csv").unlink()
    (tmp_path / "test.csv").write_text("text,size\na.png,1.5\n")
    with pytest.raises(UnreadableSource, match=r"ones: test\.csv \(none\); train\.csv \(label\)"):
        SCANNERS[source](chosen)


def test_files_that_git_lfs_has_not_fetched_are_named(tmp_path):
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 12345\n"
    write_files(tmp_path, {"a/1.txt": "A text.", "a/2.txt": pointer, "b/3.txt": pointer})
    settings = DataSettings(source="text_folder", path=str(tmp_path))
    words = r"a/2\.txt is a pointer of Git LFS, one of 2; get .*git lfs pull"
    with pytest.raises(UnreadableSource, match=words), open_source(settings, out=tmp_path / "out"):
        pass
    chosen = settings.model_copy(update={"leave_out": ["a/2.txt", "b"]})
    with open_source(chosen, out=tmp_path / "out") as (found, _):
        assert [one.id for one in found.documents] == ["a/1.txt"]
