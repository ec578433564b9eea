"""Reads a dataset that TensorFlow Datasets has prepared, in place and without that library.

`dataset_info.json` names splits and shards, `features.json` the features of records: images,
classes, tensors, scalars and texts. Other inputs, labels and file formats are refused.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from throughline.data.found import Arrays, Files
from throughline.data.sources.external_shards import (
    ExternalShard,
    Form,
    InputFeature,
    LabelFeature,
    read_examples,
)
from throughline.data.sources.tfrecord import choose_features, read_class_names
from throughline.data.split_names import SPLITS_BY_WORD, leave_validation_open
from throughline.settings import DataSettings
from throughline.shared.errors import DataNotFound, UnreadableSource

DEFAULT_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
READABLE = "Image, ClassLabel, Tensor, Scalar and Text"
FORMS: Mapping[str, Form] = {"none": "numbers", "bytes": "bytes", "zlib": "zlib"}  # of tensors
PIXELS = ("uint8", "uint16")  # of images; a PNG hides other values in its channels


def scan(settings: DataSettings) -> Files | Arrays:
    root = Path(settings.path)
    try:
        info = _read_metadata(root, "dataset_info.json")
        shards, features = list_shards(root, info), _read_features(root)
        described = {name: describe(feature) for name, feature in features.items()}
        supervised = info.get("supervisedKeys", {}).get("tuple", {}).get("items", ())
        keys = tuple(item.get("dictKey", "") for item in supervised)
        known = keys if len(keys) == 2 else ("", "")  # noqa: PLR2004 - input and label
        name, label = choose_features(root, settings.records, described, known=known)
        wanted = _input_feature(root, name, features[name])
        predicted = _label_feature(root, label, features[label])
        left_out = {
            f"split {split['name']}, which is none of {', '.join(SPLITS_BY_WORD)}": sum(
                map(int, split.get("shardLengths", ()))
            )
            for split in info.get("splits", ())
            if split["name"] not in SPLITS_BY_WORD
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UnreadableSource(
            f"{root}: dataset_info.json or features.json is not as TensorFlow Datasets writes it"
            f" ({type(error).__name__}: {error}); prepare the dataset again"
        ) from error
    found = read_examples(settings, shards, wanted, predicted)
    return replace(found, features=described, left_out=left_out)


def list_shards(root: Path, info: Mapping[str, Any]) -> list[ExternalShard]:
    """Return the shards of the train, validation and test splits in dataset_info.json."""
    if info.get("fileFormat", "tfrecord") != "tfrecord":
        raise UnreadableSource(
            f"{root}: dataset_info.json says that the shards are {info['fileFormat']}; only"
            " tfrecord can be read, so prepare the dataset with file_format='tfrecord'"
        )
    shards = []
    for split in info.get("splits", ()):
        lengths = [int(length) for length in split.get("shardLengths", ())]
        template = split.get("filepathTemplate") or DEFAULT_TEMPLATE
        for number, length in enumerate(lengths):
            values = {
                "DATASET": info.get("name", ""),
                "SPLIT": split["name"],
                "FILEFORMAT": "tfrecord",
                "SHARD_INDEX": f"{number:05d}",
                "NUM_SHARDS": f"{len(lengths):05d}",
                "SHARD_X_OF_Y": f"{number:05d}-of-{len(lengths):05d}",
            }
            name = template
            for key, value in values.items():
                name = name.replace(f"{{{key}}}", value)
            if ".." in name.split("/") or name.startswith("/"):
                raise UnreadableSource(
                    f"{root}: dataset_info.json names {name}, which is outside of that folder;"
                    " prepare the dataset again"
                )
            # Splits with other names, such as `unsupervised`, are left out.
            kind = SPLITS_BY_WORD.get(split["name"])
            if kind and length:
                shard = ExternalShard(path=root / name, name=name, split=kind, records=length)
                shards.append(shard)
    if not shards:
        named = ", ".join(str(split.get("name")) for split in info.get("splits", ())) or "none"
        raise UnreadableSource(
            f"{root}: dataset_info.json names no train, validation or test split with examples; it"
            f" names {named}; prepare the dataset with such a split"
        )
    splits = leave_validation_open([shard.split for shard in shards])
    return [replace(shard, split=split) for shard, split in zip(shards, splits, strict=True)]


def describe(feature: Mapping[str, Any]) -> str:
    kind = _read_kind(feature)
    if kind == "ClassLabel":
        return f"ClassLabel of {feature.get('classLabel', {}).get('numClasses', '?')} classes"
    tensor = feature.get("image") or feature.get("tensor") or {}
    shape = "×".join("any" if size < 0 else str(size) for size in _read_shape(tensor))
    return " ".join(part for part in (kind, str(tensor.get("dtype", "")), shape) if part)


def _read_metadata(root: Path, name: str) -> dict[str, Any]:
    path = root / name
    if not path.is_file():
        raise DataNotFound(
            f"{path} is missing; `data.path` must be the folder of one version of a prepared"
            " dataset, such as mnist/3.0.1"
        )
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise UnreadableSource(f"{path} is not JSON: {error}; prepare the dataset again") from error


def _read_features(root: Path) -> dict[str, dict[str, Any]]:
    """Return features by their names in the records; inner features are `outer/inner`."""
    features: dict[str, dict[str, Any]] = {}

    def collect(feature: Mapping[str, Any], prefix: str) -> None:
        for name, inner in feature.get("featuresDict", {}).get("features", {}).items():
            if "featuresDict" in inner:
                collect(inner, f"{prefix}{name}/")
            else:
                features[f"{prefix}{name}"] = inner

    collect(_read_metadata(root, "features.json"), "")
    if not features:
        raise UnreadableSource(
            f"{root / 'features.json'} names no features; prepare the dataset again with a current"
            " version of TensorFlow Datasets"
        )
    return features


def _input_feature(root: Path, name: str, feature: Mapping[str, Any]) -> InputFeature:
    kind, tensor = _read_kind(feature), feature.get("tensor", {})
    where, shape = f"{root}: data.records.input: {name} is {describe(feature)}", _read_shape(tensor)
    if kind == "Image" and feature.get("image", {}).get("dtype", PIXELS[0]) not in PIXELS:
        raise UnreadableSource(
            f"{where}, whose values are packed into the channels of a PNG; prepare it as an Image"
            f" of {' or '.join(PIXELS)}, or as a Tensor"
        )
    if kind == "Image":
        return InputFeature(name=name, form="encoded")
    if kind != "Tensor" or not shape or min(shape) < 0:
        raise UnreadableSource(f"{where}; it must be an Image or a Tensor of one shape")
    dtype = np.dtype(tensor["dtype"])
    if dtype.kind not in "biuf":
        raise UnreadableSource(f"{where}; it must hold integers, floats or booleans")
    encoding = tensor.get("encoding", "none")
    if encoding not in FORMS:
        raise UnreadableSource(f"{root}: {name} has encoding {encoding}, not none, bytes or zlib")
    return InputFeature(name=name, form=FORMS[encoding], shape=shape, dtype=dtype.name)


def _label_feature(root: Path, name: str, feature: Mapping[str, Any]) -> LabelFeature:
    kind = _read_kind(feature)
    names, named_by = read_class_names(root, name)
    if kind == "ClassLabel":
        count = int(feature.get("classLabel", {}).get("numClasses", len(names)))
        if names and len(names) != count:
            raise UnreadableSource(
                f"{root / named_by} names {len(names)} classes, but features.json has {count};"
                " prepare the dataset again"
            )
        numbered = tuple(str(number) for number in range(count))
        return LabelFeature(
            name=name, kind="int64", names=names or numbered, named_by=named_by or "features.json"
        )
    tensor = feature.get("tensor", {})
    if kind == "Text" or tensor.get("dtype") in ("string", "object"):
        return LabelFeature(name=name, kind="bytes", names=names, named_by=named_by)
    if kind in ("Tensor", "Scalar") and not _read_shape(tensor):
        if "float" in tensor.get("dtype", ""):
            return LabelFeature(name=name, kind="float")
        return LabelFeature(name=name, kind="int64", names=names, named_by=named_by)
    raise UnreadableSource(
        f"{root}: data.records.label: {name} is {describe(feature)}; a label must be a ClassLabel,"
        f" a single number or text. Features that can be read are {READABLE}"
    )


def _read_kind(feature: Mapping[str, Any]) -> str:
    return str(feature.get("pythonClassName", "?")).rpartition(".")[2]


def _read_shape(tensor: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(int(size) for size in tensor.get("shape", {}).get("dimensions", ()))
