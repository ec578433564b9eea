"""Metadata that lets `tfds.builder_from_directory` open a folder of shards: dataset_info.json,
features.json, class names.

Written by hand because TFDS would pull TensorFlow into a stage that needs none; a test opens the
folder with TFDS itself. TFDS reads uncompressed TFRecord only, so nothing is written for GZIP
shards; a series has no examples of its own to describe.
"""

from __future__ import annotations

from pathlib import Path

from tasks.data.records import RecordSchema
from tasks.data.shards import ShardIndex
from tasks.files import atomic_file, write_json

_FEATURES = "tensorflow_datasets.core.features"


def write_tfds_metadata(folder: Path, index: ShardIndex) -> None:
    """Write the three files into the shards' folder."""
    if "none" not in index.compressions or index.schema.payload == "series":
        return
    write_json(
        folder / "dataset_info.json",
        {
            "fileFormat": "tfrecord",
            "splits": [
                {
                    "filepathTemplate": "{SPLIT}-{SHARD_X_OF_Y}.{FILEFORMAT}",
                    "name": split,
                    "numBytes": str(sum(shard.bytes for shard in index.for_split(split))),
                    "shardLengths": [str(shard.examples) for shard in index.for_split(split)],
                }
                for split in sorted(index.splits)
            ],
            "version": "1.0.0",
        },
    )
    write_json(folder / "features.json", _features(index))
    if not index.classes:
        return
    with atomic_file(folder / "label.labels.txt") as temporary:
        temporary.write_text("".join(f"{name}\n" for name in index.classes))


def _features(index: ShardIndex) -> dict:
    scalar = {
        "pythonClassName": f"{_FEATURES}.scalar.Scalar",
        "tensor": {"dtype": "int64", "encoding": "none", "shape": {}},
    }
    number = {
        "pythonClassName": f"{_FEATURES}.scalar.Scalar",
        "tensor": {"dtype": "float32", "encoding": "none", "shape": {}},
    }
    classes = {
        "pythonClassName": f"{_FEATURES}.class_label_feature.ClassLabel",
        "classLabel": {"numClasses": str(len(index.classes))},
    }
    label = number if index.schema.label == "number" else classes
    features = {index.schema.feature: _value(index.schema), "key": scalar, "label": label}
    return {
        "pythonClassName": f"{_FEATURES}.features_dict.FeaturesDict",
        "featuresDict": {"features": features},
    }


def _value(schema: RecordSchema) -> dict:
    if schema.payload == "text":
        return {"pythonClassName": f"{_FEATURES}.text_feature.Text", "text": {}}
    dimensions = [str(size) for size in schema.shape or (-1, -1, schema.channels)]
    if schema.payload == "raw":
        tensor = {"dtype": schema.dtype, "encoding": "bytes", "shape": {"dimensions": dimensions}}
        return {"pythonClassName": f"{_FEATURES}.tensor_feature.Tensor", "tensor": tensor}
    image = {"dtype": "uint8", "shape": {"dimensions": dimensions}}
    return {"pythonClassName": f"{_FEATURES}.image_feature.Image", "image": image}
