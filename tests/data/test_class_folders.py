"""Folders are classes, or splits that hold classes: never the one in place of the other, and what
is left out is counted.
"""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest
from PIL import Image

from throughline.data.ingest import ingest
from throughline.data.sources import file_folder
from throughline.data.sources.base import ExampleFile
from throughline.settings import DataSettings
from throughline.shared.errors import DataNotFound, UnreadableSource


def lay_out(root, *names):
    for number, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".png":
            Image.new("RGB", (4, 4), (number, number * 7 % 256, 3)).save(path)
        else:
            path.write_text(f"text {number}")
    return root


def scan(root, **data):
    found = file_folder.scan(DataSettings(source="image_folder", path=str(root), **data))
    return {(file.id, file.label, file.split) for file in found.files}, found


def test_folders_named_as_splits_are_splits(tmp_path):
    lay_out(tmp_path, "train/cat/1.png", "Val/cat/2.png", "test/bird/owl/3.png")
    files, _ = scan(tmp_path)
    assert files == {
        ("train/cat/1.png", "cat", "train"),
        ("Val/cat/2.png", "cat", "validation"),
        ("test/bird/owl/3.png", "bird/owl", "test"),
    }
    (tmp_path / "Val" / "cat" / "2.png").unlink()
    files, _ = scan(tmp_path)
    assert ("train/cat/1.png", "cat", None) in files, "some of training is to validate"


@pytest.mark.parametrize(
    "names",
    [
        ("training_set/cat/1.png", "test_set/cat/2.png"),
        ("data/train/cat/1.png", "data/test/cat/2.png"),
    ],
)
def test_a_class_that_is_in_folders_like_splits_is_not_two(tmp_path, names):
    lay_out(tmp_path, *names)
    with pytest.raises(UnreadableSource, match="look like one class in two splits"):
        scan(tmp_path)
    files, _ = scan(tmp_path, folders="classes")
    assert len({label for _, label, _ in files}) == 2
    lay_out(tmp_path / "other", "train tracks/1.png", "test tubes/2.png", "dev boards/a/3.png")
    assert len(scan(tmp_path / "other")[0]) == 3


def test_a_disk_that_fails_makes_no_rejects(tmp_path, monkeypatch):
    lay_out(tmp_path / "photos", *(f"cat/{number}.png" for number in range(40)))
    real = os.open

    def fail(path, *arguments, **more):
        if str(path).endswith("7.png"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path, *arguments, **more)

    monkeypatch.setattr(os, "open", fail)
    settings = DataSettings(
        source="image_folder", path=str(tmp_path / "photos"), max_reject_fraction=0.5
    )
    with pytest.raises(UnreadableSource, match=r"7\.png: cannot be read: .*run the stage again"):
        ingest(settings, tmp_path / "manifest")
    assert not (tmp_path / "manifest").exists()


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["train/a/1.png", "cats/2.png"], "train is named as a split, cats is not"),
        (["train/1.png", "test/2.png"], "test is named as a split and holds files without a class"),
    ],
)
def test_where_two_readings_are_possible_a_key_decides(tmp_path, names, words):
    lay_out(tmp_path, *names)
    with pytest.raises(UnreadableSource, match=words + r".*data\.folders: classes if.*or splits"):
        scan(tmp_path)
    files, _ = scan(tmp_path, folders="classes")
    assert {label for _, label, _ in files} == {name.rpartition("/")[0] for name in names}
    _, found = scan(tmp_path, folders="splits")
    assert [item.reason for item in found.rejected][-1] in (
        "is outside any split's folder",
        "is outside any class folder",
    )


def test_folders_in_two_spellings_of_unicode_are_refused(tmp_path):
    names = [f"{name}/{row}.png" for name in ("caf\xe9", "cafe\u0301", "bar") for row in range(9)]
    lay_out(tmp_path / "photos", *names)
    settings = DataSettings(source="image_folder", path=str(tmp_path / "photos"))
    with pytest.raises(UnreadableSource, match=r"two classes are both .*, in two spellings"):
        ingest(settings, tmp_path / "manifest")


def test_the_first_of_nested_folders_can_be_the_class(tmp_path):
    lay_out(tmp_path, "bird/owl/1.png", "bird/2.png", "fish/cod/3.png")
    assert {label for _, label, _ in scan(tmp_path)[0]} == {"bird/owl", "bird", "fish/cod"}
    assert {label for _, label, _ in scan(tmp_path, class_level="top")[0]} == {"bird", "fish"}


def test_blanks_round_a_class_make_no_other_class_in_folders_files_and_arrays(tmp_path):
    for name in ("cat", "cat ", "dog"):
        (tmp_path / "folders" / name).mkdir(parents=True)
        (tmp_path / "lines").mkdir(exist_ok=True)
        lines = [f"{name} {number}" for number in range(20)]
        (tmp_path / "lines" / f"{name}.txt").write_text("\n".join(lines))
        for line in lines:
            (tmp_path / "folders" / name / f"{line}.txt").write_text(line)
    names = np.resize(["cat", "cat ", "dog"], 60)
    images = np.arange(60 * 4, dtype=np.uint8).reshape(60, 2, 2)
    np.savez(tmp_path / "images.npz", x=images, y=names)
    for source, path in {
        "text_folder": "folders", "text_lines": "lines", "arrays": "images.npz",
    }.items():  # fmt: skip
        settings = DataSettings(source=source, path=str(tmp_path / path))
        manifest = ingest(settings, tmp_path / source)
        assert manifest.classes == ("cat", "dog")
        assert np.bincount(manifest.examples["label"]).tolist() == [40, 20]


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
