"""TFRecord shards that others wrote are read by what they hold, or refused in words."""

import doctest
import gzip
import subprocess
import zlib

import numpy as np
import pytest
import tensorflow as tf

from tests.support.external_records import example, png, vectors, write
from tests.support.small_data import SPLIT, flip_bit, picture, prepared
from throughline.data import class_names, rejects, split_names
from throughline.data import ingest as ingest_module
from throughline.data.manifest import read_manifest
from throughline.data.shards.example_features import bytes_places, parse_features, read_numbers
from throughline.data.shards.index import read_shard_index
from throughline.data.shards.tfrecord import read_records
from throughline.data.sources import tfrecord
from throughline.settings import DataSettings
from throughline.shared import wording
from throughline.shared.errors import DataNotFound, UnreadableSource

pytestmark = pytest.mark.integration

LABELED = {"label": [0]}
PIXELS = {"pixels": [1.0], **LABELED}


def scan(folder, **settings):
    return tfrecord.scan(DataSettings(source="tfrecord", path=str(folder), **settings))


def scan_records(folder, examples, **settings):
    """Scan a folder with one shard."""
    write(folder / "a.tfrecord", examples)
    return scan(folder, **settings)


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train-00000-of-00064", "train"),
        ("mnist-test.tfrecord-00000-of-00001", "test"),
        ("val/part-3.tfrecord", "validation"),
        ("train/contest-1.tfrecord", "train"),
        ("train/val-1.tfrecord", "validation"),
        ("val/valid-dev.tfrecord", "validation"),
        ("contest.tfrecord", None),
        ("mnistTrain0.rec", "train"),
        ("testdata.rec", "test"),
    ],
)
def test_the_split_is_read_from_the_words_of_a_path(name, split):
    assert split_names.find_split(name) == split


def test_names_that_may_say_several_splits_are_refused(tmp_path):
    with pytest.raises(UnreadableSource, match=r"may be of several splits: its name holds \w+ and"):
        split_names.find_split("valid_pixels_train-00000-of-00002")
    names = ("strain.rec", "contest.rec")
    assert split_names.find_splits(tmp_path, names) == (dict.fromkeys(names), {})


def test_a_float_label_is_a_number_to_predict(tmp_path):
    records = [example(x=[1.0], label=[0.25]), example(x=[2.0], label=[3.0])]
    found = scan_records(tmp_path, records)
    assert (list(found.labels), found.classes) == ([0.25, 3.0], [])
    assert found.schema.target.encoding.name == "number"
    write(tmp_path / "b.tfrecord", [example(x=[1.0], label=[float("nan")])])
    (item,) = scan(tmp_path).rejected
    assert (item.id, item.reason) == ("b.tfrecord/00000000", "label is not a finite number")
    (tmp_path / "b.tfrecord").unlink()
    features, sizes = {"image/class/label": [0.25], "other": [3]}, [len(png(n)) for n in range(2)]
    both = [example(**features, **{"image/encoded": [png(n)]}) for n in range(2)]
    images = scan_records(tmp_path, both)
    assert (images.label_kind, [item.numbers for item in images.files]) == ("number", [(0.25,)] * 2)
    assert images.features == {
        "image/class/label": "float × 1",
        "image/encoded": f"bytes: PNG, {min(sizes)} to {max(sizes)} bytes",
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


def labeled(*labels):
    return [example(x=[float(n)], label=[label]) for n, label in enumerate(labels)]


def test_a_label_out_of_range_is_rejected_and_labels_from_1_are_refused(tmp_path):
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    found = scan_records(tmp_path, labeled(0, 1, 5, -1))
    said = "label beyond the classes: 5, labels.txt names 2"
    assert [(item.id, item.reason) for item in found.rejected] == [("a.tfrecord/00000002", said)]
    assert (list(found.labels), found.classes) == (["cat", "dog", "-1"], ["cat", "dog"])
    (tmp_path / "a.tfrecord").unlink()
    write(tmp_path / "train-0.tfrecord", labeled(2, 1, 0))
    write(tmp_path / "val-0.tfrecord", labeled(1))
    found = scan(tmp_path)
    assert [item.reason for item in found.rejected] == [said.replace("5", "2")]
    assert found.values.tolist() == [[1], [2], [0]]
    assert list(found.labels) == ["dog", "cat", "dog"]
    assert found.splits == ["train", "train", "validation"]
    (tmp_path / "val-0.tfrecord").unlink()
    write(tmp_path / "train-0.tfrecord", labeled(1, 2))
    with pytest.raises(UnreadableSource, match="counts from 1 to 2: every example would get"):
        scan(tmp_path)


@pytest.mark.parametrize(
    ("features", "records", "said"),
    [
        ({"image": [1.0], "image/encoded": [2.0], **LABELED}, {}, "image and image/encoded could"),
        (PIXELS, {}, r"data\.records\.input is not set.*pixels \(float × 1\)"),
        (PIXELS, {"input": "pixel"}, "no .* pixel; the records hold: .*; did you mean pixels"),
        ({"image": [b"a", b"b"], **LABELED}, {}, r"image holds several values .*\(bytes × 2\)"),
        ({"image": [b"a"]}, {}, r"hold image \(bytes: .*\) and no other feature; an example needs"),
        ({"x": [1.0], "label": [0.0, 1.0, 0.0]}, {}, r"label holds several values.*one-hot"),
    ],
)
def test_what_is_no_single_input_and_label_is_refused_with_hints(features, records, said, tmp_path):
    with pytest.raises(UnreadableSource, match=said):
        scan_records(tmp_path, [example(**features)] * 3, records=records)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ([example(x=[1.0, 2.0], label=[b"owl"])], "label is of kind bytes, but int64 in others"),
        ([example(x=[1.0, 2.0, 3.0], label=[0])], "x differs in length from record to record"),
        ([b"not an example"], "its records are not tf.train.Example"),
    ],
    ids=["kind", "length", "no example"],
)
def test_a_shard_of_another_schema_is_refused(tmp_path, other, said):
    write(tmp_path / "b.tfrecord", other)
    with pytest.raises(UnreadableSource, match=said):
        scan_records(tmp_path, vectors(3))


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
    data, size = path.read_bytes(), path.stat().st_size // 4
    flip_bit(path, size + 20)
    (item,) = scan(tmp_path).rejected
    said = "the checksum of the data does not match"
    assert (item.id, item.reason) == ("a.tfrecord/00000001", said)
    path.write_bytes(data[:-3])
    said = f"a.tfrecord: record 3 at byte {3 * size}: the file ends within"
    with pytest.raises(UnreadableSource, match=said):
        scan(tmp_path)


@pytest.mark.parametrize(
    "module",
    [class_names, ingest_module, rejects, split_names, wording],
    ids=lambda module: module.__name__.rpartition(".")[2],
)
def test_worked_examples_hold(module):
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed


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
    with pytest.raises(DataNotFound, match="does not exist"):
        scan(tmp_path / "nowhere")
    with pytest.raises(DataNotFound, match="holds no TFRecord file"):
        scan(tmp_path)
    (tmp_path / "empty.tfrecord").touch()
    with pytest.raises(DataNotFound, match="none of its shards holds a readable record"):
        scan(tmp_path)
    write(tmp_path / "full.tfrecord", vectors(2))
    assert scan(tmp_path).notes == {"empty shard": 1}
    (tmp_path / "text.tfrecord").write_text("a, b, c\n" * 9)
    with pytest.raises(UnreadableSource, match="is not a TFRecord file; remove it"):
        scan(tmp_path)


def test_files_and_links_that_are_no_shards_are_counted_but_for_hidden_ones(tmp_path):
    folder = tmp_path / "in"
    write(folder / "a.tfrecord", [example(x=[1.0], label=[0])])
    write(tmp_path / "away" / "b.tfrecord", vectors(2))
    write(folder / "more" / "train_3.tfr", vectors(2))
    write(folder / ".cache" / "b.tfrecord", vectors(2))
    write(folder / ".c.tfrecord", vectors(3))
    (folder / "labels.txt").write_text("owl\n")
    (folder / "linked").symlink_to("../away")
    (folder / "c.tfrecord").symlink_to("gone")
    assert [shard.name for shard in tfrecord.find_shards(folder, ())[0]] == ["a.tfrecord"]
    skipped = {"link to nothing": 1, "link to a folder": 1, ".tfr": 1}
    assert scan(folder).skipped == skipped


def test_one_file_is_a_data_set_too(tmp_path):
    write(tmp_path / "one.tfrecord", vectors(2))
    write(tmp_path / "two.tfrecord", vectors(3))
    found = scan(tmp_path / "one.tfrecord")
    assert found.ids == ["one.tfrecord/00000000", "one.tfrecord/00000001"] and not found.warnings
    (tmp_path / "labels.txt").write_text("owl\nduck\n")
    unnamed = scan(tmp_path / "one.tfrecord")
    assert unnamed.classes == ["0", "1"]
    said = "labels.txt is not read, since data.path names the shard alone"
    assert unnamed.warnings[0].startswith(said)


def shards_of(path, folder):
    """Manifest of a folder of records, of which there are shards then."""
    prepared(DataSettings(source="tfrecord", path=str(path), split=SPLIT), folder)
    return read_manifest(folder / "manifest")


def contents(folder, split):
    """Label and stored bytes of the examples of a split in the order of the shards."""
    found = []
    for part in read_shard_index(folder / "shards").for_split(split):
        for record in read_records(folder / "shards" / part.name, compression="none"):
            features = parse_features(record)
            ((start, stop),) = bytes_places(record, features["image"])
            found.append((read_numbers(record, features["label"])[0], record[start:stop]))
    return found


def test_photos_in_shards_of_others_give_the_shards_of_folders(photos, photo_folder, tmp_path):
    """Written as anybody would, with their class as text."""
    records = []
    for path in sorted(photo_folder.rglob("*.jpg")):
        label = path.parent.relative_to(photo_folder).as_posix().encode()
        features = {"image/encoded": [path.read_bytes()], "image/class/text": [label]}
        records.append(example(**features))
    for number, part in enumerate((records[:25], records[25:])):
        write(tmp_path / "in" / f"photos-{number:05d}-of-00002", part)
    manifest = shards_of(tmp_path / "in", tmp_path)
    assert manifest.classes == read_manifest(photos / "manifest").classes
    for split in ("train", "validation", "test"):
        assert contents(tmp_path, split) == contents(photos, split)
    assert not (tmp_path / "manifest" / "values.npy").exists()
    features = manifest.stats["features"]
    assert features["image/class/text"].startswith("bytes: text or values, 3 to 8 bytes")
    assert features["image/encoded"].startswith("bytes: JPEG")


def test_photos_that_must_be_converted_are_read_from_the_copy(tmp_path):
    folder, records = tmp_path / "webp", []
    for number in range(40):
        picture(number).save(tmp_path / "photo.webp", lossless=True)
        image = (tmp_path / "photo.webp").read_bytes()
        records.append(example(image=[image], label=[number % 2]))
    write(folder / "photos.tfrecord", records)
    manifest = shards_of(folder, tmp_path)
    assert manifest.stats["notes"] == {"written as PNG": 40}
    decoded = sorted(
        tf.io.decode_png(value).numpy().tobytes()
        for split in ("train", "validation", "test")
        for _, value in contents(tmp_path, split)
    )
    assert decoded == sorted(np.asarray(picture(number)).tobytes() for number in range(40))
