"""Class folders, and how the layout of folders is read as classes and splits."""

import errno
import os

import numpy as np
import pandas as pd
import pytest

from tests.support.small_data import data_settings, save_photos, write_files
from throughline.data.class_names import compare_splits, find_alike, join_alike, refuse_joined
from throughline.data.ingest import ingest
from throughline.data.rejects import check_rejects
from throughline.data.sources import class_folders
from throughline.data.sources.folder_layout import read_layout
from throughline.settings import DataSettings
from throughline.shared.errors import (
    DataNotFound,
    TooManyRejects,
    UnreadableSource,
    UnusableDataset,
)


def scan(root, *names, **data):
    """The files below a folder, once it holds these, too, and all else that is found there."""
    write_files(root, {name: name for name in names})
    found = class_folders.scan(data_settings(root, **data))
    return {(file.id, file.label, file.split) for file in found.files}, found


def test_what_is_in_a_folder_for_unlabeled_files_is_left_out_and_counted(tmp_path):
    names = ("seg_train/seg_train/sea/1.png", "seg_test/seg_test/sea/2.png", "seg_pred/3.png")
    more = ("seg_test/seg_test/sea/new/4.png", "__MACOSX/sea/._1.png")
    files, found = scan(tmp_path, *names, *more)
    read_as = {(label, split) for _, label, split in files}
    assert read_as == {("sea", None), ("sea", "test"), ("sea/new", "test")}
    assert found.left_out == {"seg_pred is named as data without labels": 1}
    assert len(scan(tmp_path, leave_out=["new"])[0]) == 2


def test_what_an_image_is_is_said_by_its_bytes_not_by_its_name(tmp_path):
    names = ("cat/1.jpg?w=640&id=1", "cat/2", "cat/3.heic", "dog/4.png", "README")
    files = {**dict.fromkeys(names, b"\x89PNG\r\n"), names[0]: "", "cat/notes": "BMW and others"}
    os.mkfifo(write_files(tmp_path, files) / "cat" / "pipe")
    found = scan(tmp_path)[1]
    read = {"cat/notes", *names[:4]}
    assert {file.id for file in found.files} == read, "ingest rejects the notes"
    assert found.skipped == {"without a suffix": 2}


def test_a_class_that_is_lost_stops_ingest_and_one_that_loses_most_is_named(tmp_path):
    names = ("cat/1.png", "dog/2.png", "meta/labels.txt", "bird/.hidden.png")
    others = ("dog/3.tif", "dog/4.tif", "cat/5.tif", "owl/6.heic", "owl/7.heic")
    with pytest.raises(UnreadableSource, match=r"folder owl holds 2 \.heic and no.*\[owl\]"):
        scan(tmp_path, *names, *others)
    _, found = scan(tmp_path, leave_out=["owl"])
    assert found.warnings == ["folder dog: 2 .tif left out, 1 read"]
    assert found.empty_classes == ["bird", "meta"]


def test_masks_next_to_their_images_are_refused_until_a_pattern_leaves_them_out(tmp_path):
    names = [f"{kind}/{n}{end}.png" for kind in "ab" for n in range(5) for end in ("", "_mask")]
    with pytest.raises(UnreadableSource, match=r"10 files are masks of others.*\['\*_mask\.\*'\]"):
        scan(tmp_path, *names)
    assert len(scan(tmp_path, leave_out=["*_mask.*"])[0]) == 10


def test_lists_of_splits_beside_class_folders_are_named(tmp_path):
    lists = ("meta/test.json", "meta/train_test_split.txt", "meta/trainval.txt")
    (said,) = scan(tmp_path, "a/1.png", "b/1.png", *lists)[1].warnings
    assert said.startswith(f"{', '.join(lists)}: named as splits, and not read")
    assert not scan(tmp_path, leave_out=["meta"])[1].warnings


def test_what_is_about_texts_is_no_example_and_a_name_that_leaves_nothing_out_is_refused(tmp_path):
    names = (f"{folder}/{n}.txt" for folder in ("a", "a ", "b") for n in range(30))
    files = {name: name for name in ("README.txt", "a/License", "notes.txt", *names)}
    root = write_files(tmp_path / "in", files)
    settings = data_settings(root, "text_folder", leave_out=["c"])
    with pytest.raises(UnreadableSource, match=r"data\.leave_out: c fits no folder, file"):
        ingest(settings, tmp_path / "out")
    left_out = {"leave_out": ["a/1.txt", "notes.txt"], "max_reject_fraction": 0.0}
    kept = ingest(settings.model_copy(update=left_out), tmp_path / "out")
    assert kept.stats["left_out"] == {"data.leave_out: a/1.txt": 1, "data.leave_out: notes.txt": 1}
    assert kept.classes == ("a", "b") and [*np.bincount(kept.examples["label"])] == [59, 30]


def test_names_that_people_take_for_one_are_named_or_joined():
    labels = ["Cat", "cat", "cat", "cat.", "new york", "new york", "new-york"]
    for how, names in {
        "exact": ["Cat", "cat", "cat.", "new york", "new-york"],
        "ignore_case": ["cat", "cat.", "new york", "new-york"],
        "ignore_marks": ["cat", "new york"],
    }.items():
        rows, classes = join_alike(pd.DataFrame({"label": labels}), sorted({*labels}), how)
        assert sorted(classes) == names and {*rows["label"]} == {*names}
    said = "classes that differ only by case, blanks or marks: 'Cat' and 'cat'; join them"
    assert find_alike("classes", ["Cat", "cat", "new york"], "join them") == [said]
    assert find_alike("classes", ["cat", "new york"], "join them") == []


@pytest.mark.parametrize(
    ("classes", "settings", "joined"),
    [
        (("a", "b", "c", "a|b", "a|c", "a|b|c"), {}, r"3 of 6 classes join others, such as a\|b;"),
        (("7", "12", "3", "7,12", "3, 7", "3,12"), {}, "3 of 6 classes join others, such as 7,12;"),
        (("a", "b", "c", "a;b", "b;c", "c;a"), {"label_kind": "class"}, ""),
        (("a", "b", "c", "a;b", "b;c", "c;a"), {"source": "image_folder"}, ""),
        (("1", "1,5", "2", "2,5", "3", "3,5", "5"), {}, ""),
        (("maillot", "maillot, tank suit", "crane", "tench, Tinca tinca"), {}, ""),
        (("S|red", "S|blue", "M|red", "M|blue"), {}, ""),
    ],
)
def test_cells_of_several_classes_are_no_classes_unasked(classes, settings, joined):
    read = DataSettings(**{"source": "image_table", "path": "x.csv", **settings})
    if not joined:
        refuse_joined(classes, read)
        return
    with pytest.raises(UnreadableSource, match=f"{joined} .*data.label_kind: class"):
        refuse_joined(classes, read)


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("leads outside the data root", "cp -rL"),
        ("is outside any class folder", r"data\.leave_out: \[0\.png, 1\.png, .*4\.png, …\]"),
        ("its name is not as in data.layout: class.*", r"leave_out: \[FOLDER\] if their folder"),
        ("not utf-8: byte 0xe9 at 3", "set data.encoding, such as cp1252 or latin-1"),
        ("duplicate of b/0.png", r"or train on all with data\.duplicates: keep\.$"),
        ("duplicate of test/cat/{}.png, there in the test split", "remove them from the other"),
        ("duplicate of pets/cat/{}.png", "all/pets holds copies of the files of pets: set .*"),
    ],
)
def test_one_reason_for_nearly_all_rejects_has_a_remedy_of_its_own(tmp_path, reason, remedy):
    rows = [(f"all/pets/cat/{number}.png", reason.format(number)) for number in range(9)]
    rows.append(("b", "empty file"))
    rejects = pd.DataFrame(rows, columns=["id", "reason"]).assign(cause="of one kind")
    with pytest.raises(TooManyRejects, match=remedy):
        check_rejects(rejects, total=50, limit=0.1, folder=tmp_path)
    check_rejects(rejects, total=100, limit=0.1, folder=tmp_path)


def test_a_disk_that_fails_makes_no_rejects(tmp_path, monkeypatch):
    def fail(path, *arguments, real=os.open, **more):
        if str(path).endswith("7.png"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path, *arguments, **more)

    settings = data_settings(save_photos(tmp_path / "photos", 20, "cat", suffix="png"))
    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(UnreadableSource, match=r"7\.png: cannot be read: .*run the stage again"):
        ingest(settings, tmp_path / "manifest")
    assert not (tmp_path / "manifest").exists()


def test_folders_in_two_spellings_of_unicode_are_refused(tmp_path):
    root = save_photos(tmp_path / "photos", 3, "caf\xe9", "cafe\u0301", "bar", suffix="png")
    with pytest.raises(UnreadableSource, match=r"two classes both look like .* Unicode, "):
        ingest(data_settings(root), tmp_path / "manifest")


def test_class_folders_name_the_classes_and_nothing_is_passed_over_in_silence(tmp_path):
    (tmp_path / "dog").mkdir()
    with pytest.raises(DataNotFound, match=r"3\.png: is outside any class folder"):
        scan(tmp_path, "3.png")
    with pytest.raises(DataNotFound, match="is not a folder"):
        scan(tmp_path / "3.png")
    names = ("bird/owl/1.JPG", "cat/2.png", "cat/.hidden.png", "cat/notes.txt")
    files, found = scan(tmp_path, *names)
    assert files == {("bird/owl/1.JPG", "bird/owl", None), ("cat/2.png", "cat", None)}
    assert [file.path for file in found.files] == [tmp_path / name for name, *_ in sorted(files)]
    assert [(one.id, one.reason) for one in found.rejected] == [
        ("3.png", "is outside any class folder")
    ]
    assert found.empty_classes == ["dog"]


TRAIN, VALID, TEST, NONE = "train", "validation", "test", None
OUTSIDE = "is outside any class folder"


def read(*folders, layout="auto", classes=True):
    counts = dict.fromkeys(folders, 10)
    places = read_layout(counts, layout=layout, root="my/data", classes=classes)
    return [place.problem or (place.split, place.label) for place in places.values()]


@pytest.mark.parametrize(
    ("folders", "read_as"),
    [
        (("train/a/b", "Val/a/b", "test/a/b"), [(TRAIN, "a/b"), (VALID, "a/b"), (TEST, "a/b")]),
        (("train/a", "train/train", "test/a"), [(TRAIN, "a"), (TRAIN, "train"), (TEST, "a")]),
        (("w", "w/train/a", "w/test/a"), [OUTSIDE, (TRAIN, "a"), (TEST, "a")]),
        (("a/b/train", "c/train", "c/val"), [(TRAIN, "a/b"), (TRAIN, "c"), (VALID, "c")]),
        (("chest/chest/train/ill", "chest/chest/test/ill"), [(TRAIN, "ill"), (TEST, "ill")]),
        (("2750/River", "2750/Forest"), [(NONE, "River"), (NONE, "Forest")]),
        (("train1/a", "train2/a", "val2017/a"), [(TRAIN, "a"), (TRAIN, "a"), (VALID, "a")]),
        (("with_mask", "no_mask"), [(NONE, "with_mask"), (NONE, "no_mask")]),
        (("train tracks", "test tubes"), [(NONE, "train tracks"), (NONE, "test tubes")]),
        (("contest", "strain", "猫"), [(NONE, name) for name in ("contest", "strain", "猫")]),
    ],
)
def test_folders_that_can_be_read_in_one_way_are(folders, read_as):
    assert read(*folders) == read_as


@pytest.mark.parametrize(
    ("layout", "folder", "read_as"),
    [
        ("split/class", "train/a/b", (TRAIN, "a/b")),
        ("class/split", "a/b/val", (VALID, "a/b")),
        ("split/class/**", "train/n1/x", (TRAIN, "n1")),
        ("*/class", "fold1/cat", (NONE, "cat")),
        ("split", "TestImages", (TEST, "")),
        ("split/class", "other/a", "is outside any split's folder"),
        ("*/class", "cat", OUTSIDE),
    ],
)
def test_a_layout_says_what_each_part_is_and_what_has_no_place_is_named(layout, folder, read_as):
    assert read(folder, layout=layout) == [read_as]


@pytest.mark.parametrize(
    ("folders", "reason"),
    [
        (("train/cat", "test/test"), r"test/test, for test, .*leave_out: \[test\]"),
        (("train", "test"), r"named as a split and holds files without a class"),
        (("bus", "car", "train"), r"train is named as a split, but bus is not; set data"),
        (("cats_train", "cats_test", "dogs_train", "dogs_test"), r"cats_test and cats_train look"),
        (("fold1/cat", "fold2/cat"), r"seem to be parts of the data.*data\.layout: \*/class"),
        (("batch_1", "batch_2"), r"seem to be parts of the data.*layout: class"),
        (("in/a", "in/b", "out/a", "out/b"), r"data\.layout: \*/class if these.*class/\*\*"),
        (("d/train/a", "d/test/a", "d/d/b"), r", but d is not.*\[d/d\] or \[d/test, d/train\], "),
        (("w/train/a", "w/val/c"), r"val/c, for validation, holds c but.*\[w/val\].*image_table"),
        (("i/JPEGImages/a", "i/Annotations/a"), r"as for segmentation or detection"),
        (("VOC/JPEGImages", "VOC/SegmentationClass"), r"as for segmentation or detection"),
        (("train/images", "train/masks", "val/images", "val/masks"), r"as for segmentation"),
        (("labeled/cat", "unlabeled"), r"data without labels.*leave_out: \[unlabeled\]"),
        (("train/val/a", "val/train/a"), r"names several splits"),
    ],
)  # fmt: skip
def test_others_are_refused_with_what_was_seen_and_the_key(folders, reason):
    with pytest.raises(UnreadableSource, match=f"(?s)my/data: .*{reason}") as refusal:
        read(*folders)
    assert min(folders) in str(refusal.value) and "10 files" in str(refusal.value)
    assert {split for split, _ in read(*folders, layout="class")} == {None}


def test_where_no_class_is_needed_any_folders_are_read():
    folders = ("a/x", "a/y", "b/x", "b/y", "images", "masks")
    assert [split for split, _ in read(*folders, classes=False)] == [None] * len(folders)


@pytest.mark.parametrize(
    ("layout", "name", "label"),
    [
        ("split/class.*.jpg", "train/cat.0.jpg", "cat"),
        ("*/class_*", "pets/great_pyrenees_12.jpg", "great_pyrenees"),
        ("class+*.jpg", "a+1.jpg", "a"),
        ("split/class.*.jpg", "x/cat.1.jpg", None),
    ],
)
def test_a_class_may_be_in_the_name_of_a_file(tmp_path, layout, name, label):
    files, found = scan(tmp_path, name, "test/dog.0.jpg", "test/a+0.jpg", layout=layout)
    assert {one for at, one, _ in files if at == name} == ({label} if label else set())
    assert (name in {one.id for one in found.rejected}) == (label is None)


@pytest.mark.parametrize("layout", ["splits", "split/split", "**/class", "", "class/*/**/x"])
def test_a_layout_that_says_nothing_is_refused(layout):
    with pytest.raises(ValueError, match="split, class or both, once"):
        DataSettings(source="image_folder", path="x", layout=layout)


def test_splits_that_hold_other_classes_are_said_or_refused():
    balance = {"train": {"cat": 9, "dog": 8, "unsup": 50}, "validation": {"cat": 2, "unsup": 5}}
    both = {**balance, "test": {"cat": 3, "dog": 2, "owl": 4}}
    assert compare_splits(both, {"", "test"}, "x") == [
        "the test split lacks 1 of the 3 classes that are trained on: unsup (50 examples)",
        "training lacks 1 of the 4 classes of other splits: owl (4 examples)",
    ]
    assert compare_splits(balance, {""}, "x") == []
    with pytest.raises(UnusableDataset, match=r"test split has no class that is trained.*owl"):
        compare_splits({**balance, "test": {"owl": 4}}, {"test"}, "x")
