"""Files that a table lists, and files that change while they are read."""

import os
from pathlib import Path

import pytest

from tests.support.small_data import data_settings, save_photos, write_files
from throughline.data import ingest as stage
from throughline.data.ingest import ingest
from throughline.data.local_files import list_files
from throughline.data.sources import image_table
from throughline.settings import DataSettings
from throughline.shared.errors import UnreadableSource


def scan(tmp_path: Path, names: str, files: str, **changes):
    write_files(tmp_path, dict.fromkeys(files.split(), ""))
    rows = [f'"{name}",{"ab"[number % 2]}' for number, name in enumerate(names.split())]
    (tmp_path / "list.csv").write_text("\n".join(["path,label", *rows]), encoding="utf-8")
    return image_table.scan(DataSettings(source="image_table", path=str(tmp_path), **changes))


@pytest.mark.parametrize(
    ("names", "files", "rule"),  # names in a list, files next to it, and how the names are read
    [
        ("a/1.png b/2.png", "a/1.png b/2.png", ""),
        ("0a1b2c 3d", "0a1b2c.jpg 3d.jpg", "suffix (added: .jpg)"),
        ("1 2", "1.jpg 2.PNG", "suffix (added: .PNG, .jpg)"),
        ("cat.1 cat.2", "cat.1.jpg cat.2.jpg", "(added: .jpg)"),
        ("cat.1.jpg x.jpg", "a/cat.1.jpg a/x.jpg", "(added: a)"),
        ("1.png 2.png", "a/1.png b/2.png", "(added: a, b)"),
        ("1 2", "a/1.jpg a/2.jpg 1.txt", "(added: .jpg); they lack their folder (added: a)"),
        ("a/1.png b/1.png", "x/a/1.png x/b/1.png", "(added: x)"),
        (r"a\1.png b\1.png", "a/1.png b/1.png", "backslashes separate"),
        ("/k/x/in/1.png /k/x/in/2.png", "in/1.png in/2.png test/1.png", "k/x is from another pl"),
        (r"C:\x\a\1.png C:\x\a\2.png", "a/1.png a/2.png", "C:/x is from"),
        ("s3://b/x/1.png s3://b/x/2.png", "1.png 2.png", "s3:/b/x is from"),
        ("../a/1.png ../a/2.png", "a/1.png a/2.png", ".. is from another place and was left out"),
        ("/m/a/1.png /m/a/2.png", "1.png 2.png", "m/a is from another"),
        ("1 2", "1.png 2.png old/1.png", "(added: .png)"),  # below the root first
        ("1.dcm 2.dcm", "1.png 2.png", "files differ in suffix or case"),
        ("A/1.JPG a/2", "a/1.jpg a/2.png", "files differ in suffix or case"),
        ("猫 собака", "x/猫.png x/собака.png", "(added: x)"),
    ],
)
def test_names_are_read_by_one_rule_which_is_said(names, files, rule, tmp_path):
    found = scan(tmp_path, names, files)
    count = len(names.split())
    assert [file.id for file in found.files] == files.split()[:count]
    assert all(file.path == tmp_path / file.id for file in found.files)
    assert [*found.notes.values()] == [count] * bool(rule)
    assert rule in "".join(found.notes)


def test_names_that_are_paths_stay_and_the_others_follow_one_rule(tmp_path):
    found = scan(tmp_path, "1 2.png 3", "1.png 2.png 3.png more/list.csv")
    assert [file.id for file in found.files] == ["1.png", "2.png", "3.png"]
    assert found.warnings == ["other files of data are left out: more/list.csv"]
    assert [*found.notes.values()] == [2]


@pytest.mark.parametrize(
    ("names", "files", "words"),
    [
        ("a b", "a.jpg a.png b.png", "a fits .*: a.jpg or a.png"),
        ("1.png", "x/1.png y/1.png y/2.png", "1.png fits .*: x/1.png or"),
        ("v/1.png t/2.png", "t/1.png t/2.png", r"1 of 2 files, such as t/2\.png, but not v/1\.png"),
        ("/a/1.png /b/2.png", "1.png 2.png", r"the first is /a/1\.png, "),
        ("A B", "x.png b.png", r"first is A, and .* holds b\.png"),
        ("1 2", "1.txt 2.txt", r"first is 1, and .* holds no images"),
        ("1 2 3", "1.png 2.png", "the first is 1, "),
        ("a b", "a/1.png b/1.png", "the first is a, "),
    ],
)
def test_other_names_are_refused_with_what_is_there(names, files, words, tmp_path):
    with pytest.raises(UnreadableSource, match=rf"list\.csv: column path: .*{words}"):
        scan(tmp_path, names, files)


def test_as_many_files_may_be_missing_as_rejects_are_allowed(tmp_path):
    found = scan(tmp_path, "1 2 3", "x/1.png x/2.png", max_reject_fraction=0.4)
    assert [file.id for file in found.files] == ["x/1.png", "x/2.png", "3"]


@pytest.fixture
def root(tmp_path) -> Path:
    """Class folders with three files."""
    names = ("cat/1.jpg", "cat/2.jpg", "bird/owl/3.jpg")
    return write_files(tmp_path / "in", {name: name for name in names})


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("bird/owl/4.jpg", lambda file: file.touch()),
        ("cat/1.jpg", lambda file: file.write_text("1")),
        ("cat/2.jpg", lambda file: os.utime(file, ns=(0, 1))),
        ("cat/2.jpg", lambda file: file.unlink()),
    ],
    ids=["added", "of another size", "of another time", "removed"],
)
def test_a_file_that_changes_until_all_has_been_read_is_named(root, tmp_path, name, change):
    listed = list_files(root, out=tmp_path / "manifest")
    listed.check_unchanged()
    change(root / name)
    with pytest.raises(UnreadableSource, match=rf"/in/{name}\S* changed while ingest was reading"):
        listed.check_unchanged()
    (root / "more.jpg").touch()
    with pytest.raises(UnreadableSource, match="and 1 more changed"):
        listed.check_unchanged()


def test_what_no_source_reads_and_what_ingest_writes_may_change(root, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (root / "elsewhere").symlink_to(tmp_path / "elsewhere")
    listed = list_files(root, out=root / "manifest")
    (root / "cat" / ".1.jpg.part").touch()
    (tmp_path / "elsewhere" / "4.jpg").touch()
    for name in ("manifest", "manifest.0.partial"):
        (root / name).mkdir()
        (root / name / "examples.parquet").touch()
    listed.check_unchanged()


def test_ingest_refuses_a_file_that_arrives_while_it_reads(tmp_path, monkeypatch):
    """DVC would record it as ingested, and never run ingest for it."""
    root = save_photos(tmp_path / "in", 20, "a", "b", suffix="png")
    settings = data_settings(root)

    def add_afterwards(*arguments, examine=stage.examine):
        found = examine(*arguments)
        (root / "a" / "late.png").write_bytes((root / "a" / "00.png").read_bytes())
        return found

    with monkeypatch.context() as patched:
        patched.setattr(stage, "examine", add_afterwards)
        with pytest.raises(UnreadableSource, match=r"/a/late\.png changed while ingest"):
            ingest(settings, tmp_path / "manifest", inspections=tmp_path / "kept")
    assert not (tmp_path / "manifest").exists()
    manifest = ingest(settings, tmp_path / "manifest", inspections=tmp_path / "kept")
    assert len(manifest.examples) + len(manifest.rejected) == 21
