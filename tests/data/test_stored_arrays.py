"""Arrays within bytes, sequences and labels of every notation are read, or refused with the key."""

import io

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.csv_tables import write as write_table
from tests.support.external_records import example, png, write
from tests.support.small_data import data_settings
from throughline.data.encodings.stored_arrays import read_array
from throughline.data.ingest import ingest
from throughline.data.sources import tfrecord
from throughline.settings import DataSettings
from throughline.shared.errors import UnreadableSource

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


def scan(folder, examples, **more):
    write(folder / "a.tfrecord", examples)
    return tfrecord.scan(DataSettings(source="tfrecord", path=str(folder), **more))


@pytest.mark.parametrize(
    ("stored", "records", "expected"),
    [
        ([tensor(image) for image in IMAGES], {}, IMAGES),
        ([tensor(image) for image in FLOATS], {}, FLOATS),
        ([npy(image) for image in IMAGES], {}, IMAGES),
        ([image.tobytes() for image in IMAGES], {"shape": [4, 5, 1]}, IMAGES),
        ([image.tobytes() for image in FLOATS], {"shape": [4, 5]}, FLOATS),
        ([npy(image.astype(">f8")) for image in FLOATS], {}, FLOATS),
        ([npy(np.asfortranarray(image[..., 0])) for image in IMAGES], {}, IMAGES),
        ([tensor(image.ravel()) for image in IMAGES], {"shape": [4, 5, 1]}, IMAGES),
        ([tensor(image.astype(np.int64)) for image in IMAGES], {}, IMAGES.astype(np.float32)),
        ([tensor(image > 0) for image in FLOATS], {}, (FLOATS > 0).astype(np.float32)),
        ([tensor(tf.cast(image, tf.bfloat16)) for image in np.ones((6, 3))], {}, np.ones((6, 3))),
        ([proto(np.float32(n)) for n in range(6)], {}, np.arange(6.0)[:, None]),
        ([proto(image) for image in FLOATS], {}, FLOATS),
        ([image.tobytes() for image in FLOATS], {"dtype": "float32"}, FLOATS.reshape(6, 20)),
        ([bytes([n, 0, 1, 0]) for n in range(6)], {"dtype": "int16"}, [[n, 1] for n in range(6)]),
        # refused
        ([bytes(20)] * 3, {}, r"no shape: 20 values of uint8.*data\.records\.shape.*\.dtype"),
        ([FLOATS[0].tobytes()] * 3, {}, "80 values of uint8 or 20 of float32"),
        ([tensor(image) for image in (IMAGES[0], IMAGES[0, 1:])], {}, "differs from record to rec"),
        ([tensor(IMAGES[0])] * 3, {"shape": [7]}, r"\[7\] has 7 values, but x has 20"),
        ([tensor([b"a", b"b"])] * 3, {}, "x is a serialized tensor, text 2; it must be an encoded"),
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
            scan(tmp_path, examples, records=records)
        return
    found = scan(tmp_path, examples, records=records)
    np.testing.assert_array_equal(found.values, expected)
    assert (found.schema.input.encoding.name == "pixels") == (expected is IMAGES)
    assert not found.rejected


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        (tensor(IMAGES[0, 1:]), "differs from the others: serialized tensor, uint8 3×5×1"),
        (
            tensor(IMAGES[0].astype(np.int32)),
            "differs from the others: serialized tensor, int32 4×",
        ),
        (npy(IMAGES[0]), "differs from the others: NumPy array, uint8 4×5×1"),
        (tensor(IMAGES[0])[:-1], "differs from the others: not an array"),
        (tensor(IMAGES[0]) + b"\0", "differs from the others: not an array"),
        (b"", "is empty"),
    ],
)
@pytest.mark.parametrize("place", [0, 5])
def test_an_array_of_another_form_is_rejected_by_its_record(tmp_path, odd, reason, place):
    stored = [tensor(image) for image in IMAGES]
    stored.insert(place, odd)
    found = scan(tmp_path, [example(x=[value], label=[0]) for value in stored])
    np.testing.assert_array_equal(found.values, IMAGES)
    (rejected,) = found.rejected
    assert rejected.id == f"a.tfrecord/{place:08d}"
    assert rejected.reason.startswith(f"feature x {reason}")


@given(st.binary(max_size=60), st.sampled_from([b"", b"\x08", b"\x93NUMPY\x01\x00"]))
@settings(max_examples=300)
def test_any_bytes_are_an_array_or_none(content, start):
    found = read_array(start + content)
    assert found is None or found[0].shape == found[1].shape


def sequence(lists: dict, **context) -> bytes:
    features = tf.train.Example.FromString(example(**context)).features
    made = tf.train.SequenceExample(context=features)
    for name, steps in lists.items():
        for values in steps:
            made.feature_lists.feature_list[name].feature.add().float_list.value.extend(values)
    return made.SerializeToString()


SEQUENCE = sequence({"frames": [[1.0], [2.0]], "audio": [[0.5]]}, label=[1], size=[1.0])


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (SEQUENCE, r"SequenceExample with the feature lists audio \(1 steps\), frames \(2 steps\)"),
        (sequence({"words": [[1.0]] * 200}), r"SequenceExample with the .*words \(200 steps\)"),
        (png(1), r"not tf.train.Example, .*: .* \(it is PNG\)"),
        (tensor(IMAGES[0]), r"it has no features \(it is serialized tensor, uint8 4×5×1\)"),
        (npy(IMAGES[0]), "it is NumPy array, uint8 4×5×1"),
    ],
    ids=["lists", "a long list", "PNG", "tensor", "NumPy"],
)
@pytest.mark.parametrize("records", [{}, {"input": "size", "label": "label"}])
def test_records_of_another_kind_are_refused_by_their_name(tmp_path, record, said, records):
    with pytest.raises(UnreadableSource, match=said):
        scan(tmp_path, [record] * 3, records=records)


def test_a_sequence_among_examples_is_never_read_as_its_context(tmp_path):
    found = scan(tmp_path, [*labeled([0, 1] * 10, "size"), SEQUENCE], records={"input": "size"})
    assert len(found.values) == 20
    assert found.rejected[0].reason.startswith("not a tf.train.Example: it is a tf.train.Sequence")


CLASSES, NUMBERS = {"label_kind": "class"}, {"label_kind": "number"}
MANY, WHOLE = [float(n) for n in range(40)], "different numbers in 40 rows may be values or classes"
REFUSED = None


@pytest.mark.parametrize(
    ("labels", "more", "classes", "read"),
    [
        ([1.0, 2.0], {}, ["1", "2"], ["1", "2"]),
        ([1.0, 2.0], CLASSES, ["1", "2"], ["1", "2"]),
        ([1.0, 2.0], NUMBERS, [], [1.0, 2.0]),
        ([0.5, 2.0], {}, [], [0.5, 2.0]),
        ([3, 10], {}, ["3", "10"], ["3", "10"]),
        ([3, 10], NUMBERS, [], [3.0, 10.0]),
        ([-1, 1], {}, ["-1", "1"], ["-1", "1"]),
        ([-1.0, 1.0], {}, ["-1", "1"], ["-1", "1"]),
        (MANY, {}, [], MANY),
        (MANY, CLASSES, [str(n) for n in range(40)], [str(n) for n in range(40)]),
        ([16777217.0 * 2, 0.0], {}, ["0", "33554432"], ["33554432", "0"]),
        ([b"1", b"-1"], {}, ["-1", "1"], ["1", "-1"]),
        ([tensor(np.int64(-1)), tensor(np.int64(1))], {}, ["-1", "1"], ["-1", "1"]),
        ([tensor(np.float64(1)), tensor(np.float64(0))], {}, ["0", "1"], ["1", "0"]),
        ([tensor(b"owl"), tensor(b"cat")], {}, ["cat", "owl"], ["owl", "cat"]),
        ([proto(np.int64(3)), proto(np.int64(4))], NUMBERS, [], [3.0, 4.0]),
        ([npy(np.int32(3)), npy(np.int32(20))], {}, ["3", "20"], ["3", "20"]),
        ([*range(40)], {}, REFUSED, f"the feature label: 40 {WHOLE}; set"),
        ([b"owl"] * 3, NUMBERS, REFUSED, "label: text or booleans, but data.label_kind: number n"),
        ([tensor([0, 1])] * 3, {}, REFUSED, "label holds several values.*one-hot"),
    ],
)
def test_labels_are_classes_or_numbers_as_of_tables(tmp_path, labels, more, classes, read):
    if classes is REFUSED:
        with pytest.raises(UnreadableSource, match=read):
            scan(tmp_path, labeled(labels), **more)
        return
    found = scan(tmp_path, labeled(labels), **more)
    assert (found.classes, list(found.labels)) == (classes, read)
    assert found.schema.predicts_number == (not classes)
    floats = isinstance(labels[0], float) or labels[0] == tensor(np.float64(1))
    assert bool(found.dialect) == (bool(classes) and not more and floats)


UNLABELED = "label -1, which is read as a missing label"
KEPT = f"{UNLABELED}; data.label_kind: class makes it a class"


@pytest.mark.parametrize(
    ("labels", "more", "classes", "left_out"),
    [
        ([-1, 1], {}, ("-1", "1"), {}),
        ([0, 1, 2, -1], {}, ("0", "1", "2"), {KEPT: 15}),
        ([0, 1, 2, -1], CLASSES, ("-1", "0", "1", "2"), {}),
        ([-2, -1, 0, 1, 2], {}, ("-2", "-1", "0", "1", "2"), {}),
        ([1, 2, 3, -1], {}, ("1", "2", "3"), {KEPT: 15}),
        ([0, 1] * 14 + [-1, 0], {}, ("0", "1"), {KEPT: 2}),
        ([-1, 0, 1], {"leave_out": ["-1"]}, ("0", "1"), {"data.leave_out: -1": 20}),
        ([-1, 5, 70], {}, ("-1", "5", "70"), {}),
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
    settings = data_settings(tmp_path / "in", "tfrecord")
    manifest = ingest(settings, tmp_path / "manifest")
    assert (manifest.classes, manifest.stats["left_out"]) == (("0", "1"), {KEPT: 9})
    assert sum(manifest.stats["examples"].values()) == 60
    (tmp_path / "in" / "labels.txt").write_text("cat\ndog\n")
    manifest = ingest(settings, tmp_path / "manifest")
    assert (manifest.classes, manifest.stats["left_out"]) == (("cat", "dog"), {UNLABELED: 9})
