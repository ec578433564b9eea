"""TFRecord files that others wrote, and values within them, are read as meant or refused."""

import doctest
import gzip
import io
import os
import subprocess
import zlib
from collections import defaultdict

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.csv_tables import write as write_table
from tests.support.external_records import example, png, vectors, write
from tests.support.small_data import data_settings, flip_bit, prepared
from throughline.data import class_names, rejects, split_names
from throughline.data import ingest as stage
from throughline.data.encodings.stored_arrays import read_array
from throughline.data.ingest import ingest
from throughline.data.manifest import read_manifest
from throughline.data.sources import tfrecord
from throughline.settings import DataSettings
from throughline.shared import wording
from throughline.shared.errors import DataNotFound, UnreadableSource

pytestmark = pytest.mark.integration

DRAW = np.random.default_rng(0)
IMAGES = DRAW.integers(0, 256, (6, 4, 5, 1), np.uint8)
FLOATS = DRAW.normal(size=(6, 4, 5)).astype(np.float32)


def tensor(values) -> bytes:
    return tf.io.serialize_tensor(values).numpy()


def proto(values) -> bytes:
    return tf.make_tensor_proto(values).SerializeToString()


def npy(values, **more) -> bytes:
    file = io.BytesIO()
    np.save(file, values, **more)
    return file.getvalue()


def labeled(labels, name="x"):
    return [example(**{name: [float(n)], "label": [label]}) for n, label in enumerate(labels)]


def sequence(lists: dict, **context) -> bytes:
    features = tf.train.Example.FromString(example(**context)).features
    made = tf.train.SequenceExample(context=features)
    for name, steps in lists.items():
        for values in steps:
            made.feature_lists.feature_list[name].feature.add().float_list.value.extend(values)
    return made.SerializeToString(deterministic=True)


def scan(folder, **settings):
    return tfrecord.scan(DataSettings(source="tfrecord", path=str(folder), **settings))


def scan_records(folder, examples, **settings):
    """Scan a folder with one shard more."""
    write(folder / "a.tfrecord", examples)
    return scan(folder, **settings)


def test_the_split_is_read_from_the_words_of_a_path(tmp_path):
    splits = {
        "mnist-test.tfrecord-00000-of-00001": "test",
        "train/contest-1.tfrecord": "train",
        "train/val-1.tfrecord": "validation",
        "val/valid-dev.tfrecord": "validation",
        "mnistTrain0.rec": "train",
        "testdata.rec": "test",
    }
    assert {name: split_names.find_split(name) for name in splits} == splits
    with pytest.raises(UnreadableSource, match=r"may be of several splits: its name holds \w+ and"):
        split_names.find_split("valid_pixels_train-00000-of-00002")
    names = ("strain.rec", "contest.rec")
    assert split_names.find_splits(tmp_path, names) == (dict.fromkeys(names), {})


def test_a_float_label_is_a_number_to_predict(tmp_path):
    found = scan_records(tmp_path, labeled([0.25, 3.0, float("nan")]))
    assert (list(found.labels), found.classes) == ([0.25, 3.0], [])
    assert found.schema.target.encoding.name == "number"
    (item,) = found.rejected
    assert (item.id, item.reason) == ("a.tfrecord/00000002", "label is not a finite number")
    features = {"image/class/label": [0.25], "image/encoded": [png(0)], "other": [3]}
    images = scan_records(tmp_path, [example(**features)])
    assert (images.label_kind, images.files[0].numbers) == ("number", (0.25,))
    assert images.features == {
        "image/class/label": "float × 1",
        "image/encoded": f"bytes: PNG, {len(png(0))} bytes",
        "other": "int64 × 1",
    }


def test_splits_come_from_names_and_validation_is_dealt_where_there_is_none(tmp_path):
    for name in ("train-0.tfrecord", "test-0.tfrecord"):
        write(tmp_path / name, vectors(2))
    assert scan(tmp_path).splits == ["test", "test", None, None]
    write(tmp_path / "val-0.tfrecord", vectors(1))
    assert scan(tmp_path).splits == ["test", "test", "train", "train", "validation"]
    write(tmp_path / "extra-0.tfrecord", vectors(1))
    with pytest.raises(UnreadableSource, match=r"test-0\.tfrecord is named as a split, but extra"):
        scan(tmp_path)


def test_a_label_out_of_range_is_rejected_and_labels_from_1_are_refused(tmp_path):
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    found = scan_records(tmp_path, labeled([0, 1, 5, -1]))
    said = "label beyond the classes: 5, labels.txt names 2"
    assert [(item.id, item.reason) for item in found.rejected] == [("a.tfrecord/00000002", said)]
    assert (list(found.labels), found.classes) == (["cat", "dog", "-1"], ["cat", "dog"])
    found = scan_records(tmp_path, labeled([2, 1, 0]))
    assert [item.reason for item in found.rejected] == [said.replace("5", "2")]
    assert (found.values.tolist(), list(found.labels)) == ([[1], [2]], ["dog", "cat"])
    with pytest.raises(UnreadableSource, match="counts from 1 to 2: every example would get"):
        scan_records(tmp_path, labeled([1, 2]))


SEQUENCE = sequence({"frames": [[1.0], [2.0]], "audio": [[0.5]]}, label=[1], size=[1.0])
OF_CONTEXT = {"input": "size", "label": "label"}
BOTH = {"image": [1.0], "image/encoded": [2.0], "label": [0]}


@pytest.mark.parametrize(
    ("record", "records", "said"),
    [
        (example(**BOTH), {}, "image and image/encoded could both be"),
        (example(pixels=[1.0]), {}, r"data\.records\.input is not set.*pixels \(float × 1\)"),
        (example(pixels=[1.0]), {"input": "pixel"}, "hold: .*; did you mean pixels"),
        (example(image=[b"a", b"b"], label=[0]), {}, r"image holds several values .*\(bytes × 2\)"),
        (example(label=[0]), {"input": "label"}, r"hold label \(int64 × 1\) and no other feature;"),
        (example(x=[1.0], label=[0.0, 1.0, 0.0]), {}, r"label holds several values.*one-hot"),
        (SEQUENCE, {}, r"SequenceExample with the feature lists audio \(1 steps\), frames \(2 st"),
        (SEQUENCE, OF_CONTEXT, r"SequenceExample with the feature lists audio"),
        (sequence({"words": [[1.0]] * 200}), {}, r"SequenceExample with the .*words \(200 steps\)"),
        (png(1), OF_CONTEXT, r"not tf.train.Example, .*: .* \(it is PNG\)"),
        (tensor(IMAGES[0]), OF_CONTEXT, r"it has no features \(it is serialized tensor, uint8 4×5"),
    ],
)  # fmt: skip
def test_what_is_no_single_input_and_label_is_refused(record, records, said, tmp_path):
    with pytest.raises(UnreadableSource, match=said):
        scan_records(tmp_path, [record] * 3, records=records)


def test_a_shard_of_another_schema_is_refused(tmp_path):
    write(tmp_path / "b.tfrecord", vectors(3))
    for other, said in {
        example(x=[1.0, 2.0], label=[b"owl"]): "label is of kind int64, but bytes in others",
        example(x=[1.0, 2.0, 3.0], label=[0]): "x differs in length from record to record",
        b"not an example": "its records are not tf.train.Example",
    }.items():
        with pytest.raises(UnreadableSource, match=said):
            scan_records(tmp_path, [other])


def test_records_that_differ_from_the_rest_are_rejected_with_their_reason(tmp_path):
    odd = {
        example(x=[1.0, 2.0]): "label missing: no feature label",
        example(x=[1.0, 2.0], label=[1, 2]): "label has several values: 2",
        example(x=[1.0, 2.0], label=[b"owl"]): "label has the wrong kind: bytes, not int64",
        example(x=[1.0], label=[1]): "feature x has another length than its shape: 1 values",
        example(x=[1.0, float("inf")], label=[1]): "feature x is not finite",
        example(label=[1]): "feature x missing",
        b"not an example": "not a tf.train.Example: ",
    }
    found = scan_records(tmp_path, [*vectors(20), *odd])
    assert len(found.values) == 20
    for item, reason in zip(found.rejected, odd.values(), strict=True):
        assert item.reason.startswith(reason)


def test_a_record_with_a_wrong_checksum_is_rejected_and_a_shard_cut_off_is_refused(tmp_path):
    path = tmp_path / "a.tfrecord"
    write(path, vectors(4))
    size = path.stat().st_size // 4
    flip_bit(path, size + 20)
    (item,) = scan(tmp_path).rejected
    said = "the checksum of the data does not match"
    assert (item.id, item.reason) == ("a.tfrecord/00000001", said)
    os.truncate(path, 4 * size - 3)
    said = f"a.tfrecord: record 3 at byte {3 * size}: the file ends within"
    with pytest.raises(UnreadableSource, match=said):
        scan(tmp_path)


def test_worked_examples_hold():
    for module in (class_names, stage, rejects, split_names, wording):
        result = doctest.testmod(module)
        assert result.attempted and not result.failed, module.__name__


def test_a_compressed_shard_is_refused_with_the_command_that_unpacks_it(tmp_path):
    path = tmp_path / "a shard.tfrecord"
    write(path, vectors(2))
    plain = path.read_bytes()
    path.write_bytes(gzip.compress(plain))
    with pytest.raises(UnreadableSource, match="is compressed with GZIP") as refused:
        scan(tmp_path)
    subprocess.run(str(refused.value).split("`")[1], shell=True, check=True)
    (unpacked,) = tmp_path.iterdir()
    assert unpacked.read_bytes() == plain
    unpacked.write_bytes(zlib.compress(plain))
    with pytest.raises(UnreadableSource, match="or is compressed with ZLIB"):
        scan(tmp_path)


def test_where_there_are_no_shards_or_records_it_is_said(tmp_path):
    for folder, said in (("nowhere", "does not exist"), ("", "holds no TFRecord file")):
        with pytest.raises(DataNotFound, match=said):
            scan(tmp_path / folder)
    (tmp_path / "empty.tfrecord").touch()
    with pytest.raises(DataNotFound, match="none of its shards holds a readable record"):
        scan(tmp_path)
    assert scan_records(tmp_path, vectors(2)).notes == {"empty shard": 1}
    (tmp_path / "text.tfrecord").write_text("a, b, c\n" * 9)
    with pytest.raises(UnreadableSource, match="is not a TFRecord file; remove it"):
        scan(tmp_path)


def test_files_and_links_that_are_no_shards_are_counted_but_for_hidden_ones(tmp_path):
    folder = tmp_path / "in"
    for name in ("a.tfrecord", "more/train_3.tfr", ".cache/b.tfrecord", ".c.tfrecord"):
        write(folder / name, vectors(1))
    write(tmp_path / "away" / "b.tfrecord", vectors(2))
    (folder / "linked").symlink_to("../away")
    (folder / "c.tfrecord").symlink_to("gone")
    assert [path.name for path in tfrecord.list_shards(folder)] == ["a.tfrecord"]
    assert scan(folder).skipped == {"link to nothing": 1, "link to a folder": 1, ".tfr": 1}


def test_one_file_is_a_data_set_too(tmp_path):
    for name in ("one.tfrecord", "two.tfrecord"):
        write(tmp_path / name, vectors(2))
    (tmp_path / "labels.txt").write_text("owl\nduck\n")
    found = scan(tmp_path / "one.tfrecord")
    assert found.ids == ["one.tfrecord/00000000", "one.tfrecord/00000001"]
    assert found.classes == ["0", "1"]
    assert found.warnings[0].startswith("labels.txt is not read, since data.path names the shard")


def test_photos_in_shards_of_others_give_the_shards_of_folders(photos, photo_folder, tmp_path):
    """Written as anybody would, with their class as text; shards hold what digests say."""
    records = defaultdict(list)
    for number, path in enumerate(sorted(photo_folder.rglob("*.jpg"))):
        label = path.parent.relative_to(photo_folder).as_posix().encode()
        features = {"image/encoded": [path.read_bytes()], "image/class/text": [label]}
        records[number // 25].append(example(**features))
    for number, part in records.items():
        write(tmp_path / "in" / f"photos-{number:05d}-of-00003", part)
    prepared(data_settings(tmp_path / "in", "tfrecord"), tmp_path)
    manifest, of_files = (read_manifest(at / "manifest") for at in (tmp_path, photos))
    assert manifest.classes == of_files.classes
    same = ["digest", "label", "split", "bytes"]
    one, other = (each.examples[same].sort_values("digest") for each in (manifest, of_files))
    assert one.values.tolist() == other.values.tolist()
    assert not (tmp_path / "manifest" / "values.npy").exists()
    features = manifest.stats["features"]
    assert features["image/class/text"].startswith("bytes: text or values, 3 to 8 bytes")
    assert features["image/encoded"].startswith("bytes: JPEG")


@pytest.mark.parametrize(
    ("stored", "records", "expected"),
    [
        ([tensor(image) for image in IMAGES], {}, IMAGES),
        ([npy(image) for image in IMAGES], {}, IMAGES),
        ([image.tobytes() for image in IMAGES], {"shape": [4, 5, 1]}, IMAGES),
        ([image.tobytes() for image in FLOATS], {"shape": [4, 5]}, FLOATS),
        ([npy(image.astype(">f8")) for image in FLOATS], {}, FLOATS),
        ([npy(np.asfortranarray(image[..., 0])) for image in IMAGES], {}, IMAGES),
        ([tensor(image.ravel()) for image in IMAGES], {"shape": [4, 5, 1]}, IMAGES),
        ([tensor(image > 0) for image in FLOATS], {}, (FLOATS > 0).astype(np.float32)),
        ([tensor(tf.cast(image, tf.bfloat16)) for image in np.ones((6, 3))], {}, np.ones((6, 3))),
        ([proto(np.float32(n)) for n in range(6)], {}, np.arange(6.0)[:, None]),
        ([image.tobytes() for image in FLOATS], {"dtype": "float32"}, FLOATS.reshape(6, 20)),
        ([bytes([n, 0, 1, 0]) for n in range(6)], {"dtype": "int16"}, [[n, 1] for n in range(6)]),
        # refused
        ([bytes(20)] * 3, {}, r"no shape: 20 values of uint8.*data\.records\.shape.*\.dtype"),
        ([tensor(image) for image in (IMAGES[0], IMAGES[0, 1:])], {}, "differs from record to rec"),
        ([tensor(IMAGES[0])] * 3, {"shape": [7]}, r"\[7\] has 7 values, but x has 20"),
        ([tensor(np.ones(2, np.complex64))] * 3, {}, "x is a serialized tensor, complex64 2;"),
        ([np.arange(20, dtype=np.int32).tobytes()] * 3, {"shape": [20]}, r"bytes, 4 for each"),
        ([bytes(20)] * 3, {"shape": [3], "dtype": "float32"}, r"20 bytes, but \[3\] values of fl"),
        ([bytes(20)] * 3, {"shape": [3]}, r"\[3\] has 3 values, but x has 20 bytes: 20 values of"),
        ([npy(np.array([{}]), allow_pickle=True)] * 3, {}, "bytes that are not an image"),
    ],
)
def test_arrays_within_bytes_are_read_in_their_shape_and_dtype(stored, records, expected, tmp_path):
    examples = [example(x=[value], label=[0]) for value in stored]
    if isinstance(expected, str):
        with pytest.raises(UnreadableSource, match=expected):
            scan_records(tmp_path, examples, records=records)
        return
    found = scan_records(tmp_path, examples, records=records)
    np.testing.assert_array_equal(found.values, expected)
    assert (found.schema.input.encoding.name == "pixels") == (expected is IMAGES)
    assert not found.rejected


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        (tensor(IMAGES[0, 1:]), "differs from the others: serialized tensor, uint8 3×5×1"),
        (npy(IMAGES[0]), "differs from the others: NumPy array, uint8 4×5×1"),
        (tensor(IMAGES[0])[:-1], "differs from the others: not an array"),
        (b"", "is empty"),
    ],
)
@pytest.mark.parametrize("place", [0, 5])
def test_an_array_of_another_form_is_rejected_by_its_record(tmp_path, odd, reason, place):
    stored = [tensor(image) for image in IMAGES]
    stored.insert(place, odd)
    found = scan_records(tmp_path, [example(x=[value], label=[0]) for value in stored])
    np.testing.assert_array_equal(found.values, IMAGES)
    (rejected,) = found.rejected
    assert rejected.id == f"a.tfrecord/{place:08d}"
    assert rejected.reason.startswith(f"feature x {reason}")


@given(st.binary(max_size=60), st.sampled_from([b"", b"\x08", b"\x93NUMPY\x01\x00"]))
@settings(max_examples=300)
def test_any_bytes_are_an_array_or_none(content, start):
    found = read_array(start + content)
    assert found is None or found[0].shape == found[1].shape


def test_a_sequence_among_examples_is_never_read_as_its_context(tmp_path):
    examples = [*labeled([0, 1] * 10, "size"), SEQUENCE]
    found = scan_records(tmp_path, examples, records={"input": "size"})
    assert len(found.values) == 20
    assert found.rejected[0].reason.startswith("not a tf.train.Example: it is a tf.train.Sequence")


CLASSES, NUMBERS = {"label_kind": "class"}, {"label_kind": "number"}
MANY, WHOLE = [float(n) for n in range(40)], "different numbers in 40 rows may be values or classes"
REFUSED = None


@pytest.mark.parametrize(
    ("labels", "more", "classes", "read"),
    [
        ([1.0, 2.0], {}, ["1", "2"], ["1", "2"]),
        ([1.0, 2.0], NUMBERS, [], [1.0, 2.0]),
        ([-1, 1], {}, ["-1", "1"], ["-1", "1"]),
        ([16777217.0 * 2, 0.0], {}, ["0", "33554432"], ["33554432", "0"]),
        ([b"1", b"-1"], {}, ["-1", "1"], ["1", "-1"]),
        ([tensor(np.float64(1)), tensor(np.float64(0))], {}, ["0", "1"], ["1", "0"]),
        ([tensor(b"owl"), tensor(b"cat")], {}, ["cat", "owl"], ["owl", "cat"]),
        ([proto(np.int64(3)), proto(np.int64(4))], NUMBERS, [], [3.0, 4.0]),
        ([npy(np.int32(3)), npy(np.int32(20))], {}, ["3", "20"], ["3", "20"]),
        ([*range(40)], {}, REFUSED, f"the feature label: 40 {WHOLE}; set"),
        ([0, *range(2, 23)] * 10, {}, REFUSED, "label: 22 different numbers in 220 rows may be"),
        ([b"owl"] * 3, NUMBERS, REFUSED, "label: text or booleans, but data.label_kind: number n"),
        ([tensor([0, 1])] * 3, {}, REFUSED, "label holds several values.*one-hot"),
    ],
)
def test_labels_are_classes_or_numbers_as_of_tables(tmp_path, labels, more, classes, read):
    if classes is REFUSED:
        with pytest.raises(UnreadableSource, match=read):
            scan_records(tmp_path, labeled(labels), **more)
        return
    found = scan_records(tmp_path, labeled(labels), **more)
    assert (found.classes, list(found.labels)) == (classes, read)
    assert found.schema.predicts_number == (not classes)
    floats = isinstance(labels[0], float) or labels[0] == tensor(np.float64(1))
    assert bool(found.dialect) == (bool(classes) and not more and floats)


KEPT = "label -1, which is read as a missing label; data.label_kind: class makes it a class"


@pytest.mark.parametrize(
    ("labels", "more", "classes", "left_out"),
    [
        ([-1, 1], {}, ("-1", "1"), {}),
        ([0, 1, 2, -1], {}, ("0", "1", "2"), {KEPT: 15}),
        ([0, 1, 2, -1], CLASSES, ("-1", "0", "1", "2"), {}),
        ([0, 1] * 14 + [-1, 0], {}, ("0", "1"), {KEPT: 2}),
        ([-1, 0, 1], {"leave_out": ["-1"]}, ("0", "1"), {"data.leave_out: -1": 20}),
        ([-1, 0, 1], {}, REFUSED, r"label_kind: class, or data\.leave_out: \['-1'\]"),
    ],
)
@pytest.mark.parametrize("source", ["table", "tfrecord"])
def test_minus_one_is_a_class_or_stands_for_none(tmp_path, source, labels, more, classes, left_out):
    path, labels = tmp_path, (labels * 60)[:60]
    if source == "table":
        rows = [[n * 0.37, label] for n, label in enumerate(labels)]
        path = write_table(tmp_path, "x,label", rows)
    else:
        write(tmp_path / "a.tfrecord", labeled(labels))
    settings = data_settings(path, source, **more)
    if classes is REFUSED:
        with pytest.raises(UnreadableSource, match=left_out):
            ingest(settings, tmp_path / "manifest")
        return
    manifest = ingest(settings, tmp_path / "manifest")
    assert manifest.classes == classes
    assert manifest.stats["left_out"] == left_out
    assert not manifest.stats["rejected"]
    assert len(manifest.examples) == 60 - sum(left_out.values())


def test_a_test_split_without_labels_is_left_out_and_another_assigned(tmp_path):
    write(tmp_path / "in" / "train.tfrecord", labeled([0, 1] * 30))
    write(tmp_path / "in" / "test.tfrecord", labeled([-1] * 9))
    manifest = ingest(data_settings(tmp_path / "in", "tfrecord"), tmp_path / "manifest")
    assert (manifest.classes, manifest.stats["left_out"]) == (("0", "1"), {KEPT: 9})
    assert sum(manifest.stats["examples"].values()) == 60
