"""TFRecord shards that others wrote are read by what they hold, or refused in words."""

import doctest
import gzip
import os
import subprocess
import zlib
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.support.external_records import example, png, vectors, write
from tests.support.small_data import data_settings, flip_bit, picture, prepared
from throughline.data import class_names, ingest, rejects, split_names
from throughline.data.manifest import read_manifest
from throughline.data.sources import tfrecord
from throughline.settings import DataSettings
from throughline.shared import wording
from throughline.shared.errors import DataNotFound, UnreadableSource

pytestmark = pytest.mark.integration


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
    records = [example(x=[1.0], label=[0.25]), example(x=[2.0], label=[3.0])]
    found = scan_records(tmp_path, records)
    assert (list(found.labels), found.classes) == ([0.25, 3.0], [])
    assert found.schema.target.encoding.name == "number"
    (item,) = scan_records(tmp_path, [*records, example(x=[1.0], label=[float("nan")])]).rejected
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


def labeled(*labels):
    return [example(x=[float(n)], label=[label]) for n, label in enumerate(labels)]


def test_a_label_out_of_range_is_rejected_and_labels_from_1_are_refused(tmp_path):
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    found = scan_records(tmp_path, labeled(0, 1, 5, -1))
    said = "label beyond the classes: 5, labels.txt names 2"
    assert [(item.id, item.reason) for item in found.rejected] == [("a.tfrecord/00000002", said)]
    assert (list(found.labels), found.classes) == (["cat", "dog", "-1"], ["cat", "dog"])
    found = scan_records(tmp_path, labeled(2, 1, 0))
    assert [item.reason for item in found.rejected] == [said.replace("5", "2")]
    assert (found.values.tolist(), list(found.labels)) == ([[1], [2]], ["dog", "cat"])
    with pytest.raises(UnreadableSource, match="counts from 1 to 2: every example would get"):
        scan_records(tmp_path, labeled(1, 2))


@pytest.mark.parametrize(
    ("features", "records", "said"),
    [
        ({"image": [1.0], "image/encoded": [2.0]}, {}, "image and image/encoded could both be"),
        ({"pixels": [1.0]}, {}, r"data\.records\.input is not set.*pixels \(float × 1\)"),
        ({"pixels": [1.0]}, {"input": "pixel"}, "no .* pixel; .* hold: .*; did you mean pixels"),
        ({"image": [b"a", b"b"]}, {}, r"image holds several values .*\(bytes × 2\)"),
        ({}, {"input": "label"}, r"hold label \(int64 × 1\) and no other feature; an example"),
        ({"x": [1.0], "label": [0.0, 1.0, 0.0]}, {}, r"label holds several values.*one-hot"),
    ],
)
def test_what_is_no_single_input_and_label_is_refused(features, records, said, tmp_path):
    with pytest.raises(UnreadableSource, match=said):
        scan_records(tmp_path, [example(**{"label": [0], **features})], records=records)


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
    for module in (class_names, ingest, rejects, split_names, wording):
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
    for name in ("a.tfrecord", "more/train_3.tfr", ".cache/b.tfrecord", ".c.tfrecord"):
        write(folder / name, [example(x=[1.0], label=[0])])
    write(tmp_path / "away" / "b.tfrecord", vectors(2))
    (folder / "labels.txt").write_text("owl\n")
    (folder / "linked").symlink_to("../away")
    (folder / "c.tfrecord").symlink_to("gone")
    assert [path.name for path in tfrecord.list_shards(folder)] == ["a.tfrecord"]
    skipped = {"link to nothing": 1, "link to a folder": 1, ".tfr": 1}
    assert scan(folder).skipped == skipped


def test_one_file_is_a_data_set_too(tmp_path):
    for name in ("one.tfrecord", "two.tfrecord"):
        write(tmp_path / name, vectors(2))
    found = scan(tmp_path / "one.tfrecord")
    assert found.ids == ["one.tfrecord/00000000", "one.tfrecord/00000001"] and not found.warnings
    (tmp_path / "labels.txt").write_text("owl\nduck\n")
    unnamed = scan(tmp_path / "one.tfrecord")
    assert unnamed.classes == ["0", "1"]
    assert unnamed.warnings[0].startswith("labels.txt is not read, since data.path names the shard")


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


def test_photos_that_must_be_converted_are_read_from_the_copy(tmp_path):
    records = []
    for number in range(40):
        picture(number).save(tmp_path / "photo.webp", lossless=True)
        image = (tmp_path / "photo.webp").read_bytes()
        records.append(example(image=[image], label=[number % 2]))
    write(tmp_path / "in" / "photos.tfrecord", records)
    prepared(data_settings(tmp_path / "in", "tfrecord"), tmp_path)
    manifest = read_manifest(tmp_path / "manifest")
    assert manifest.stats["notes"] == {"written as PNG": 40}
    copies = [Path(uri).read_bytes() for uri in manifest.examples["uri"]]
    decoded = sorted(tf.io.decode_png(copy).numpy().tobytes() for copy in copies)
    assert decoded == sorted(np.asarray(picture(number)).tobytes() for number in range(40))
