"""Files that a table lists, and files that change while they are read."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.small_data import data_settings, save_photos, write_files
from throughline.data import ingest as stage
from throughline.data.ingest import ingest
from throughline.data.local_files import list_files
from throughline.data.sources import image_table
from throughline.settings import DataSettings
from throughline.shared.errors import UnreadableSource


def scan(tmp_path: Path, names, files, **changes):
    write_files(tmp_path, dict.fromkeys(files, ""))
    lines = [f'"{name}",{"ab"[number % 2]}' for number, name in enumerate(names)]
    (tmp_path / "list.csv").write_text("\n".join(["path,label", *lines]), encoding="utf-8")
    return image_table.scan(DataSettings(source="image_table", path=str(tmp_path), **changes))


# Names in a list, files next to it, and how the names are read.
READ = {
    "paths": (["a/1.png", "b/2.png"], ["a/1.png", "b/2.png"], ""),
    "without a suffix": (["0a1b2c", "3d"], ["0a1b2c.jpg", "3d.jpg"], "suffix (added: .jpg)"),
    "of two suffixes": (["1", "2"], ["1.jpg", "2.PNG"], "suffix (added: .PNG, .jpg)"),
    "with dots and no suffix": (["cat.1", "cat.2"], ["cat.1.jpg", "cat.2.jpg"], "(added: .jpg)"),
    "numbers with zeros": (["0001", "0002"], ["0001.png", "0002.png"], "(added: .png)"),
    "without a folder": (["cat.1.jpg", "x.jpg"], ["a/cat.1.jpg", "a/x.jpg"], "(added: a)"),
    "without one of several": (["1.png", "2.png"], ["a/1.png", "b/2.png"], "(added: a, b)"),
    "without suffix and folder": (
        ["1", "2"],
        ["train/1.jpg", "train/2.jpg", "1.txt"],
        "suffix (added: .jpg); they lack their folder (added: train)",
    ),
    "without the upper folder": (["a/1.png", "b/1.png"], ["x/a/1.png", "x/b/1.png"], "(added: x)"),
    "backslashes": ([r"a\1.png", r"b\1.png"], ["a/1.png", "b/1.png"], "backslashes separate"),
    "backslashes without a suffix": ([r"a\1", r"b\1"], ["a/1.png", "b/1.png"], "(added: .png)"),
    "of another machine": (
        ["/kaggle/input/x/train/1.png", "/kaggle/input/x/train/2.png"],
        ["train/1.png", "train/2.png", "test/1.png"],
        "kaggle/input/x is from another place and was left out",
    ),
    "of Windows": ([r"C:\x\a\1.png", r"C:\x\a\2.png"], ["a/1.png", "a/2.png"], "C:/x is from"),
    "of a bucket": (["s3://b/x/1.png", "s3://b/x/2.png"], ["1.png", "2.png"], "s3:/b/x is from"),
    "a level up": (["../a/1.png", "../a/2.png"], ["a/1.png", "a/2.png"], ".. is from another"),
    "a single part left": (["/m/a/1.png", "/m/a/2.png"], ["1.png", "2.png"], "m/a is from another"),
    "below the root first": (["1", "2"], ["1.png", "2.png", "old/1.png"], "(added: .png)"),
    "of another suffix": (["1.dcm", "2.dcm"], ["1.png", "2.png"], "files differ in suffix or case"),
    "another case": (["A/1.JPG", "a/2"], ["a/1.jpg", "a/2.png"], "files differ in suffix or case"),
    "letters of other scripts": (["猫", "собака"], ["x/猫.png", "x/собака.png"], "(added: x)"),
}


@pytest.mark.parametrize(("names", "files", "rule"), READ.values(), ids=READ)
def test_names_are_read_by_one_rule_which_is_said(names, files, rule, tmp_path):
    found = scan(tmp_path, names, files)
    assert [file.path for file in found.files] == [tmp_path / name for name in files[: len(names)]]
    assert [file.id for file in found.files] == files[: len(names)]
    (said,) = found.notes or [""]
    assert (rule in said) if rule else not said
    assert found.notes == ({said: len(names)} if rule else {})


def test_names_that_are_paths_stay_and_the_others_follow_one_rule(tmp_path):
    found = scan(tmp_path, ["1", "2.png", "3"], ["1.png", "2.png", "3.png", "more/list.csv"])
    assert [file.id for file in found.files] == ["1.png", "2.png", "3.png"]
    assert found.warnings == ["other files of data are left out: more/list.csv"]
    assert [*found.notes.values()] == [2]


REFUSED = {
    "two suffixes": (["a", "b"], ["a.jpg", "a.png", "b.png"], "a fits .*: a.jpg or a.png"),
    "two folders": (["1.png"], ["x/1.png", "y/1.png", "y/2.png"], "1.png fits .*: x/1.png or"),
    "another folder for each": (
        ["val/1.png", "train/2.png"],
        ["train/1.png", "train/2.png"],
        r"has 1 of 2 files, such as train/2\.png, but not val/1\.png",
    ),
    "two machines": (["/a/1.png", "/b/2.png"], ["1.png", "2.png"], r"the first is /a/1\.png, "),
    "another name": (["A", "B"], ["x.png", "b.png"], r"first is A, and .* holds b\.png"),
    "no images": (["1", "2"], ["1.txt", "2.txt"], r"first is 1, and .* holds no images"),
    "a third is missing": (["1", "2", "3"], ["1.png", "2.png"], "the first is 1, "),
    "folders": (["a", "b"], ["a/1.png", "b/1.png"], "the first is a, "),
}


@pytest.mark.parametrize(("names", "files", "words"), REFUSED.values(), ids=REFUSED)
def test_other_names_are_refused_with_what_is_there(names, files, words, tmp_path):
    with pytest.raises(UnreadableSource, match=words) as refused:
        scan(tmp_path, names, files)
    assert "list.csv: column path: " in str(refused.value)
    assert "max_reject_fraction" not in str(refused.value)


def test_as_many_files_may_be_missing_as_rejects_are_allowed(tmp_path):
    found = scan(tmp_path, ["1", "2", "3"], ["x/1.png", "x/2.png"], max_reject_fraction=0.4)
    assert [file.id for file in found.files] == ["x/1.png", "x/2.png", "3"]


@pytest.fixture
def root(tmp_path) -> Path:
    """Class folders with three files."""
    names = ("cat/1.jpg", "cat/2.jpg", "bird/owl/3.jpg")
    return write_files(tmp_path / "in", {name: name for name in names})


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "added": (lambda root: (root / "bird" / "owl" / "4.jpg").touch(), "bird/owl/4.jpg"),
    "of another size": (lambda root: (root / "cat" / "1.jpg").write_text("x"), "cat/1.jpg"),
    "of another time": (lambda root: os.utime(root / "cat" / "2.jpg", ns=(0, 1)), "cat/2.jpg"),
    "removed": (lambda root: (root / "cat" / "2.jpg").unlink(), "cat/2.jpg"),
}


@pytest.mark.parametrize(("make", "name"), CHANGES.values(), ids=CHANGES)
def test_a_file_that_changes_until_all_has_been_read_is_named(root, tmp_path, make, name):
    listed = list_files(root, out=tmp_path / "manifest")
    listed.check_unchanged()
    make(root)
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
