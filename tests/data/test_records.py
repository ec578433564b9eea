"""TFRecord files and their offsets, and datasets that TensorFlow Datasets prepared."""

import json
import shutil
import zlib
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.external_records import example, png, write
from tests.support.prepared_files import encode_example, write_shard
from throughline.data import found as forms
from throughline.data.shards import example_features, record_offsets, tfrecord
from throughline.data.shards.example_features import NotAnExample, parse_features, read_numbers
from throughline.data.shards.files import REPAIRED, ShardFiles
from throughline.data.shards.index import Shard
from throughline.data.shards.record_offsets import open_records, read_offsets
from throughline.data.shards.records import encode_examples
from throughline.data.shards.tfrecord import frame, read_records, write_frames
from throughline.data.sources import tfds
from throughline.settings import DataSettings
from throughline.shared.errors import CorruptShard, DataNotFound, MissingInput, UnreadableSource
from throughline.shared.files import digest_file

pytestmark = pytest.mark.integration

RECORDS = [encode_example(key=n, label=n, value=bytes([n]) * (n * 50)) for n in range(6)]
FRAMES = [b"".join(frame(record)) for record in RECORDS]
WHOLE, SECOND = b"".join(FRAMES), len(FRAMES[0])


@given(st.data())
@settings(max_examples=30)
def test_whole_arrays_are_encoded_and_framed_as_one_by_one(data):
    count, size = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 300))
    draw = np.random.default_rng(data.draw(st.integers(0, 2**31)))
    keys = draw.integers(0, 2**63 - 1, count)
    values = draw.standard_normal((count, size)).astype(np.float32)
    labels = draw.integers(0, 2**30, count)
    if data.draw(st.booleans()):
        labels = draw.standard_normal(count).astype(np.float32)
    alone = [
        encode_example(key=key, label=label, value=value.tobytes(), feature="features")
        for key, label, value in zip(keys.tolist(), labels.tolist(), values, strict=True)
    ]
    room = tfrecord.frame_buffer(count, len(alone[0]))
    encode_examples(room["record"], keys=keys, labels=labels, values=values, feature="features")
    assert [row.tobytes() for row in room["record"]] == alone
    assert tfrecord.seal_frames(room).tobytes() == b"".join(chain.from_iterable(map(frame, alone)))


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_other_readers_read_our_files(tmp_path, compression):
    path = tmp_path / "shard.tfrecord"
    assert write_frames(path, FRAMES, compression=compression) == digest_file(path)
    kind = {"none": "", "gzip": "GZIP"}[compression]
    found = tf.data.TFRecordDataset(str(path), compression_type=kind)
    assert [*found.as_numpy_iterator()] == RECORDS
    assert list(read_records(path, compression=compression)) == RECORDS
    if compression == "gzip":
        assert path.read_bytes()[4:8] == bytes(4), "its header holds no time"
        path.write_bytes(path.read_bytes()[:-20])
        with pytest.raises(CorruptShard, match="GZIP stream broken"):
            list(read_records(path, compression="gzip"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (WHOLE[:-3], "record 5 at byte .*: the file ends within the record"),
        (WHOLE[:5], "record 0 at byte 0: the file ends within a record's header"),
        (WHOLE[:150] + b"\xff" + WHOLE[151:], f"record 1 at byte {SECOND}: the checksum of the d"),
        (b"\xff" + WHOLE[1:], "record 0 at byte 0: the length .* match its checksum"),
    ],
)
def test_damage_is_named_by_file_record_and_offset(tmp_path, content, words):
    path = tmp_path / "train-00000-of-00001.tfrecord"
    path.write_bytes(content)
    with pytest.raises(CorruptShard, match=f"{path}: {words}"):
        list(read_records(path, compression="none"))


VALUES = st.one_of(
    st.lists(st.binary(max_size=40), min_size=1, max_size=4),
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=5),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5),
)


@given(st.dictionaries(st.text(min_size=1, max_size=8), VALUES, min_size=1, max_size=4))
@settings(max_examples=80)
def test_any_example_of_tensorflow_s_is_read_as_it_was_written(features):
    record = example(**features)
    found = parse_features(record)
    assert set(found) == set(features)
    for name, values in features.items():
        feature = found[name]
        if feature.kind == "bytes":
            places = example_features.bytes_places(record, feature)
            assert [record[start:stop] for start, stop in places] == values
        elif feature.kind == "float":
            np.testing.assert_array_equal(read_numbers(record, feature), np.float32(values))
        else:
            assert read_numbers(record, feature).tolist() == values


def part(field: int, payload: bytes) -> bytes:
    """A field of a message that holds bytes, fewer than 128."""
    return bytes((field << 3 | 2, len(payload))) + payload


def test_lists_that_are_not_packed_are_read_too():
    """As older writers serialize them: a tag before each number."""
    floats = b"\x0d" + np.float32(1.5).tobytes() + b"\x0d" + np.float32(-2).tobytes()
    integers = b"\x08\x05\x08\xac\x02" + b"\x08" + b"\xff" * 9 + b"\x01"  # ten bytes at most
    entries = [
        part(1, part(1, name) + part(2, part(kind, values)))
        for name, kind, values in ((b"f", 2, floats), (b"i", 3, integers))
    ]
    record = part(1, b"".join(entries))
    found = parse_features(record)
    assert read_numbers(record, found["f"]).tolist() == [1.5, -2.0]
    assert read_numbers(record, found["i"]).tolist() == [5, 300, -1]


@given(st.binary(max_size=60))
@settings(max_examples=200)
def test_any_bytes_are_an_example_or_refused(record):
    try:
        features = parse_features(record)
    except NotAnExample:
        return
    assert all(feature.stop <= len(record) for feature in features.values())


CUT_OFF = part(1, part(1, part(1, b"i") + part(2, part(3, part(1, b"\x05\xac")))))


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (b"", "it has no features"),
        (b"\x0a", "the number before byte 1 is cut off"),
        (part(1, b"\x0a\x09abc") + b"enough bytes", "ends within the field at byte 4"),
        (CUT_OFF, "ends within a number"),
    ],
)
def test_what_is_no_example_is_refused_with_what_is_wrong(record, said):
    with pytest.raises(NotAnExample, match=said):
        read_numbers(record, parse_features(record)["i"])


@pytest.fixture
def shards(tmp_path) -> list[tuple[Path, Shard]]:
    """Three uncompressed shards of records of several sizes, with their indexes."""
    found = []
    for number, sizes in enumerate(((3, 0, 500), (7,), (1, 2))):
        path = tmp_path / f"train-{number}.tfrecord"
        shard = write_shard(path, [bytes([number]) * size for size in sizes])
        found.append((path, replace(shard, offsets_digest=record_offsets.write_offsets(path))))
    return found


def test_records_are_read_by_their_numbers_in_any_order(shards):
    files, indexes = ShardFiles(folder=shards[0][0].parent), [shard for _, shard in shards]
    table = open_records(files, indexes)
    everything = [record for path, _ in shards for record in read_records(path, compression="none")]
    assert len(table) == len(everything) == 6
    for order in ([5, 0, 3, 3, 2, 1, 4], []):
        found = table.read(np.array(order, np.int64)).tolist()
        assert found == [everything[number] for number in order]
    shards[0][0].write_bytes(b"".join(b"".join(frame(bytes(size))) for size in (500, 0, 3)))
    with pytest.raises(ValueError, match="no record of this length begins there"):
        open_records(files, indexes).read(np.array([0]))


def test_an_index_that_is_not_its_shards_is_refused(shards):
    (first, shard), (other, _), _ = shards
    files, index = ShardFiles(folder=first.parent), first.with_suffix(".offsets.npy")
    shutil.copy(other.with_suffix(".offsets.npy"), index)
    with pytest.raises(CorruptShard, match=r"train-0\.offsets\.npy was not written with"):
        read_offsets(files, shard)
    with pytest.raises(CorruptShard, match=r"lists 1 records in 23 bytes, but train-0\S+ has 3"):
        read_offsets(files, replace(shard, offsets_digest=digest_file(index)))
    index.unlink()
    with pytest.raises(MissingInput, match=r"train-0\.offsets\.npy is missing; run"):
        read_offsets(files, shard)


def test_the_edges_of_a_repaired_shard_are_looked_for(shards):
    path, shard = shards[0]
    files = ShardFiles(folder=path.parent, snapshot_folder=path.parent / "snapshot")
    expected = read_offsets(files, shard)
    (path.parent / "snapshot" / REPAIRED).mkdir(parents=True)
    path = path.rename(path.parent.joinpath("snapshot", REPAIRED, path.name))
    assert read_offsets(files, replace(shard, repaired=True)).tolist() == expected.tolist()
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptShard, match="record 2 at byte 35: the file ends within the record"):
        read_offsets(files, replace(shard, repaired=True))


def feature(kind: str, module: str = "tensor_feature", **more) -> dict:
    return {"pythonClassName": f"tensorflow_datasets.core.features.{module}.{kind}", **more}


IMAGE = feature("Image", image={"dtype": "uint8", "shape": {"dimensions": ["-1", "-1", "3"]}})
ONE, CLASS = (feature("ClassLabel", classLabel={"numClasses": count}) for count in "12")
PHOTOS = {"image": IMAGE, "label": CLASS}


def tensor(dtype: str, *sizes: int, encoding: str = "none") -> dict:
    shape = {"dimensions": [str(size) for size in sizes]} if sizes else {}
    return feature("Tensor", tensor={"dtype": dtype, "encoding": encoding, "shape": shape})


def prepare(folder, features: dict, records: list[bytes], **info) -> DataSettings:
    """Write a folder as TensorFlow Datasets prepares it, with one shard of the split train."""
    write(folder / "birds-train.tfrecord-00000-of-00001", records)
    described = {"pythonClassName": "FeaturesDict", "featuresDict": {"features": features}}
    splits = [{"name": "train", "shardLengths": [str(len(records))]}]
    info = {"name": "birds", "fileFormat": "tfrecord", "splits": splits, **info}
    for name, content in (("features", described), ("dataset_info", info)):
        (folder / f"{name}.json").write_text(json.dumps(content))
    return DataSettings(source="tfds", path=str(folder))


def test_a_prepared_data_set_is_read_as_its_metadata_says(tmp_path):
    inner = {"pythonClassName": "FeaturesDict", "featuresDict": {"features": {"encoded": IMAGE}}}
    features = {"image": inner, "encoded": tensor("int64"), "label": CLASS}
    features |= {"name": feature("Text", "text_feature")}
    cells = {"encoded": [7], "name": [b"a"]}
    records = [example(**{"image/encoded": [png(n)], "label": [n]}, **cells) for n in range(2)]
    other = {"name": "validation_matched", "shardLengths": ["1000", "500"]}
    splits = [{"name": "train", "shardLengths": ["2"]}, other]
    settings = prepare(tmp_path, features, records, splits=splits)
    (tmp_path / "label.labels.txt").write_text("owl\nduck\n")
    found = tfds.scan(settings)
    assert isinstance(found, forms.Files)
    assert [item.label for item in found.files] == ["owl", "duck"]
    (tmp_path / "label.labels.txt").unlink()
    assert [item.label for item in tfds.scan(settings).files] == ["0", "1"]
    assert found.features == {
        "image/encoded": "Image uint8 any×any×3",
        "encoded": "Tensor int64",
        "label": "ClassLabel of 2 classes",
        "name": "Text",
    }
    ((why, count),) = found.left_out.items()
    assert count == 1500 and why.startswith("split validation_matched, which is none of train, ")


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


HIGH, PAIRS = [1, 2**24 + 1], [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize(
    ("dtype", "encoding", "values", "rounded"),
    [
        ("int16", "none", PAIRS, 0),
        ("int16", "zlib", PAIRS, 0),
        ("int32", "bytes", HIGH, 1),
        ("float64", "bytes", [1, 0.1], 0),
    ],
)
def test_tensors_are_read_in_every_encoding(tmp_path, dtype, encoding, values, rounded):
    values = np.asarray(values, dtype)
    content = values.tobytes()
    stored = {"none": values.ravel().tolist(), "bytes": [content], "zlib": [zlib.compress(content)]}
    features = {"v": tensor(dtype, *values.shape, encoding=encoding), "y": tensor("float32")}
    keys = {"tuple": {"items": [{"dictKey": "v"}, {"dictKey": "y"}]}}
    records = [example(v=stored[encoding], y=[0.5])]
    found = tfds.scan(prepare(tmp_path, features, records, supervisedKeys=keys))
    np.testing.assert_array_equal(found.values, values[None].astype(np.float32))
    assert list(found.labels) == [0.5] and found.schema.predicts_number
    note = "v holds whole numbers of which float32 keeps the first seven digits"
    assert found.notes == ({note: rounded} if rounded else {})


def train(*lengths: str, **more) -> dict:
    return {"splits": [{"name": "train", "shardLengths": lengths, **more}]}


@pytest.mark.parametrize(
    ("features", "info", "said"),
    [
        ({"image": feature("Video"), "label": CLASS}, {}, "image is Video; it must be an Image or"),
        ({"image": tensor("float5", 3), "label": CLASS}, {}, "data type .float5. not understood"),
        ({"photo": IMAGE, "label": CLASS}, {}, r"records.input is not set.*photo \(Image uint8"),
        ({"image": IMAGE, "label": ONE}, {}, r"txt names 2 classes, but features\.json has 1"),
        ({}, {}, "names no features"),
        (PHOTOS, {"fileFormat": "array_record"}, "only tfrecord can be"),
        (PHOTOS, {"splits": []}, "names no train, validation or test split"),
        (PHOTOS, train("x"), "is not as TensorFlow Datasets writes it"),
        (PHOTOS, train("1", filepathTemplate="../{SPLIT}"), "names ../train, which is outside"),
        (PHOTOS, train("2"), r"holds 1 records, but dataset_info.json says 2"),
        (PHOTOS, train("1", "1"), "00000-of-00002 cannot be read: No such file"),
    ],
)
def test_a_prepared_data_set_that_cannot_be_read_is_refused(tmp_path, features, info, said):
    settings = prepare(tmp_path, features, [example(image=[png(1)], label=[0])], **info)
    (tmp_path / "label.labels.txt").write_text("owl\nduck\n")
    with pytest.raises((UnreadableSource, DataNotFound), match=said):
        tfds.scan(settings)
    (tmp_path / "dataset_info.json").unlink()
    with pytest.raises(DataNotFound, match=r"dataset_info\.json is missing"):
        tfds.scan(settings)
