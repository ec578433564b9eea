"""Folders that TensorFlow Datasets has prepared are read as their metadata says, or refused."""

from __future__ import annotations

import json
import zlib

import numpy as np
import pytest

from tests.support.external_records import example, png, write
from throughline.data import found as forms
from throughline.data.sources import tfds
from throughline.settings import DataSettings
from throughline.shared.errors import DataNotFound, UnreadableSource

pytestmark = pytest.mark.integration


def feature(kind: str, module: str = "tensor_feature", **more) -> dict:
    return {"pythonClassName": f"tensorflow_datasets.core.features.{module}.{kind}", **more}


IMAGE = feature("Image", image={"dtype": "uint8", "shape": {"dimensions": ["-1", "-1", "3"]}})
CLASS = feature("ClassLabel", classLabel={"numClasses": "2"})
PHOTOS = {"image": IMAGE, "label": CLASS}


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
    features = {"image": IMAGE, "label": CLASS, "name": feature("Text", "text_feature")}
    records = [example(image=[png(n)], label=[n], name=[b"a"]) for n in range(2)]
    other = {"name": "validation_matched", "shardLengths": ["1000", "500"]}
    splits = [{"name": "train", "shardLengths": ["2"]}, other]
    settings = prepare(tmp_path, features, records, splits=splits)
    (tmp_path / "label.labels.txt").write_text("owl\nduck\n")
    found = tfds.scan(settings)
    assert isinstance(found, forms.Files)
    assert [item.label for item in found.files] == ["owl", "duck"]
    assert found.features == {
        "image": "Image uint8 any×any×3",
        "label": "ClassLabel of 2 classes",
        "name": "Text",
    }
    (warning,) = found.warnings
    assert warning.startswith("the split validation_matched, of 1,500 examples, is left out")


def test_features_of_an_inner_dict_have_the_names_of_both(tmp_path):
    inner = {"pythonClassName": "FeaturesDict", "featuresDict": {"features": {"encoded": IMAGE}}}
    features = {"image": inner, "encoded": tensor("int64"), "label": CLASS}
    cells = [{"image/encoded": [png(n)], "encoded": [7], "label": [n]} for n in range(2)]
    found = tfds.scan(prepare(tmp_path, features, [example(**each) for each in cells]))
    assert [item.label for item in found.files] == ["0", "1"]
    assert sorted(found.features) == ["encoded", "image/encoded", "label"]


def test_shards_are_those_of_the_splits_that_are_trained_on_by_the_names_they_say(tmp_path):
    pattern = "{SPLIT}.{SHARD_INDEX}"
    splits = [
        {"name": "train", "shardLengths": ["2", "0", "1"], "filepathTemplate": pattern},
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
    values = np.arange(6, dtype=np.int16).reshape(3, 2)
    stored = {
        "none": values.reshape(-1).tolist(),
        "bytes": [values.tobytes()],
        "zlib": [zlib.compress(values.tobytes())],
    }[encoding]
    features = {"v": tensor("int16", 3, 2, encoding=encoding), "y": tensor("float32")}
    keys = {"tuple": {"items": [{"dictKey": "v"}, {"dictKey": "y"}]}}
    records = [example(v=stored, y=[0.5])]
    found = tfds.scan(prepare(tmp_path, features, records, supervisedKeys=keys))
    np.testing.assert_array_equal(found.values, values[None].astype(np.float32))
    assert list(found.labels) == [0.5] and found.schema.predicts_number


@pytest.mark.parametrize(
    ("dtype", "high", "rounded"),
    [("int32", 2**24 + 1, 1), ("float64", 2**24 + 1, 1), ("float64", 0.1, 0)],
)
def test_whole_numbers_that_float32_does_not_hold_are_counted(tmp_path, dtype, high, rounded):
    values = np.asarray([1, high], dtype).tobytes()
    features = {"x": tensor(dtype, 2, encoding="bytes"), "label": CLASS}
    settings = prepare(tmp_path, features, [example(x=[values], label=[0])])
    note = "x holds whole numbers of which float32 keeps the first seven digits"
    assert tfds.scan(settings).notes == ({note: rounded} if rounded else {})


@pytest.mark.parametrize(
    ("features", "info", "said"),
    [
        ({"image": feature("Video"), "label": CLASS}, {}, "image is Video; an Image or a Tensor"),
        (PHOTOS, {"fileFormat": "array_record"}, "only tfrecord can be"),
        (PHOTOS, {"splits": []}, "names no split train"),
        ({"photo": IMAGE, "label": CLASS}, {}, r"records.input is not set.*photo \(Image uint8"),
        ({}, {}, "names no features"),
        (
            PHOTOS,
            {"splits": [{"shardLengths": ["x"], "name": "train"}]},
            "is not as TensorFlow Datasets writes it",
        ),
        ({"image": tensor("float5", 3), "label": CLASS}, {}, "data type .float5. not understood"),
    ],
)
def test_a_prepared_data_set_that_cannot_be_read_is_refused(tmp_path, features, info, said):
    settings = prepare(tmp_path, features, [example(image=[png(1)], label=[0])], **info)
    with pytest.raises(UnreadableSource, match=said):
        tfds.scan(settings)


def test_metadata_of_other_shards_is_refused(tmp_path):
    records = [example(image=[png(n)], label=[n]) for n in range(2)]
    settings = prepare(tmp_path, PHOTOS, records)
    names = tmp_path / "label.labels.txt"
    names.write_text("owl\nduck\nswan\n")
    with pytest.raises(UnreadableSource, match=r"txt names 3 classes, features\.json has 2"):
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
