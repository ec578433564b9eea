"""NumPy files: which arrays are images and labels, of which split, or what is asked instead."""

import numpy as np
import pytest

from throughline.data.encodings.array_files import JoinedArrays, read_array
from throughline.data.sources import arrays
from throughline.settings import DataSettings
from throughline.shared.errors import UnreadableSource

IMAGES = np.random.default_rng(0).integers(0, 256, (12, 4, 5), np.uint8)
CLASSES = np.arange(12) % 3
COLUMN = CLASSES[:, None]
ONE_HOT = np.eye(3)[CLASSES]
RGB = np.random.default_rng(1).integers(0, 256, (12, 4, 5, 3), np.uint8)


def scan(path, files, *, save=np.savez, **more):
    save(path / "data.npz", **files)
    return arrays.scan(DataSettings(source="arrays", path=str(path / "data.npz"), **more))


def names(features: str, labels: str, *, splits=("train", "test")) -> dict:
    """Arrays of each split, with the name of the split put into these."""
    return {
        pattern.format(split): array
        for split in splits
        for pattern, array in ((features, IMAGES), (labels, CLASSES))
    }


OPEN_TEST, ALL_SPLITS = {None, "test"}, {"train", "validation", "test"}
UNREAD, UNLABELED = "image uint8 (7, 4, 5)", "x_test uint8 (12, 4, 5)"


@pytest.mark.parametrize(
    ("files", "splits", "unread"),
    [
        (names("{}X", "{}Y"), OPEN_TEST, ""),
        (names("X{}", "y{}", splits=("train", "valid", "test")), ALL_SPLITS, ""),
        (names("mnist-{}-imgs", "mnist-{}-labels"), OPEN_TEST, ""),
        ({"arr_1": IMAGES, "arr_0": COLUMN}, {None}, ""),
        ({"data": IMAGES, "targets": CLASSES, "image": IMAGES[:7]}, {None}, UNREAD),
        ({"x": IMAGES, "y": CLASSES, "x_test": IMAGES}, {None}, UNLABELED),
    ],
)
def test_names_of_arrays_say_what_they_are_and_of_which_split(tmp_path, files, splits, unread):
    found = scan(tmp_path, files)
    assert set(found.splits) == splits
    count = len(splits)
    np.testing.assert_array_equal(found.values[:], np.concatenate([IMAGES[..., None]] * count))
    assert list(found.labels) == [str(label) for label in CLASSES] * count
    assert len({*found.ids}) == len(found.values)
    assert found.warnings == ([f"arrays that are not read: {unread}"] if unread else [])


ONE, SPLITS = {"x": IMAGES, "y": CLASSES}, names("x_{}", "y_{}")
NUMBER, CLASS = {"label_kind": "number"}, {"label_kind": "class"}
WORDS = np.array(["owl", "cat", "owl"] * 4)
TURNED = "one-hot label read as the number of its class"


@pytest.mark.parametrize(
    ("labels", "more", "classes", "note"),
    [
        (ONE_HOT.astype(bool), {}, ["0", "1", "2"], TURNED),
        (CLASSES.astype(np.float32), {}, ["0", "1", "2"], ""),
        (CLASSES, NUMBER, [], ""),
        (CLASSES / 2, {}, [], ""),
        (COLUMN * 2 - 1, {}, ["-1", "1", "3"], ""),
        (WORDS[:, None], {}, ["cat", "owl"], ""),
        (WORDS.astype("S"), {}, ["cat", "owl"], ""),
        (CLASSES == 0, {}, ["False", "True"], ""),
    ],
)
def test_labels_are_read_of_columns_one_hot_rows_and_floats(labels, more, classes, note, tmp_path):
    found = scan(tmp_path, {"x": IMAGES, "y": labels}, **more)
    assert (found.classes, dict(found.notes)) == (classes, {note: 12} if note else {})
    assert found.schema.predicts_number == (not classes)
    if classes == ["0", "1", "2"]:
        assert list(found.labels) == [str(label) for label in CLASSES]
    elif not classes:
        assert list(found.labels) == labels.tolist()


@pytest.mark.parametrize(
    ("images", "expected", "note"),
    [
        (np.moveaxis(RGB, -1, 1), RGB, True),
        (IMAGES[:, None], IMAGES[..., None], True),
        (RGB[:, :3], RGB[:, :3], False),  # (n, 3, 5, 3): the channels are last, as documented
    ],
    ids=["colors first", "gray first", "three rows"],
)
def test_images_with_channels_first_are_turned_and_counted(tmp_path, images, expected, note):
    found = scan(tmp_path, {"x": images, "y": CLASSES})
    np.testing.assert_array_equal(found.values[:], expected)
    turned = "channels-first image turned to (height, width, channels)"
    assert found.notes == ({turned: 12} if note else {})


@pytest.mark.parametrize(
    ("files", "more", "said"),
    [
        (
            {f"arr_{n}": array for n, array in enumerate((IMAGES, CLASSES) * 2)},
            {},
            r"there is no array x or y, but arr_0 uint8 \(12, 4, 5\), arr_1 int64 \(12,\)"
            r".*set data\.features and data\.labels",
        ),
        ({"images": IMAGES, "data": IMAGES, "labels": CLASSES}, {}, "is not certain"),
        ({"a": IMAGES, "b": IMAGES}, {}, "is not certain"),
        (ONE, {"features": "z"}, "no array z; known: x, y"),
        (ONE | {"x": IMAGES[:7]}, {"features": "x"}, "one class per image"),
        (ONE | {"y": CLASSES / 2}, CLASS, "not a whole number: 0.5; set data.label_kind: number"),
        (ONE | {"y": CLASSES * np.nan}, {}, "y holds nan at index 0; remove such rows"),
        (SPLITS | {"y_test": WORDS}, NUMBER, "y_test and y_train: text or booleans, but data"),
        (ONE | {"x": RGB[..., :2]}, {}, r"shape \(12, 4, 5, 2\); expected uint8"),
        (ONE | {"x": IMAGES * 1.0}, {}, "dtype float64"),
        (
            SPLITS | {"x_test": IMAGES[:, 1:]},
            {},
            r"x_test and x_train hold images of different sizes, \(3, 5, 1\) and \(4, 5, 1\)",
        ),
    ],
)
def test_arrays_that_are_not_certain_or_of_another_form_are_refused(tmp_path, files, more, said):
    with pytest.raises(UnreadableSource, match=said):
        scan(tmp_path, files, **more)


def test_a_folder_holds_what_an_archive_does_and_each_split_its_own_examples(tmp_path):
    files = {"x_test": IMAGES[:3], "x_train": IMAGES[3:]}
    files |= {"y_test": CLASSES[:3], "y_train": CLASSES[3:]}
    folder = tmp_path / "folder"
    folder.mkdir()
    for name, array in files.items():
        save = np.save if name.startswith("x") else np.savez
        save(folder / f"{name}.{'npy' if save is np.save else 'npz'}", array)
    in_folder = arrays.scan(DataSettings(source="arrays", path=str(folder)))
    for found in (scan(tmp_path, files), in_folder):
        np.testing.assert_array_equal(found.values[:], IMAGES[..., None])
        assert found.splits == ["test"] * 3 + [None] * 9
        assert found.ids[2:4] == ["test/00000002", "train/00000000"]
        assert list(found.labels) == [str(label) for label in CLASSES]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_any_archive_gives_the_arrays_that_were_saved_and_no_pickled_ones(tmp_path, save):
    files = {"c": RGB, "fortran": np.asfortranarray(RGB), "big": CLASSES.astype(">i4")}
    files |= {"empty": RGB[:0], "single": np.float32(3)}
    save(tmp_path / "data.npz", **files)
    for name, array in files.items():
        np.testing.assert_array_equal(read_array(tmp_path / "data.npz", name), array)
    with pytest.raises(UnreadableSource, match=r"x cannot be read .*; pickled arrays are refused"):
        scan(tmp_path, {"x": np.array([{"a": 1}], dtype=object), "y": CLASSES}, save=save)


@pytest.mark.parametrize(
    ("save", "damage", "said"),
    [
        (np.savez, lambda data: data[:6000] + b"?" + data[6001:], "Bad CRC-32"),
        (np.savez_compressed, lambda data: data[:55] + b"\xff" + data[56:], "invalid block type"),
        (np.savez, lambda data: data[:9], "not a zip file"),
    ],
    ids=["mapped", "packed", "cut off"],
)
def test_a_damaged_file_is_named_with_its_member(tmp_path, save, damage, said):
    path = tmp_path / "data.npz"
    save(path, x=np.repeat(RGB, 9, axis=0), y=CLASSES)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UnreadableSource, match=f"data.npz: x cannot be read .*{said}"):
        arrays.scan(DataSettings(source="arrays", path=str(path)))


@pytest.mark.parametrize(
    ("start", "what"),
    [
        (b"MATLAB 5.0 MAT-file", r"a MATLAB file: read it with scipy\.io"),
        (b"\x89HDF\r\n\x1a\n", "an HDF5 file: read"),
        (b"\x80\x04", "a pickle: read"),
        (b"\x1f\x8b", "compressed with GZIP: unpack"),
    ],
)
def test_a_file_of_another_format_is_named_with_how_to_convert_it(tmp_path, start, what):
    path = tmp_path / "data.mat"
    path.write_bytes(start + bytes(99))
    with pytest.raises(UnreadableSource, match=rf"data\.mat is {what}.*numpy\.savez"):
        arrays.scan(DataSettings(source="arrays", path=str(path)))


def test_blocks_of_joined_arrays_are_those_of_one_array():
    joined = JoinedArrays([RGB[:5], RGB[5:6], RGB[6:6], RGB[6:]])
    assert (len(joined), joined.shape, joined.dtype) == (12, RGB.shape, RGB.dtype)
    for start in range(14):
        for stop in range(start, 14):
            np.testing.assert_array_equal(joined[start:stop], RGB[start:stop])
