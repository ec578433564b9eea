"""Each source says what is there in one of three forms, and names what it cannot read."""

import gzip
import os
import struct
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.small_data import data_settings, write_files
from throughline.data.encodings.base import RejectedValue
from throughline.data.encodings.texts import check_encoding, inspect_text
from throughline.data.examination import write_documents
from throughline.data.found import Document, ExampleFile, Rejected
from throughline.data.ingest import ingest
from throughline.data.manifest import map_documents
from throughline.data.sources import SCANNERS, fashion_mnist, open_source
from throughline.data.sources.text_table import KeptCells, read_fields
from throughline.data.tables.table_columns import check_names, name_columns, read_listing
from throughline.settings import DataSettings
from throughline.shared.errors import DataNotFound, InvalidParams, UnreadableSource


def scan(source: str, path: Path, **more):
    return SCANNERS[source](DataSettings(source=source, path=str(path), **more))


def write_idx(path: Path, values: np.ndarray, *, shape: tuple[int, ...] | None = None) -> None:
    """Write a gzipped IDX file of unsigned bytes, whose header may say another shape."""
    header = struct.pack(f">4B{values.ndim}I", 0, 0, 8, values.ndim, *(shape or values.shape))
    path.write_bytes(gzip.compress(header + values.astype(np.uint8).tobytes()))


def test_fashion_mnist_brings_classes_by_name_and_its_own_test_split(tmp_path):
    """Of two images of 2×3 per part, image n of value n."""
    for part, labels in (("train", [9, 0]), ("t10k", [1, 8])):
        write_idx(tmp_path / f"{part}-images-idx3-ubyte.gz", np.full((2, 2, 3), [[[0]], [[1]]]))
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte.gz", np.array(labels))
    scanned = scan("fashion_mnist", tmp_path)
    assert scanned.labels == ["Ankle boot", "T-shirt/top", "Trouser", "Bag"]
    assert scanned.ids == ["train/00000", "train/00001", "test/00000", "test/00001"]
    assert scanned.splits == [None, None, "test", "test"]
    assert scanned.values.shape == (4, *scanned.schema.input.shape) == (4, 2, 3, 1)
    assert scanned.values[:, 0, 0, 0].tolist() == [0, 1, 0, 1]
    for labels in (np.array([1, 10]), np.zeros(10_000)):
        images = np.zeros((len(labels), 1, 1))
        write_idx(tmp_path / "t10k-images-idx3-ubyte.gz", images)
        write_idx(tmp_path / "t10k-labels-idx1-ubyte.gz", labels)
        with pytest.raises(UnreadableSource, match="not those of Fashion-MNIST, but perhaps"):
            scan("fashion_mnist", tmp_path)


def test_an_idx_file_that_is_not_what_its_header_says_is_named(tmp_path):
    path = tmp_path / "file.gz"
    with pytest.raises(DataNotFound, match=r"file\.gz is missing; set `data\.fetch"):
        fashion_mnist.read_idx(path, dimensions=1)
    write_idx(path, np.arange(5), shape=(6,))
    cases = {r"holds 5 values, but its header says \(6,\)": (path.read_bytes(), 1)}
    cases["not an IDX file of unsigned bytes with 3 dim"] = (path.read_bytes(), 3)
    cases["not a complete GZIP file"] = (path.read_bytes()[:-9], 1)
    cases["not an IDX file of unsigned bytes with 1 dim"] = (gzip.compress(bytes((0, 0, 8, 1))), 1)
    for words, (content, dimensions) in cases.items():
        path.write_bytes(content)
        with pytest.raises(UnreadableSource, match=words):
            fashion_mnist.read_idx(path, dimensions=dimensions)


def test_rows_of_an_image_table_are_files_or_rejected_with_their_reason(tmp_path):
    rows = "path,label,split\na.png,007,test\nb.png,,\n,cat,\nc.png,cat,tset\n"
    write_files(tmp_path, {"images.csv": rows, **dict.fromkeys(("a.png", "b.png", "c.png"), "")})
    paths = (tmp_path / "images.csv", tmp_path)
    by_table, by_folder = (scan("image_table", path) for path in paths)
    (found,) = by_table.files
    assert found == ExampleFile(id="a.png", path=tmp_path / "a.png", label="007", split="test")
    assert by_table.rejected == [
        Rejected(id="row 2: b.png", reason="label missing"),
        Rejected(id="row 3", reason="path missing"),
        Rejected(id="row 4: c.png", reason="split is not one of train, validation, test: tset"),
    ]
    assert by_folder.files == by_table.files and not by_folder.warnings
    assert "does not watch" in by_table.warnings[0]


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
    named = name_columns(settings, "text_column") | {"data.text_column": ["review"]}
    said = r"(?s)label \(data.label_column and data.numeric\).* is named text, like the text itself"
    with pytest.raises(UnreadableSource, match=said):
        check_names(Path("x"), settings, named, input_name="text")


@pytest.mark.parametrize("source", ["table", "text_table", "image_table"])
def test_tables_in_a_folder_are_one_with_the_splits_that_their_names_say(tmp_path, source):
    tables = {
        "train.csv": "text,size,label\na.png,1.5,x\nb.png,2.5,y\n",
        "valid.csv": "label,text,size\ny,a.png,1.25\n",
        "test.csv": "text,size,label\nb.png,2,x\n",
    }
    others = ("more/part.csv", ".old.csv", "README.txt", "part.csv.gz", "part.txt")
    write_files(tmp_path, {**tables, **dict.fromkeys(("a.png", "b.png", *others), "")})
    columns = {"path_column": "text", "ignore": ["text"]}
    chosen = {"leave_out": ["sample_submission", "valid.csv"], **columns}

    def splits(found):
        listed = {"image_table": "files", "text_table": "documents"}.get(source)
        return [one.split for one in getattr(found, listed)] if listed else found.splits

    found = scan(source, tmp_path, **columns)
    assert splits(found) == ["test", "train", "train", "validation"]
    said = "other files of data are left out: more/part.csv, part.csv.gz, part.txt"
    assert said in found.warnings
    (tmp_path / "sample_submission.csv").write_text("text,label\na.png,x\n")
    with pytest.raises(UnreadableSource, match=r"data\.leave_out: \[sample_submission\]"):
        scan(source, tmp_path, **columns)
    test = tmp_path / "test.csv"
    test.symlink_to(test.rename(tmp_path.parent / f"{tmp_path.name}.csv"))
    found = scan(source, tmp_path, **chosen)
    assert splits(found) == ["test", None, None]
    left_out = ("data.leave_out: sample_submission", "data.leave_out: valid.csv")
    assert found.left_out == dict.fromkeys(left_out, 2)
    test.unlink()
    test.write_text("text,size\na.png,1.5\n")
    with pytest.raises(UnreadableSource, match=r"ones: test\.csv \(none\); train\.csv \(label\)"):
        scan(source, tmp_path, **chosen)


@pytest.mark.parametrize("source", ["table", "text_table", "text_table.parquet", "text_lines"])
@pytest.mark.parametrize(
    ("cells", "settings", "refused"),
    [
        (("Training", "PublicTest", "PrivateTest"), {}, "Training 9, PublicTest 9, PrivateTest 9"),
        (("train", "valid", ""), {}, "train 9, valid 9"),
        (("Training", "PublicTest", "PrivateTest"), {"ignore": ["Usage"]}, ""),
        (("train", "test", "bus"), {}, ""),
        (("train", "train set", None), {}, ""),
        (("validation", "test", "test2"), {}, ""),
    ],
)
def test_an_official_split_under_another_name_is_refused(
    tmp_path, source, cells, settings, refused
):
    rows = [(f"words {at}", at / 4, "ab"[at % 2], cells[at % 3]) for at in range(27)]
    table = pd.DataFrame(rows, columns=["text", "size", "label", "Usage"])
    source, _, suffix = source.partition(".")
    path = tmp_path / f"in.{suffix or ('jsonl' if source == 'text_lines' else 'csv')}"
    if suffix:
        table.to_parquet(path)
    elif source == "text_lines":
        table.to_json(path, orient="records", lines=True)
    else:
        (table.drop(columns="text") if source == "table" else table).to_csv(path, index=False)

    def read():
        return [*getattr(scan(source, path, **settings), "documents", ())]

    if not refused:
        read()
        return
    words = rf"column Usage names splits \({refused}\).*pop\('Usage'\).*data\.ignore: \[Usage\]"
    with pytest.raises(UnreadableSource, match=words):
        read()


def test_folders_of_listed_images_name_splits_as_class_folders_do(tmp_path):
    def splits(*names, column="n", **settings):
        rows = "".join(f"{name},{at % 2},train\n" for at, name in enumerate(names))
        write_files(
            tmp_path, {"list.csv": f"path,label,{column}\n{rows}", **dict.fromkeys(names, "")}
        )
        return [one.split for one in scan("image_table", tmp_path, **settings).files]

    names = ("in/train/a.png", "in/valid/b.png", "in/test/c.png")
    assert splits(*names) == ["train", "validation", "test"]
    assert splits(*names, column="split") == ["train"] * 3, "the column counts"
    assert splits(*names, layout="class") == splits(*names, "in/more/d.png")[:3] == [None] * 3


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


SCRIPTS = {"hindi": "भेड़िया और मेमना", "japanese": "狼と子羊。ｶﾅ", "german": "Lämmchen, ﬁne Maße"}


def test_documents_are_utf_8_whatever_their_encoding_and_lie_back_to_back(tmp_path):
    files = {f"{name}/1.txt": text.encode("utf-16") for name, text in SCRIPTS.items()}
    write_files(tmp_path / "in", files)
    source = scan("text_folder", tmp_path / "in", encoding="utf-16")
    rows, rejected = write_documents(source, tmp_path, encoding="utf-16")
    stored = map_documents(tmp_path)
    assert not rejected
    places = zip(rows["label"], rows["row"], rows["bytes"], strict=True)
    assert {name: bytes(stored[at : at + size]).decode() for name, at, size in places} == SCRIPTS


def test_a_text_is_unmarked_and_not_binary_and_its_encoding_is_known(tmp_path):
    assert inspect_text("für".encode("gb18030"), encoding="gb18030") == "für".encode()
    for content in ("\ufeffwolf".encode(), "\ufeffwolf"):
        assert inspect_text(content, encoding="utf-8") == b"wolf", "without its byte order mark"
    for content, reason in {
        "für".encode("utf-16"): "not utf-8: byte 0xff at 0, looks like utf-16",
        bytes(4096): "binary: holds NUL characters",
    }.items():
        with pytest.raises(RejectedValue, match=f"^{reason}$"):
            inspect_text(content, encoding="utf-8")
    with pytest.raises(InvalidParams, match=r"data\.encoding: utf-9 is not an encoding"):
        scan("text_folder", tmp_path, encoding="utf-9")
    check_encoding("utf-16")
    with pytest.raises(InvalidParams, match="files of lines cannot be read in utf-16"):
        check_encoding("utf-16", lines=True)


def test_a_folder_per_class_gives_a_document_per_file_and_other_files_are_rejected_unread(tmp_path):
    write_files(tmp_path, {"a/ok.txt": b"fine", "b/x/ok.md": b"buy", "b/x/c.bin": b"?"})
    (tmp_path / "none").mkdir()
    source = scan("text_folder", tmp_path)
    found = [(one.id, one.label, one.content) for one in source.documents]
    assert found == [("a/ok.txt", "a", b"fine"), ("b/x/ok.md", "b/x", b"buy")]
    assert (source.total, source.empty_classes) == (2, ["none"])
    huge = tmp_path / "a" / "huge.txt"
    with huge.open("wb") as file:
        file.truncate(1 << 40)
    (tmp_path / "a" / "away.txt").symlink_to("/etc/hostname")
    os.mkfifo(tmp_path / "a" / "pipe.txt")
    (tmp_path / "a" / "gone.txt").symlink_to(tmp_path / "a" / "missing")
    source = scan("text_folder", tmp_path, max_bytes=len(b"fine"), follow_links=False)
    rejected = {item.id: item.reason for item in source.documents if isinstance(item, Rejected)}
    assert rejected == {
        "a/away.txt": "leads outside the data root",
        "a/gone.txt": f"link to nothing: {tmp_path / 'a' / 'missing'} is not there",
        "a/huge.txt": "larger than data.max_bytes: 1,099,511,627,776 bytes",
        "a/pipe.txt": "is not a regular file",
    }


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_tables_give_a_document_per_row(tmp_path, suffix):
    texts = [*SCRIPTS.values(), "two\nlines, 'quoted' \"twice\"", "NA", "long " * 40_000]
    frame = pd.DataFrame({"text": texts, "label": [*"ababab"], "split": ["", "test", *[""] * 4]})
    path = tmp_path / f"table{suffix}"
    if suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep="\t" if suffix == ".tsv" else ",", encoding="utf-8-sig")
    found = [(one.content, one.label, one.split) for one in scan("text_table", path).documents]
    assert found == [*zip(texts, "ababab", [None, "test", *[None] * 4], strict=True)]


def test_bytes_of_parquet_that_are_no_utf_8_are_rejected_with_their_row(tmp_path):
    path = tmp_path / "table.parquet"
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())):
        content = pa.array([b"fine", b"caf\xe9", None])
        broken = pa.Array.from_buffers(pa.string(), 3, content.buffers(), content.null_count)
        texts = broken.dictionary_encode() if pa.types.is_dictionary(kind) else broken.cast(kind)
        pq.write_table(pa.table({"label": ["a", "b", "c"], "text": texts}), path)
        source = scan("text_table", path)
        rows, rejected = write_documents(source, tmp_path, encoding="utf-8")
        assert rows["label"].tolist() == ["a"]
        assert [item.reason for item in rejected] == ["not utf-8: byte 0xe9 at 3", "text missing"]


def test_a_row_that_cannot_be_used_is_rejected_and_the_others_are_not(tmp_path):
    path, cells = tmp_path / "table.csv", b"fine,a,\nno class,,\n,a,\n\xe9t\xe9,a,\nmore,a,,\n"
    path.write_bytes(b"text,label,split\n" + cells + b"typed,a,tset\nlast,b,\n")
    source = scan("text_table", path)
    rows, rejected = write_documents(source, tmp_path, encoding="utf-8")
    assert rows["id"].tolist() == ["row 00000001", "row 00000007"]
    assert {item.id[-1]: item.reason for item in rejected} == {
        "2": "label missing",
        "3": "text missing",
        "4": "not utf-8: byte 0xe9 at 0",
        "5": "not as many fields as the header: 4, not 3",
        "6": "split is not one of train, validation, test: tset",
    }


def test_a_class_may_have_any_name_that_fits_on_a_line(tmp_path):
    labels = ["other", "New\xa0York", "a\u2028b", "caf\udce9"]
    content = "\n".join(["text,label", *(f"text {n},{labels[n % 4]}" for n in range(120))])
    (tmp_path / "table.csv").write_bytes(content.encode("utf-8", "surrogateescape"))
    manifest = ingest(data_settings(tmp_path / "table.csv", "text_table"), tmp_path / "manifest")
    assert manifest.classes == ("New\xa0York", "other")
    reasons = " ".join(manifest.rejected["reason"])
    assert reasons.count("has a line break") == reasons.count("label is not utf-8") == 30
    assert len(manifest.rejected) == 60


@pytest.mark.parametrize(
    ("source", "name", "content", "words"),
    [
        ("text_table", "a.csv", "texts,label\n", r"no .* text; did you mean texts\?.*text_column"),
        ("text_table", "a.csv", "a::b\n1::2\n", r"no column text, as no .* in column a::b; set"),
        ("text_table", "a.jsonl", "{}", r"name it \.tsv .* data\.source: text_lines"),
        ("text_table", "nowhere.csv", "", "does not exist"),
        ("text_lines", "a.jsonl", '{"label": "b"}', r"a\.jsonl, line 1: no column text"),
        ("text_lines", "a.txt", "one", r"lines of a single \.txt file have no class"),
        ("text_lines", "a.csv", "one", "neither a file of lines"),
        ("text_lines", "in/spam.txt", "three\rfour\r", r"spam\.txt: its lines end with CR alone"),
    ],
)
def test_what_is_no_file_of_texts_is_refused(tmp_path, source, name, content, words):
    if content:
        write_files(tmp_path, {name: content})
    path = tmp_path / name.removesuffix("/spam.txt")
    with pytest.raises((UnreadableSource, DataNotFound), match=words):
        list(scan(source, path).documents)


def test_lines_that_cannot_be_used_are_rejected(tmp_path):
    lines = {
        b"{text: 1}": "not JSON: ",
        b"[1]": "not a JSON object: list",
        b'{"text": "two", "label": ["a", "b"]}': "label is list, not one name",
        b'{"text": 7, "label": "a"}': "text is int, not a string",
        b'{"text": "\xe9", "label": "a"}': "not utf-8: byte 0xe9 at 10",
        b'{"text": "\\ud800", "label": "a"}': "not Unicode: holds half of a surrogate pair",
        b'{"text": "", "label": "a"}': "empty text",
        b"[" * 100_000: "not JSON: ",
        b'{"text": "one", "label": "a", "label": "b"}': "not JSON: two values for the key 'label'",
    }
    fine = b'{"text": "fine", "label": "a"}'
    (tmp_path / "all.jsonl").write_bytes(b"\n".join([fine, *lines]))
    source = scan("text_lines", tmp_path / "all.jsonl")
    rows, rejected = write_documents(source, tmp_path, encoding="utf-8")
    assert rows["id"].tolist() == ["all.jsonl:00000001"]
    for number, (item, reason) in enumerate(zip(rejected, lines.values(), strict=True), 2):
        assert item.id == f"all.jsonl:{number:08d}"
        cut = len(reason) if reason.endswith(": ") else None  # what the parser says is its own
        assert item.reason[:cut] == reason


def test_lines_of_txt_have_the_class_of_their_file_and_the_largest_size(tmp_path):
    long = b"x" * 100_000
    ham = b"1\r\n\r\n \t\n12345678\n123456789\n%s\n12345678" % long
    hidden = dict.fromkeys(("sub/b.jsonl", "a.jsonl.gz", ".hidden", "x.csv"), b"{}")
    write_files(tmp_path, {"ham.txt": ham, "spam.txt": b"three", **hidden})
    source = scan("text_lines", tmp_path, max_bytes=8)
    kept, rejected = [], []
    for one in source.documents:
        (rejected if isinstance(one, Rejected) else kept).append(one)
    assert [(one.id, one.label, one.content) for one in kept] == [
        ("ham.txt:00000001", "ham", b"1"),
        ("ham.txt:00000004", "ham", b"12345678"),
        ("ham.txt:00000007", "ham", b"12345678"),
        ("spam.txt:00000001", "spam", b"three"),
    ]
    large = [f"larger than data.max_bytes: {size} bytes" for size in ("10", "100,001")]
    assert [one.reason for one in rejected] == large
    assert source.skipped == {".gz": 1, "folder": 1, ".csv": 1}


@pytest.mark.parametrize("marks", [["NA", "-1"], {"text": ["NA"], "label": ["NA", "-1"]}])
def test_values_that_mean_missing_are_neither_texts_nor_classes(marks):
    settings = DataSettings(source="text_lines", path="x", missing_values=marks)
    for fields, reason in (
        ({"text": " NA ", "label": "a"}, "text missing"),
        ({"text": "one", "label": -1}, "label missing"),
    ):
        assert read_fields(fields, "1", settings) == Rejected(id="1", reason=reason)
        other = settings.model_copy(update={"missing_values": {"split": ["NA", "-1"]}})
        assert isinstance(read_fields(fields, "1", other), Document)
    assert isinstance(read_fields({"text": "NA two", "label": "a"}, "1", settings), Document)


def test_files_of_lines_are_of_the_split_that_their_names_say(tmp_path):
    line = b'{"text": "%s", "label": "a"}\n'
    files = {"train.jsonl": line % b"one", "a-test.jsonl": line % b"two", "README.txt": b"Read me."}
    write_files(tmp_path, files)
    (tmp_path / "train.jsonl").open("ab").write(b'{"text": "3", "label": "b", "split": "test"}\n')
    source = scan("text_lines", tmp_path)
    splits = {item.content: (item.label, item.split) for item in source.documents}
    assert splits == {"one": ("a", None), "two": ("a", "test"), "3": ("b", "test")}
    assert source.skipped == {".txt": 1}
    write_files(tmp_path, {"more.jsonl": line % b"four"})
    with pytest.raises(UnreadableSource, match=r"test\.jsonl is named as a split, but more\.json"):
        scan("text_lines", tmp_path)
    source = scan("text_lines", tmp_path, layout="class")
    assert [item.split for item in source.documents] == [None] * 3 + ["test"]
    source = scan("text_lines", tmp_path, layout="class", leave_out=["*-test.jsonl"])
    assert [item.content for item in source.documents] == ["four", "one", "3"]
    assert source.left_out == {"data.leave_out: *-test.jsonl": 1}


def test_a_txt_file_that_is_named_as_a_split_is_no_class_unasked(tmp_path):
    names = {"corpus.README.1.0.txt": b"About it", "License.txt": b"May be used"}
    write_files(tmp_path, {"train.txt": b"one", "valid.txt": b"two", **names})
    with pytest.raises(UnreadableSource, match=r"train\.txt is named as a split, but the class of"):
        scan("text_lines", tmp_path)
    classes = scan("text_lines", tmp_path, layout="class")
    assert [one.label for one in classes.documents] == ["train", "valid"], "others are about them"
    source = scan("text_lines", tmp_path, label_kind="none")
    assert [item.split for item in source.documents] == ["train", "validation"]
    more = {"a.txt": b"3", "toy.txt": b"4", "toy train.txt": b"5"}
    write_files(tmp_path, more)
    source = scan("text_lines", tmp_path, leave_out=["train.txt", "v*"])
    assert [one.label for one in source.documents] == ["a", "toy train", "toy"]
    write_files(tmp_path, {"toy_test.txt": b"6"})
    with pytest.raises(
        UnreadableSource, match=r"toy_test\.txt is named as a split, but the class of"
    ):
        scan("text_lines", tmp_path, leave_out=["train.txt", "v*"])


def test_lines_of_fasttext_are_refused_with_the_command_that_makes_a_table(tmp_path):
    write_files(tmp_path, {"train.ft.txt": b'__label__2 good\n__label__1 a\tbad "one\n'})
    (tmp_path / "test.ft.txt").write_text("__label__1 bad\n")
    with pytest.raises(UnreadableSource, match="as fastText's do; make a table") as refusal:
        scan("text_lines", tmp_path)
    command = str(refusal.value).splitlines()[1]
    assert command.startswith("(printf 'label\\ttext\\n'; sed ") and "> test.ft.tsv" in command
    classes = scan("text_lines", tmp_path, layout="class")
    assert {one.label for one in classes.documents} == {"train.ft", "test.ft"}
