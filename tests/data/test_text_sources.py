"""Texts are read from folders, tables and lines, one by one; what cannot be read says why."""

import os
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.small_data import data_settings, write_files
from throughline.data.encodings.base import RejectedValue
from throughline.data.encodings.texts import check_encoding, inspect_text
from throughline.data.examination import write_documents
from throughline.data.found import Document, Rejected
from throughline.data.ingest import ingest
from throughline.data.manifest import map_documents
from throughline.data.sources import SCANNERS
from throughline.data.sources.text_table import read_fields
from throughline.settings import DataSettings
from throughline.shared.errors import DataNotFound, InvalidParams, UnreadableSource

SCRIPTS = {
    "greek": "Ὁ λύκος καὶ ὁ ἀμνός",
    "hindi": "भेड़िया और मेमना",
    "japanese": "狼と子羊。ｶﾅ",
    "arabic": "الذئبُ والحمَل",
    "german": "Wolf und Lämmchen, ﬁne Maße",
}


def scan(source: str, path: Path, **more):
    return SCANNERS[source](DataSettings(source=source, path=str(path), **more))


def documents_of(source) -> list[Document]:
    return [item for item in source.documents if isinstance(item, Document)]


def found(source) -> list[tuple]:
    """Id, label and text, or id and reason."""
    return [
        (item.id, item.reason)
        if isinstance(item, Rejected)
        else (item.id, item.label, item.content)
        for item in source.documents
    ]


def test_a_folder_per_class_gives_a_document_per_file_and_other_files_are_rejected_unread(tmp_path):
    write_files(tmp_path, {"a/ok.txt": b"fine", "b/x/ok.md": b"buy", "b/x/c.bin": b"?"})
    (tmp_path / "none").mkdir()
    source = scan("text_folder", tmp_path)
    assert found(source) == [("a/ok.txt", "a", b"fine"), ("b/x/ok.md", "b/x", b"buy")]
    assert (source.total, source.empty_classes) == (2, ["none"])
    huge = tmp_path / "a" / "huge.txt"
    with huge.open("wb") as file:
        file.truncate(1 << 40)
    (tmp_path / "a" / "away.txt").symlink_to("/etc/hostname")
    os.mkfifo(tmp_path / "a" / "pipe.txt")
    (tmp_path / "a" / "gone.txt").symlink_to(tmp_path / "a" / "missing")
    source = scan("text_folder", tmp_path, max_bytes=10, follow_links=False)
    rejected = {item.id: item.reason for item in source.documents if isinstance(item, Rejected)}
    assert rejected == {
        "a/away.txt": "leads outside the data root",
        "a/gone.txt": f"link to nothing: {tmp_path / 'a' / 'missing'} is not there",
        "a/huge.txt": "larger than data.max_bytes: 1,099,511,627,776 bytes",
        "a/pipe.txt": "is not a regular file",
    }


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_tables_give_a_document_per_row(tmp_path, suffix):
    """Which may begin with a byte order mark and have long fields."""
    texts = [*SCRIPTS.values(), "two\nlines, 'quoted' \"twice\"", "NA", "null", "long " * 40_000]
    frame = pd.DataFrame({"text": texts, "label": [*"abababbab"], "split": ["", "test", *[""] * 7]})
    path = tmp_path / f"table{suffix}"
    if suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep="\t" if suffix == ".tsv" else ",", encoding="utf-8-sig")
    documents = list(scan("text_table", path).documents)
    assert [item.content for item in documents] == texts
    read = [(item.label, item.split) for item in documents[:3]]
    assert read == [("a", None), ("b", "test"), ("a", None)]


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


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("New\xa0York", ""),
        ("a\u2028b", "has a line break"),
        ("a\x07b", "has characters that cannot be printed"),
        ("caf\udce9", "label is not utf-8"),
    ],
)
def test_a_class_may_have_any_name_that_fits_on_a_line(tmp_path, name, reason):
    lines = [f"text {number},{name if number % 3 else 'other'}" for number in range(60)]
    lines += [f"more {number},third" for number in range(60)]
    content = "\n".join(["text,label", *lines])
    (tmp_path / "table.csv").write_bytes(content.encode("utf-8", "surrogateescape"))
    data = data_settings(tmp_path / "table.csv", "text_table")
    manifest = ingest(data, tmp_path / "manifest")
    assert (name in manifest.classes) == (not reason)
    assert all(reason in said for said in manifest.rejected["reason"])
    assert len(manifest.rejected) == (40 if reason else 0)


def test_a_missing_column_is_named_with_the_nearest_one(tmp_path):
    (tmp_path / "table.csv").write_text("texts,label\na,b\n")
    said = r"no column text; did you mean texts\?.*data\.text_column"
    with pytest.raises(UnreadableSource, match=said):
        list(scan("text_table", tmp_path / "table.csv").documents)
    (tmp_path / "lines.jsonl").write_text('{"body": "a", "label": "b"}\n')
    with pytest.raises(UnreadableSource, match=r"lines\.jsonl, line 1: no column text"):
        list(scan("text_lines", tmp_path / "lines.jsonl").documents)


def test_what_is_no_table_is_refused(tmp_path):
    doubled = [pa.array(["a"]), pa.array(["b"]), pa.array(["c"])]
    pq.write_table(pa.table(doubled, names=["text", "text", "label"]), tmp_path / "two.parquet")
    with pytest.raises(UnreadableSource, match="more than one column is named text"):
        scan("text_table", tmp_path / "two.parquet")
    (tmp_path / "table.jsonl").write_text("{}")
    with pytest.raises(UnreadableSource, match=r"name it \.tsv .* data\.source: text_lines"):
        scan("text_table", tmp_path / "table.jsonl")
    with pytest.raises(DataNotFound, match="does not exist"):
        scan("text_table", tmp_path / "nowhere.csv")


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


def test_lines_of_txt_have_the_class_of_their_file_and_blank_ones_are_none(tmp_path):
    lines = {"ham.txt": b"one\r\n\r\n \t\ntwo\n\n", "spam.txt": b"three", "x.csv": b"no"}
    write_files(tmp_path, lines)
    source = scan("text_lines", tmp_path)
    assert found(source) == [
        ("ham.txt:00000001", "ham", b"one"),
        ("ham.txt:00000004", "ham", b"two"),
        ("spam.txt:00000001", "spam", b"three"),
    ]
    assert source.skipped == {".csv": 1}
    write_files(tmp_path, {"sub/b.jsonl": b"{}", "a.jsonl.gz": b"", ".hidden": b""})
    skipped = scan("text_lines", tmp_path).skipped
    assert skipped == {".gz": 1, "folder": 1, ".csv": 1}
    with pytest.raises(UnreadableSource, match=r"lines of a single \.txt file have no class"):
        scan("text_lines", tmp_path / "ham.txt")
    with pytest.raises(DataNotFound, match="neither a file of lines"):
        scan("text_lines", tmp_path / "x.csv")
    (tmp_path / "spam.txt").write_bytes(b"three\rfour\r")
    with pytest.raises(UnreadableSource, match=r"spam\.txt: its lines end with CR alone"):
        found(scan("text_lines", tmp_path))


def test_a_line_of_the_largest_size_is_a_document_and_a_longer_one_is_none(tmp_path):
    long = b"x" * 100_000
    write_files(tmp_path, {"a.txt": b"12345678\n1\n123456789\n%s\n12345678" % long})
    source = scan("text_lines", tmp_path, max_bytes=8)
    assert [item[-1] for item in found(source)] == [
        b"12345678",
        b"1",
        "larger than data.max_bytes: 10 bytes",
        "larger than data.max_bytes: 100,001 bytes",
        b"12345678",
    ]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"text": " NA ", "label": "a"}, "text missing"),
        ({"text": "one", "label": "NA"}, "label missing"),
        ({"text": "one", "label": -1}, "label missing"),
        ({"text": "NA two", "label": "a"}, None),
    ],
)
def test_values_that_mean_missing_are_neither_texts_nor_classes(fields, reason):
    plain = DataSettings(source="text_lines", path="x")
    assert isinstance(read_fields(fields, "1", plain), Document)
    by_column = {"text": ["NA"], "label": ["NA", "-1"]}
    for marks in (["NA", "-1"], by_column):
        found = read_fields(fields, "1", plain.model_copy(update={"missing_values": marks}))
        assert (found.reason if isinstance(found, Rejected) else None) == reason
    other = plain.model_copy(update={"missing_values": {"split": ["NA", "-1"]}})
    assert isinstance(read_fields(fields, "1", other), Document)


@pytest.mark.parametrize(
    ("content", "encoding", "reason"),
    [
        ("für".encode("latin-1"), "utf-8", "not utf-8: byte 0xfc at 1"),
        ("für".encode("utf-16"), "utf-8", "not utf-8: byte 0xff at 0, looks like utf-16"),
        (bytes(4096), "utf-8", "binary: holds NUL characters"),
        (b"", "utf-8", "empty text"),
    ],
)
def test_a_document_that_cannot_be_used_says_why(content, encoding, reason):
    with pytest.raises(RejectedValue) as error:
        inspect_text(content, encoding=encoding)
    assert str(error.value) == reason


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "gb18030"])
def test_a_document_is_kept_as_utf_8_whatever_its_encoding(encoding):
    for text in SCRIPTS.values():
        assert inspect_text(text.encode(encoding), encoding=encoding) == text.encode()
    for content in ("\ufeffwolf".encode(), "\ufeffwolf"):
        assert inspect_text(content, encoding="utf-8") == b"wolf", "without its byte order mark"


def test_encodings_are_checked_before_anything_is_read(tmp_path):
    with pytest.raises(InvalidParams, match=r"data\.encoding: utf-9 is not an encoding"):
        scan("text_folder", tmp_path, encoding="utf-9")
    check_encoding("utf-16")
    with pytest.raises(InvalidParams, match="files of lines cannot be read in utf-16"):
        check_encoding("utf-16", lines=True)


def test_files_of_lines_are_of_the_split_that_their_names_say(tmp_path):
    line = b'{"text": "%s", "label": "a"}\n'
    files = {"train.jsonl": line % b"one", "a-test.jsonl": line % b"two", "README.txt": b"Read me."}
    write_files(tmp_path, files)
    (tmp_path / "train.jsonl").open("ab").write(b'{"text": "3", "label": "b", "split": "test"}\n')
    source = scan("text_lines", tmp_path)
    splits = {item.content: (item.label, item.split) for item in documents_of(source)}
    assert splits == {"one": ("a", None), "two": ("a", "test"), "3": ("b", "test")}
    assert source.skipped == {".txt": 1}
    write_files(tmp_path, {"more.jsonl": line % b"four"})
    with pytest.raises(UnreadableSource, match=r"test\.jsonl is named as a split, but more\.json"):
        scan("text_lines", tmp_path)
    source = scan("text_lines", tmp_path, layout="class")
    assert [item.split for item in documents_of(source)] == [None] * 3 + ["test"]
    source = scan("text_lines", tmp_path, layout="class", leave_out=["*-test.jsonl"])
    assert [item.content for item in documents_of(source)] == ["four", "one", "3"]
    assert source.left_out == {"data.leave_out: *-test.jsonl": 1}


def test_a_txt_file_that_is_named_as_a_split_is_no_class_unasked(tmp_path):
    names = {"corpus.README.1.0.txt": b"About it", "License.txt": b"May be used"}
    write_files(tmp_path, {"train.txt": b"one", "valid.txt": b"two", **names})
    with pytest.raises(UnreadableSource, match=r"train\.txt is named as a split, but the class of"):
        scan("text_lines", tmp_path)
    classes = scan("text_lines", tmp_path, layout="class")
    assert [item[1] for item in found(classes)] == ["train", "valid"], "others are about them"
    source = scan("text_lines", tmp_path, label_kind="none")
    assert [item.split for item in documents_of(source)] == ["train", "validation"]
    write_files(tmp_path, {"a.txt": b"3"})
    source = scan("text_lines", tmp_path, leave_out=["train.txt", "v*"])
    assert [item[1] for item in found(source)] == ["a"]


def test_documents_lie_back_to_back_where_their_rows_say(tmp_path):
    files = {f"{name}/1.txt": text.encode() for name, text in SCRIPTS.items()}
    source = scan("text_folder", write_files(tmp_path / "in", files))
    rows, rejected = write_documents(source, tmp_path, encoding="utf-8")
    stored = map_documents(tmp_path)
    assert not rejected
    places = zip(rows["label"], rows["row"], rows["bytes"], strict=True)
    assert {name: bytes(stored[at : at + size]).decode() for name, at, size in places} == SCRIPTS
