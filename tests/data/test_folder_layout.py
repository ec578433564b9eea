"""How folders of common archives are read, or why they are refused: layouts as people download
them.
"""

from __future__ import annotations

import pytest

from throughline.data.class_names import compare_splits
from throughline.data.sources.folder_layout import read_layout
from throughline.settings import DataSettings
from throughline.shared.errors import UnreadableSource, UnusableDataset

TRAIN, VALID, TEST, NONE = "train", "validation", "test", None


def read(*folders, layout="auto", classes=True):
    counts = dict.fromkeys(folders, 10)
    places = read_layout(counts, layout=layout, root="my/data", classes=classes)
    return [(place.split, place.label) for place in places.values()]


@pytest.mark.parametrize(
    ("folders", "read_as"),
    [
        (("train/a/b", "Val/a/b", "test/a/b"), [(TRAIN, "a/b"), (VALID, "a/b"), (TEST, "a/b")]),
        (("seg_train/seg_train/sea", "seg_test/seg_test/sea"), [(TRAIN, "sea"), (TEST, "sea")]),
        (("train/train/a", "test/a"), [(TRAIN, "a"), (TEST, "a")]),
        (("train/a", "train/train", "test/a"), [(TRAIN, "a"), (TRAIN, "train"), (TEST, "a")]),
        (("w", "w/train/a", "w/test/a"), [(NONE, ""), (TRAIN, "a"), (TEST, "a")]),
        (
            ("seg_train/seg_train/sea", "seg_test/seg_test/sea", "seg_pred"),
            [(TRAIN, "sea"), (TEST, "sea"), ("unlabeled", "")],
        ),
        (("training_set/training_set/a", "test_set/test_set/a"), [(TRAIN, "a"), (TEST, "a")]),
        (("TrainImages/a/b", "TestImages/a/b"), [(TRAIN, "a/b"), (TEST, "a/b")]),
        (("car/test", "car/train", "dog/train"), [(TEST, "car"), (TRAIN, "car"), (TRAIN, "dog")]),
        (("a/b/train", "c/train", "c/val"), [(TRAIN, "a/b"), (TRAIN, "c"), (VALID, "c")]),
        (("chest/chest/train/ill", "chest/chest/test/ill"), [(TRAIN, "ill"), (TEST, "ill")]),
        (("2750/River", "2750/Forest"), [(NONE, "2750/River"), (NONE, "2750/Forest")]),
        (("train2017/dog", "val2017/dog"), [(TRAIN, "dog"), (VALID, "dog")]),
        (("train tracks", "test tubes"), [(NONE, "train tracks"), (NONE, "test tubes")]),
        (("x-val/a", "TRAIN/a", "testdata/a"), [(VALID, "a"), (TRAIN, "a"), (TEST, "a")]),
        (("contest", "strain", "猫"), [(NONE, name) for name in ("contest", "strain", "猫")]),
        (("part1", "whole"), [(NONE, "part1"), (NONE, "whole")]),
        (("train/a", "test/a", "test/b"), [(TRAIN, "a"), (TEST, "a"), (TEST, "b")]),
    ],
)  # fmt: skip
def test_folders_that_can_be_read_in_one_way_are(folders, read_as):
    assert read(*folders) == read_as


@pytest.mark.parametrize(
    ("folders", "reason"),
    [
        (("train/n01/images", "val/images"), r"for validation, holds images and no.*image_table"),
        (("train/cat", "test/test"), r"test/test, for test, .*leave_out: \[test\]"),
        (("train/cat", "train/dog", "test"), r"for test, holds files without a class folder"),
        (("train/a", "train/b", "valid/c"), r"valid/c, for validation, holds c and no class"),
        (("train", "test"), r"named as a split and holds files without a class"),
        (("bus", "car", "train"), r"train is named as a split, bus is not; set data"),
        (("train/a", "test/a", "meta"), r"test is named as a split, meta is not.*\[meta\]"),
        (("data/train/a", "data/test/a", "data/more/a"), r"named as a split, more is not"),
        (("cats_train", "cats_test", "dogs_train", "dogs_test"), r"cats_test and cats_train look"),
        (("x/train/good", "x/test/good", "x/ground_truth/bad"), r"ground_truth is not"),
        (("fold1/cat", "fold2/cat"), r"seem to be parts of the data.*data\.layout: \*/class"),
        (("batch_1", "batch_2"), r"seem to be parts of the data.*layout: class"),
        (("train_val/a", "test/a"), r"test is named as a split, train_val is not"),
        (("a/x/1", "a/x/2", "a/y/1", "a/y/2"), r"a/x and a/y hold folders.*\*/\*/class"),
        (("in/a", "in/b", "out/a", "out/b"), r"data\.layout: \*/class if these.*class/\*\*"),
        (("d/train/a", "d/test/a", "d/d/b"), r"\[d/d\] or \[d/test, d/train\], which"),
        (("w/train/a", "w/train/b", "w/val/c"), r"data\.leave_out: \[w/val\]"),
        (("i/images/a", "i/segmentations/a"), r"as for segmentation"),
        (("c/images/a", "c/images/b", "masks/a", "masks/b"), r"c/images and masks hold folders of"),
        (("images", "masks"), r"as for segmentation"),
        (("JPEGImages/a", "Annotations/a"), r"as for segmentation or detection"),
        (("labeled/cat", "unlabeled"), r"what has no label.*leave_out: \[unlabeled\]"),
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
    ("layout", "folder", "place"),
    [
        *[("split/class", "train/a/b", (TRAIN, "a/b")), ("class/split", "a/b/val", (VALID, "a/b"))],
        *[("split/class/**", "train/n1/x", (TRAIN, "n1")), ("class/**", "bird", (NONE, "bird"))],
        *[("class/**", "bird/owl/x", (NONE, "bird")), ("*/class", "fold1/cat", (NONE, "cat"))],
        *[("split", "TestImages", (TEST, "")), ("class", "train", (NONE, "train"))],
        *[("*/split/class", "x/dev/a", (VALID, "a"))],
        *[("split/class", name, "is outside any split's folder") for name in ("other/a", "")],
        ("split/class", "train", "is outside any class folder"),
        ("*/class", "cat", "is outside any class folder"),
    ],
)
def test_a_layout_says_what_each_part_is_and_what_has_no_place_is_named(layout, folder, place):
    (found,) = read_layout({folder: 1}, layout=layout, root="my/data", classes=True).values()
    assert found.problem == place or (found.split, found.label) == place


@pytest.mark.parametrize("layout", ["splits", "split/split", "**/class", "*", "", "class/*/**/x"])
def test_a_layout_that_says_nothing_is_refused(layout):
    with pytest.raises(ValueError, match="split and class, each at most once"):
        DataSettings(source="image_folder", path="x", layout=layout)


def test_splits_that_hold_other_classes_are_said_or_refused():
    balance = {"train": {"cat": 9, "dog": 8, "unsup": 50}, "validation": {"cat": 2, "unsup": 5}}
    both = {**balance, "test": {"cat": 3, "dog": 2, "owl": 4}}
    assert compare_splits(both, {"", "test"}, "x") == [
        "1 of 3 classes that are trained on have no example in the test split: unsup (50 examples)",
        "1 classes are judged by and never trained on: owl (4 examples)",
    ]
    assert compare_splits(balance, {""}, "x") == []
    with pytest.raises(UnusableDataset, match=r"no class of training is in the test split.*owl"):
        compare_splits({**balance, "test": {"owl": 4}}, {"test"}, "x")
