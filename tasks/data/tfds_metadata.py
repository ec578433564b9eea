"""Metadata that lets `tfds.builder_from_directory` open a folder of shards: dataset_info.json, features.json, class names.

Written by hand because TFDS would pull TensorFlow into a stage that needs none; a test opens the folder with TFDS itself.
TFDS reads uncompressed TFRecord only, so nothing is written beside GZIP shards.
"""

from __future__ import annotations

from pathlib import Path

from tasks.data.records import RecordSchema
from tasks.data.shards import ShardIndex
from tasks.files import atomic_file, write_json

_FEATURES = "tensorflow_datasets.core.features"


def write_tfds_metadata(folder: Path, index: ShardIndex) -> None:
    """Write the three files beside the shards."""
    if index.compression != "none":
        return
    splits = sorted({shard.split for shard in index.shards})
    write_json(
        folder / "dataset_info.json",
        {
            "fileFormat": "tfrecord",
            "splits": [
                {
                    "filepathTemplate": "{SPLIT}-{SHARD_X_OF_Y}.{FILEFORMAT}",
                    "name": split,
                    "numBytes": str(sum(shard.bytes for shard in index.of(split))),
                    "shardLengths": [str(shard.examples) for shard in index.of(split)],
                }
                for split in splits
            ],
            "version": "1.0.0",
        },
    )
    write_json(folder / "features.json", _features(index))
    with atomic_file(folder / "label.labels.txt") as temporary:
        temporary.write_text("".join(f"{name}\n" for name in index.classes))


def _features(index: ShardIndex) -> dict:
    scalar = {"dtype": "int64", "encoding": "none", "shape": {}}
    return {
        "pythonClassName": f"{_FEATURES}.features_dict.FeaturesDict",
        "featuresDict": {
            "features": {
                "image": _image(index.schema),
                "key": {"pythonClassName": f"{_FEATURES}.scalar.Scalar", "tensor": scalar},
                "label": {
                    "pythonClassName": f"{_FEATURES}.class_label_feature.ClassLabel",
                    "classLabel": {"numClasses": str(len(index.classes))},
                },
            }
        },
    }


def _image(schema: RecordSchema) -> dict:
    dimensions = [str(size) for size in (schema.shape or (-1, -1, schema.channels))]
    if schema.payload == "raw":
        tensor = {"dtype": "uint8", "encoding": "bytes", "shape": {"dimensions": dimensions}}
        return {"pythonClassName": f"{_FEATURES}.tensor_feature.Tensor", "tensor": tensor}
    image = {"dtype": "uint8", "shape": {"dimensions": dimensions}}
    return {"pythonClassName": f"{_FEATURES}.image_feature.Image", "image": image}
