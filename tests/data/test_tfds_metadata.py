"""The files from which TFDS knows a folder of shards; tests/test_shard.py opens one with TFDS."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tasks.data.records import RecordSchema
from tasks.data.shards import Shard, ShardIndex
from tasks.data.tfds_metadata import write_tfds_metadata


def shard(split: str, examples: int, size: int) -> Shard:
    return Shard(
        name=f"{split}-{examples}.tfrecord",
        split=split,
        records=examples,
        examples=examples,
        bytes=size,
        digest="",
        compression="none",
    )


INDEX = ShardIndex(
    schema=RecordSchema(payload="raw", shape=(28, 20, 1), channels=1),
    classes=("cat", "dog"),
    data_digest="d",
    shards=(shard("train", 7, 700), shard("train", 6, 600), shard("test", 2, 200)),
)


def features_of(folder) -> dict:
    return json.loads((folder / "features.json").read_text())["featuresDict"]["features"]


def test_splits_have_their_bytes_and_lengths_in_order(tmp_path):
    write_tfds_metadata(tmp_path, INDEX)
    info = json.loads((tmp_path / "dataset_info.json").read_text())
    assert [(one["name"], one["numBytes"], one["shardLengths"]) for one in info["splits"]] == [
        ("test", "200", ["2"]),
        ("train", "1300", ["7", "6"]),
    ]
    assert (tmp_path / "label.labels.txt").read_text() == "cat\ndog\n"


def test_features_say_how_values_and_labels_are_stored(tmp_path):
    write_tfds_metadata(tmp_path, INDEX)
    features = features_of(tmp_path)
    assert features["image"]["tensor"] == {
        "dtype": "uint8",
        "encoding": "bytes",
        "shape": {"dimensions": ["28", "20", "1"]},
    }
    assert features["label"]["classLabel"] == {"numClasses": "2"}
    assert features["key"]["tensor"]["dtype"] == "int64"


def test_numbers_to_predict_have_no_class_names(tmp_path):
    schema = RecordSchema(payload="raw", shape=(3,), dtype="float32", label="number")
    write_tfds_metadata(tmp_path, replace(INDEX, schema=schema, classes=()))
    assert features_of(tmp_path)["label"]["tensor"]["dtype"] == "float32"
    assert not (tmp_path / "label.labels.txt").exists()


def test_photos_of_any_size_have_open_dimensions(tmp_path):
    schema = RecordSchema(payload="encoded", shape=None, channels=3)
    write_tfds_metadata(tmp_path, replace(INDEX, schema=schema))
    assert features_of(tmp_path)["image"]["image"]["shape"] == {"dimensions": ["-1", "-1", "3"]}


@pytest.mark.parametrize(
    "index",
    [
        replace(INDEX, shards=tuple(replace(one, compression="gzip") for one in INDEX.shards)),
        replace(INDEX, schema=RecordSchema(payload="series", shape=(2,), dtype="float32")),
    ],
    ids=["gzip alone", "series"],
)
def test_nothing_is_written_for_what_tfds_cannot_read(tmp_path, index):
    write_tfds_metadata(tmp_path, index)
    assert list(tmp_path.iterdir()) == []
