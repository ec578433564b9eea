"""TFRecord shards that others wrote: what they hold is inferred or read from their metadata, and
what cannot be read is refused or rejected in words.
"""

from __future__ import annotations

import doctest
import gzip
import json
import subprocess
import zlib
from itertools import chain

import numpy as np
import pytest
import tensorflow as tf
from conftest import picture
from test_example_features import example

from tasks import ingest as stage
from throughline.data import ingest
from throughline.data.shards.tfrecord import frame
from throughline.data.sources import base, external_shards, split_names, tfds, tfrecord
from throughline.settings import DataSettings, RecordSettings
from throughline.shared.errors import DataNotFound, UnreadableSource

LABELED = {"label": [0]}


def write(path, records) -> None:
    """Write records as TensorFlow does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)


def scan(folder, **settings):
    return tfrecord.scan(DataSettings(source="tfrecord", path=str(folder), **settings))


def png(number: int) -> bytes:
    return tf.io.encode_png(np.full((3, 4, 3), number, np.uint8)).numpy()


def vectors(count: int, **more) -> list[bytes]:
    return [example(x=[float(n), 0.5], label=[n % 3], **more) for n in range(count)]


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train-00000-of-00064", "train"),
        ("mnist-test.tfrecord-00000-of-00001", "test"),
        ("val/part-3.tfrecord", "validation"),
        ("training.tfrecords", "train"),
        ("dev_0.tfrec", "validation"),
        ("train/contest-1.tfrecord", "train"),
        ("eval-00000-of-00001", "test"),
        ("evaluation/0.tfrecord", "test"),
        ("holdout.tfrecord", "test"),
        ("train/val-1.tfrecord", "validation"),
        ("contest.tfrecord", None),
    ],
)
def test_the_split_is_read_from_the_words_of_a_path(name, split):
    assert split_names.find_split(name) == split


@pytest.mark.parametrize("name", ["valid_pixels_train-00000-of-00002", "train/test-val.tfrecord"])
def test_a_name_with_the_words_of_two_splits_is_refused(name):
    with pytest.raises(UnreadableSource, match=r"may be of several splits: its name holds \w+ and"):
        split_names.find_split(name)
    assert split_names.find_split("val/valid-dev.tfrecord") == "validation"


def test_encoded_images_stay_where_they_are(tmp_path):
    images = [png(number) for number in range(3)]
    sizes = sorted(map(len, images))
    write(
        tmp_path / "data-00000-of-00001",
        [
            example(**{"image/encoded": [image], "image/class/label": [number], "other": [1.5]})
            for number, image in enumerate(images)
        ],
    )
    found = scan(tmp_path)
    assert isinstance(found, base.Files)
    data = (tmp_path / "data-00000-of-00001").read_bytes()
    assert [data[item.offset : item.offset + item.size] for item in found.files] == images
    assert [item.label for item in found.files] == ["0", "1", "2"]
    assert [item.split for item in found.files] == [None] * 3
    assert found.features == {
        "image/class/label": "int64 × 1",
        "image/encoded": f"bytes: PNG, {sizes[0]} to {sizes[-1]} bytes",
        "other": "float × 1",
    }


def test_values_become_one_array_and_integer_classes_keep_their_order(tmp_path):
    write(tmp_path / "a.tfrecord", [example(x=[float(n), 2.0], label=[n]) for n in (10, 9, 2)])
    found = scan(tmp_path)
    assert isinstance(found, base.Arrays)
    assert found.values.tolist() == [[10, 2], [9, 2], [2, 2]]
    assert found.classes == ["2", "9", "10"]
    assert list(found.labels) == ["10", "9", "2"]
    value = found.schema.input
    assert (value.encoding.name, value.dtype, value.shape) == (
        "numbers",
        "float32",
        (2,),
    )


def test_bytes_of_a_given_shape_are_images(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (2, 4, 5), np.uint8)
    write(
        tmp_path / "a.tfrecord",
        [example(image=[image.tobytes()], label=[b"owl"]) for image in images],
    )
    with pytest.raises(UnreadableSource, match=r"image holds 20 bytes .* set data\.records\.shape"):
        scan(tmp_path)
    with pytest.raises(
        UnreadableSource, match=r"records\.shape: \[4, 4\] has 16 values, image has 20"
    ):
        scan(tmp_path, records={"shape": [4, 4]})
    found = scan(tmp_path, records=RecordSettings(shape=[4, 5]))
    np.testing.assert_array_equal(found.values, images[..., None])
    assert (found.schema.input.name, found.schema.input.channels, found.classes) == (
        "image",
        1,
        ["owl"],
    )


def test_a_float_label_is_a_number_to_predict(tmp_path):
    write(tmp_path / "a.tfrecord", [example(x=[1.0], label=[0.25]), example(x=[2.0], label=[3.0])])
    found = scan(tmp_path)
    assert (list(found.labels), found.classes, found.schema.target.encoding.name) == (
        [0.25, 3.0],
        [],
        "number",
    )
    write(tmp_path / "b.tfrecord", [example(x=[1.0], label=[float("nan")])])
    assert [(item.id, item.reason) for item in scan(tmp_path).rejected] == [
        ("b.tfrecord/00000000", "label is no finite number")
    ]
    (tmp_path / "b.tfrecord").unlink()
    write(tmp_path / "a.tfrecord", [example(image=[png(1)], label=[0.25])])
    with pytest.raises(UnreadableSource, match="label holds floats; images are classified"):
        scan(tmp_path)


def test_splits_come_from_names_and_validation_is_dealt_where_there_is_none(tmp_path):
    for name in ("train-0.tfrecord", "test-0.tfrecord"):
        write(tmp_path / name, vectors(2))
    assert scan(tmp_path).splits == ["test", "test", None, None]
    write(tmp_path / "val-0.tfrecord", vectors(1))
    assert scan(tmp_path).splits == ["test", "test", "train", "train", "validation"]
    write(tmp_path / "extra-0.tfrecord", vectors(1))
    with pytest.raises(UnreadableSource, match=r"test-0\.tfrecord is named as a split, extra-0"):
        scan(tmp_path)


def test_labels_txt_names_the_classes_by_number(tmp_path):
    write(tmp_path / "a.tfrecord", vectors(3))
    (tmp_path / "labels.txt").write_text("\ufeffcat\ndog\nowl\nfox\n\n \n")
    found = scan(tmp_path)
    assert (list(found.labels), found.classes) == (
        ["cat", "dog", "owl"],
        ["cat", "dog", "owl", "fox"],
    )


def test_a_label_out_of_range_is_rejected_and_labels_from_1_are_refused(tmp_path):
    write(tmp_path / "a.tfrecord", [example(x=[1.0], label=[n]) for n in (0, 1, 5, -1)])
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    found = scan(tmp_path)
    assert {item.id: item.reason for item in found.rejected} == {
        "a.tfrecord/00000002": "label beyond the classes: 5, labels.txt names 2",
        "a.tfrecord/00000003": "label missing: -1",
    }
    assert found.values.shape == (2, 1)
    (tmp_path / "a.tfrecord").unlink()
    write(
        tmp_path / "train-0.tfrecord",
        [example(x=[float(n)], label=[label]) for n, label in enumerate((2, 1, 0))],
    )
    write(tmp_path / "val-0.tfrecord", [example(x=[9.0], label=[1])])
    found = scan(tmp_path)
    assert [item.reason for item in found.rejected] == [
        "label beyond the classes: 2, labels.txt names 2"
    ]
    assert (found.values.tolist(), list(found.labels), found.splits) == (
        [[1], [2], [9]],
        ["dog", "cat", "dog"],
        ["train", "train", "validation"],
    )
    (tmp_path / "val-0.tfrecord").unlink()
    write(tmp_path / "train-0.tfrecord", [example(x=[1.0], label=[n]) for n in (1, 2)])
    with pytest.raises(UnreadableSource, match="counts from 1 to 2: every example would get"):
        scan(tmp_path)


def test_a_class_named_twice_is_refused(tmp_path):
    write(tmp_path / "a.tfrecord", vectors(3))
    (tmp_path / "labels.txt").write_text("cat\ndog\ncat \n")
    with pytest.raises(UnreadableSource, match="names the class 'cat' twice"):
        scan(tmp_path)


@pytest.mark.parametrize(
    ("features", "settings", "said"),
    [
        ({"image": [1.0], "image/encoded": [2.0], **LABELED}, {}, "image and image/encoded could"),
        ({"image": [1.0], "label": [0], "image/class/label": [0]}, {}, "label and image/class/"),
        (
            {"pixels": [1.0], **LABELED},
            {},
            r"data\.records\.input is not set.*pixels \(float × 1\)",
        ),
        ({"x": [1.0], "cls": [0]}, {}, r"data\.records\.label is not set.*cls \(int64 × 1\)"),
        (
            {"pixels": [1.0], **LABELED},
            {"records": {"input": "pixel"}},
            "no record has a feature pixel; did you mean pixels",
        ),
        (
            {"x": [1.0], "klass": [0]},
            {"records": {"label": "class"}},
            "no record has a feature class; did you mean klass",
        ),
    ],
)
def test_features_that_could_be_meant_are_named(tmp_path, features, settings, said):
    write(tmp_path / "a.tfrecord", [example(**features)])
    with pytest.raises(UnreadableSource, match=said):
        scan(tmp_path, **settings)


@pytest.mark.parametrize(
    ("features", "said"),
    [
        ({"image": [b"a", b"b"], **LABELED}, r"image holds several values .*\(bytes × 2\)"),
        ({"image": [b"ab"]}, r"hold image \(bytes: .*\) and no other feature; an example takes"),
        ({"x": [1.0], "label": [0.0, 1.0, 0.0]}, r"label holds several values.*one-hot"),
        ({"x": [1.0], "label": [b"owl", b"crow"]}, r"several values.*\(bytes × 2\)"),
    ],
    ids=["two images", "no label", "one-hot", "two texts"],
)
def test_what_is_no_single_input_and_label_is_refused_before_all_records_are(
    tmp_path, features, said
):
    write(tmp_path / "a.tfrecord", [example(**features)] * 3)
    with pytest.raises(UnreadableSource, match=said):
        scan(tmp_path)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ([example(x=[1.0, 2.0], label=[b"owl"])], "label is of kind bytes, in others int64"),
        ([example(x=[1.0, 2.0], name=[b"a"])], "there is no label, only name, x"),
        ([example(x=[1.0, 2.0, 3.0], label=[0])], "x differs in length from record to record"),
        ([b"not an example"], "its records are no tf.train.Example"),
    ],
    ids=["kind", "no label", "length", "no example"],
)
def test_a_shard_of_another_schema_is_refused(tmp_path, other, said):
    write(tmp_path / "a.tfrecord", vectors(3))
    write(tmp_path / "b.tfrecord", other)
    with pytest.raises(UnreadableSource, match=said):
        scan(tmp_path)


def test_records_that_differ_from_the_rest_are_rejected_with_their_reason(tmp_path):
    odd = [
        example(x=[1.0, 2.0]),
        example(x=[1.0, 2.0], label=[1, 2]),
        example(x=[1.0, 2.0], label=[b"owl"]),
        example(x=[1.0], label=[1]),
        example(x=[1.0, float("inf")], label=[1]),
        example(label=[1]),
        b"not an example",
    ]
    write(tmp_path / "a.tfrecord", [*vectors(20), *odd])
    found = scan(tmp_path)
    assert len(found.values) == 20
    *reasons, last = [item.reason for item in found.rejected]
    assert reasons == [
        "label missing: no feature label",
        "label has several values: 2",
        "label has another kind: bytes, not int64",
        "feature x has another length than its shape: 1 values",
        "feature x is not finite",
        "feature x missing",
    ]
    assert last.startswith("no tf.train.Example: ")


def test_a_record_with_a_wrong_checksum_is_rejected_and_a_shard_cut_off_is_refused(tmp_path):
    path = tmp_path / "a.tfrecord"
    write(path, vectors(4))
    data, size = path.read_bytes(), len(path.read_bytes()) // 4
    path.write_bytes(data[: size + 20] + bytes([data[size + 20] ^ 1]) + data[size + 21 :])
    found = scan(tmp_path)
    assert [(item.id, item.reason) for item in found.rejected] == [
        ("a.tfrecord/00000001", "the checksum of the data does not match")
    ]
    path.write_bytes(data[:-3])
    with pytest.raises(
        UnreadableSource, match=f"a.tfrecord: record 3 at byte {3 * size}: the file ends within"
    ):
        scan(tmp_path)


def test_a_compressed_shard_is_refused_with_what_to_do(tmp_path):
    write(tmp_path / "a.tfrecord", vectors(2))
    plain = (tmp_path / "a.tfrecord").read_bytes()
    (tmp_path / "b.tfrecord.gz").write_bytes(gzip.compress(plain))
    with pytest.raises(
        UnreadableSource, match=r"b\.tfrecord\.gz is compressed with GZIP; .* `gunzip"
    ):
        scan(tmp_path)


@pytest.mark.parametrize("module", [stage, ingest, split_names], ids=["stage", "ingest", "names"])
def test_worked_examples_hold(module):
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed


def test_the_command_that_unpacks_a_shard_works_whatever_its_name(tmp_path):
    path = tmp_path / "a shard.tfrecord"
    write(path, vectors(2))
    plain = path.read_bytes()
    path.write_bytes(gzip.compress(plain))
    with pytest.raises(UnreadableSource, match="GZIP") as caught:
        scan(tmp_path)
    command = str(caught.value).split("`")[1]
    subprocess.run(command, shell=True, check=True)
    assert path.read_bytes() == plain
    path.write_bytes(zlib.compress(plain))
    with pytest.raises(UnreadableSource, match="unless it is compressed with ZLIB"):
        scan(tmp_path)


def test_an_empty_shard_is_noted_and_no_record_at_all_is_refused(tmp_path):
    (tmp_path / "empty.tfrecord").touch()
    with pytest.raises(DataNotFound, match="none of its 1 shards holds a record"):
        scan(tmp_path)
    write(tmp_path / "full.tfrecord", vectors(2))
    assert scan(tmp_path).notes == {"empty shard": 1}


def test_where_there_are_no_shards_it_is_said(tmp_path):
    with pytest.raises(DataNotFound, match="holds no TFRecord file"):
        scan(tmp_path)
    with pytest.raises(DataNotFound, match="does not exist"):
        scan(tmp_path / "nowhere")
    (tmp_path / "text.tfrecord").write_text("a, b, c\n" * 9)
    with pytest.raises(UnreadableSource, match="is no TFRecord file; remove it"):
        scan(tmp_path)


def test_hidden_files_are_no_shards(tmp_path):
    write(tmp_path / "a.tfrecord", vectors(1))
    write(tmp_path / ".cache" / "b.tfrecord", vectors(2))
    write(tmp_path / ".c.tfrecord", vectors(3))
    assert [shard.name for shard in tfrecord.find_shards(tmp_path)] == ["a.tfrecord"]
    assert scan(tmp_path).skipped == {}


def test_files_and_links_that_are_no_shards_are_counted(tmp_path):
    write(tmp_path / "in" / "a.tfrecord", [example(x=[1.0], label=[0])])
    write(tmp_path / "away" / "b.tfrecord", vectors(2))
    write(tmp_path / "in" / "more" / "train_3.tfr", vectors(2))
    (tmp_path / "in" / "labels.txt").write_text("owl\n")
    (tmp_path / "in" / "linked").symlink_to("../away")
    (tmp_path / "in" / "c.tfrecord").symlink_to("gone")
    assert scan(tmp_path / "in").skipped == {
        "link to nothing": 1,
        "link to a folder": 1,
        ".tfr": 1,
    }


def test_records_with_whole_numbers_that_float32_does_not_hold_are_counted(tmp_path):
    records = [example(x=[n, 2**24 + n], label=[n]) for n in range(3)]
    write(tmp_path / "a.tfrecord", records)
    found = scan(tmp_path)
    assert found.values.tolist() == [[0, 2**24], [1, 2**24], [2, 2**24 + 2]]
    assert not found.rejected and found.notes == {
        "x holds whole numbers of which float32 keeps the first seven digits": 1
    }


def test_one_file_is_a_data_set_too(tmp_path):
    write(tmp_path / "one.tfrecord", vectors(2))
    write(tmp_path / "two.tfrecord", vectors(3))
    found = scan(tmp_path / "one.tfrecord")
    assert found.ids == ["one.tfrecord/00000000", "one.tfrecord/00000001"] and not found.warnings
    (tmp_path / "labels.txt").write_text("owl\nduck\n")
    unnamed = scan(tmp_path / "one.tfrecord")
    assert unnamed.classes == ["0", "1"]
    assert unnamed.warnings[0].startswith(
        "labels.txt is not read, since data.path names the shard alone"
    )


def feature(kind: str, module: str = "tensor_feature", **more) -> dict:
    return {"pythonClassName": f"tensorflow_datasets.core.features.{module}.{kind}", **more}


IMAGE = feature("Image", image={"dtype": "uint8", "shape": {"dimensions": ["-1", "-1", "3"]}})
CLASS = feature("ClassLabel", classLabel={"numClasses": "2"})


def tensor(dtype: str, *sizes: int, encoding: str = "none") -> dict:
    shape = {"dimensions": [str(size) for size in sizes]} if sizes else {}
    return feature("Tensor", tensor={"dtype": dtype, "encoding": encoding, "shape": shape})


def prepare(folder, features: dict, records: list[bytes], **info) -> DataSettings:
    """Write a folder as TensorFlow Datasets prepares it, with one shard of the split train."""
    write(folder / "birds-train.tfrecord-00000-of-00001", records)
    described = {"pythonClassName": "FeaturesDict", "featuresDict": {"features": features}}
    (folder / "features.json").write_text(json.dumps(described))
    split = {"name": "train", "shardLengths": [str(len(records))]}
    (folder / "dataset_info.json").write_text(
        json.dumps({"name": "birds", "fileFormat": "tfrecord", "splits": [split], **info})
    )
    return DataSettings(source="tfds", path=str(folder))


def test_a_prepared_data_set_is_read_as_its_metadata_says(tmp_path):
    images = [png(1), png(2)]
    settings = prepare(
        tmp_path,
        {"image": IMAGE, "label": CLASS, "name": feature("Text", "text_feature")},
        [example(image=[image], label=[n], name=[b"a"]) for n, image in enumerate(images)],
    )
    (tmp_path / "label.labels.txt").write_text("owl\nduck\n")
    found = tfds.scan(settings)
    assert isinstance(found, base.Files)
    assert [item.label for item in found.files] == ["owl", "duck"]
    assert found.features == {
        "image": "Image uint8 any×any×3",
        "label": "ClassLabel of 2 classes",
        "name": "Text",
    }


def test_splits_of_other_names_are_left_out_with_a_warning(tmp_path):
    splits = [
        {"name": "train", "shardLengths": ["2"]},
        {"name": "validation_matched", "shardLengths": ["1000", "500"]},
    ]
    records = [example(x=[float(n)], label=[n]) for n in range(2)]
    settings = prepare(
        tmp_path, {"x": tensor("float32", 1), "label": CLASS}, records, splits=splits
    )
    (warning,) = tfds.scan(settings).warnings
    assert warning.startswith("the split validation_matched, of 1,500 examples, is left out")


def test_features_of_an_inner_dict_have_the_names_of_both(tmp_path):
    inner = {"pythonClassName": "FeaturesDict", "featuresDict": {"features": {"encoded": IMAGE}}}
    settings = prepare(
        tmp_path,
        {"image": inner, "encoded": tensor("int64"), "label": CLASS},
        [example(**{"image/encoded": [png(n)], "encoded": [7], "label": [n]}) for n in range(2)],
    )
    found = tfds.scan(settings)
    assert [item.label for item in found.files] == ["0", "1"]
    assert sorted(found.features) == ["encoded", "image/encoded", "label"]


def test_shards_are_those_of_the_splits_that_are_trained_on_by_the_names_they_say(tmp_path):
    splits = [
        {
            "name": "train",
            "shardLengths": ["2", "0", "1"],
            "filepathTemplate": "{SPLIT}.{SHARD_INDEX}",
        },
        {"name": "unsupervised", "shardLengths": ["5"]},
        {"name": "test", "shardLengths": ["1"], "filepathTemplate": ""},
    ]
    found = tfds.list_shards(tmp_path, {"name": "birds", "splits": splits})
    assert [(one.name, one.split, one.records) for one in found] == [
        ("train.00000", None, 2),
        ("train.00002", None, 1),
        ("birds-test.tfrecord-00000-of-00001", "test", 1),
    ]


@pytest.mark.parametrize("encoding", ["none", "bytes", "zlib"])
def test_tensors_are_read_in_every_encoding(tmp_path, encoding):
    import zlib

    values = np.arange(6, dtype=np.int16).reshape(3, 2)
    stored = {
        "none": values.reshape(-1).tolist(),
        "bytes": [values.tobytes()],
        "zlib": [zlib.compress(values.tobytes())],
    }[encoding]
    settings = prepare(
        tmp_path,
        {"v": tensor("int16", 3, 2, encoding=encoding), "y": tensor("float32")},
        [example(v=stored, y=[0.5])],
        supervisedKeys={"tuple": {"items": [{"dictKey": "v"}, {"dictKey": "y"}]}},
    )
    found = tfds.scan(settings)
    np.testing.assert_array_equal(found.values, values[None].astype(np.float32))
    assert list(found.labels) == [0.5] and found.schema.predicts_number


@pytest.mark.parametrize(
    ("features", "info", "said"),
    [
        ({"image": feature("Video"), "label": CLASS}, {}, "image is Video; an Image or a Tensor"),
        (
            {"image": IMAGE, "label": feature("Audio")},
            {},
            "label is Audio; labels are a ClassLabel",
        ),
        ({"image": tensor("uint8", -1, 3), "label": CLASS}, {}, "image is Tensor uint8 any×3;"),
        ({"image": IMAGE, "label": CLASS}, {"fileFormat": "array_record"}, "only tfrecord can be"),
        ({"image": IMAGE, "label": CLASS}, {"splits": []}, "names no split train"),
        ({"image": IMAGE, "label": tensor("float32")}, {}, "label holds floats"),
        ({"photo": IMAGE, "label": CLASS}, {}, r"records.input is not set.*photo \(Image uint8"),
        ({}, {}, "names no features"),
        (
            {"image": IMAGE, "label": CLASS},
            {"splits": [{"shardLengths": ["many"], "name": "train"}]},
            "is not as TensorFlow Datasets writes it",
        ),
        ({"image": tensor("float5", 3), "label": CLASS}, {}, "data type .float5. not understood"),
        ({"image": [], "label": CLASS}, {}, "is not as TensorFlow Datasets writes it"),
    ],
)
def test_a_prepared_data_set_that_cannot_be_read_is_refused(tmp_path, features, info, said):
    settings = prepare(tmp_path, features, [example(image=[png(1)], label=[0])], **info)
    with pytest.raises(UnreadableSource, match=said):
        tfds.scan(settings)


def test_metadata_of_other_shards_is_refused(tmp_path):
    records = [example(image=[png(n)], label=[n]) for n in range(2)]
    settings = prepare(tmp_path, {"image": IMAGE, "label": CLASS}, records)
    names = tmp_path / "label.labels.txt"
    names.write_text("owl\nduck\nswan\n")
    with pytest.raises(
        UnreadableSource, match=r"labels\.txt names 3 classes, features\.json has 2"
    ):
        tfds.scan(settings)
    names.unlink()
    shard = tmp_path / "birds-train.tfrecord-00000-of-00001"
    write(shard, records[:1])
    with pytest.raises(UnreadableSource, match=r"holds 1 records, dataset_info.json says 2"):
        tfds.scan(settings)
    shard.unlink()
    with pytest.raises(DataNotFound, match="cannot be read: No such file"):
        tfds.scan(settings)
    (tmp_path / "dataset_info.json").unlink()
    with pytest.raises(DataNotFound, match=r"dataset_info\.json is missing"):
        tfds.scan(settings)


def test_a_shard_is_opened_at_the_edges_of_its_records(tmp_path):
    records = [b"a" * size for size in (3, 0, 500)]
    path = tmp_path / "a.tfrecord"
    path.write_bytes(b"".join(chain.from_iterable(map(frame, records))))
    _, edges = external_shards.open_shard(
        external_shards.ExternalShard(path=path, name=path.name, split=None)
    )
    assert edges.tolist() == [0, 19, 35, 551]


def test_a_picture_of_any_format_is_recognized(tmp_path):
    picture(1).save(tmp_path / "1.jpg")
    picture(2).save(tmp_path / "2.webp")
    for name in ("1.jpg", "2.webp"):
        write(
            tmp_path / "shards" / "a.tfrecord",
            [example(image=[(tmp_path / name).read_bytes()], label=[1])],
        )
        assert len(scan(tmp_path / "shards").files) == 1
