"""Shards that others wrote go through the stages as any other source: the same examples give the
same shards, wherever they came from.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from tests.support.external_records import example, write
from tests.support.small_data import SPLIT, flip_bit, picture
from throughline.data.ingest import ingest
from throughline.data.manifest import read_manifest
from throughline.data.shards.example_features import bytes_places, parse_features, read_numbers
from throughline.data.shards.index import read_shard_index
from throughline.data.shards.tfrecord import read_records
from throughline.data.shards.writing import shard
from throughline.settings import DataSettings, ShardSettings
from throughline.shared.errors import DataNotFound


def settings(path, source="tfrecord", **more) -> DataSettings:
    return DataSettings(source=source, path=str(path), split=SPLIT, **more)


def shards_of(data_settings, folder):
    """Manifest and shards of a source."""
    manifest = replace(ingest(data_settings, folder / "manifest"), folder=folder / "manifest")
    shard(manifest, folder / "shards", settings=ShardSettings(min_shards=3, writers=2))
    return manifest


def contents(folder, split):
    """Label and stored bytes of the examples of a split in the order of the shards."""
    found = []
    for part in read_shard_index(folder / "shards").for_split(split):
        for record in read_records(folder / "shards" / part.name, compression="none"):
            features = parse_features(record)
            ((start, stop),) = bytes_places(record, features["image"])
            found.append((read_numbers(record, features["label"])[0], record[start:stop]))
    return found


def photo_records(folder):
    """The photos of a folder as anybody would write them, and their class as text."""
    for path in sorted(folder.rglob("*.jpg")):
        label = path.parent.relative_to(folder).as_posix().encode()
        yield example(**{"image/encoded": [path.read_bytes()], "image/class/text": [label]})


@pytest.fixture(scope="module")
def external_photos(photo_folder, tmp_path_factory):
    """The photos in two shards without a split in their names."""
    folder = tmp_path_factory.mktemp("external")
    records = list(photo_records(photo_folder))
    for number, part in enumerate((records[:25], records[25:])):
        write(folder / f"photos-{number:05d}-of-00002", part)
    return folder


def test_photos_in_shards_of_others_give_the_same_shards_as_in_folders(
    photos, external_photos, tmp_path
):
    manifest = shards_of(settings(external_photos), tmp_path)
    assert manifest.classes == read_manifest(photos / "manifest").classes
    for split in ("train", "validation", "test"):
        assert contents(tmp_path, split) == contents(photos, split)
    assert not (manifest.folder / "values.npy").exists()
    features = manifest.stats["features"]
    assert features["image/class/text"].startswith("bytes: text or values, 3 to 8 bytes")
    assert features["image/encoded"].startswith("bytes: JPEG")


def test_our_own_shards_are_read_as_those_of_others(arrays, tmp_path):
    folder, classes = tmp_path / "uncompressed", read_manifest(arrays / "manifest").classes
    folder.mkdir()  # which knows nothing of the compressed shards next to the uncompressed ones
    for path in (arrays / "shards").glob("*.tfrecord"):
        (folder / path.name).symlink_to(path)
    (folder / "labels.txt").write_text("\n".join(classes))
    manifest = shards_of(settings(folder, "tfrecord", records={"shape": [12, 10, 1]}), tmp_path)
    assert manifest.classes == classes
    for split in ("train", "validation", "test"):
        assert contents(tmp_path, split) == contents(arrays, split)


def test_photos_that_must_be_converted_are_read_from_the_copy(tmp_path):
    folder, records = tmp_path / "webp", []
    for number in range(40):
        picture(number).save(tmp_path / "photo.webp", lossless=True)
        image = (tmp_path / "photo.webp").read_bytes()
        records.append(example(image=[image], label=[number % 2]))
    write(folder / "photos.tfrecord", records)
    manifest = shards_of(settings(folder), tmp_path)
    assert manifest.stats["notes"] == {"written as PNG": 40}
    decoded = sorted(
        tf.io.decode_png(value).numpy().tobytes()
        for split in ("train", "validation", "test")
        for _, value in contents(tmp_path, split)
    )
    assert decoded == sorted(np.asarray(picture(number)).tobytes() for number in range(40))


def test_a_shard_that_changes_after_ingest_is_named(photo_folder, tmp_path):
    path = tmp_path / "in" / "photos.tfrecord"
    write(path, photo_records(photo_folder))
    manifest = replace(ingest(settings(path), tmp_path / "manifest"), folder=tmp_path / "manifest")
    size = path.stat().st_size
    flip_bit(path, size // 2)
    with pytest.raises(DataNotFound, match="has other contents than at ingest"):
        shard(manifest, tmp_path / "shards", settings=ShardSettings(min_shards=1))
    path.write_bytes(path.read_bytes()[: size // 2])
    with pytest.raises(DataNotFound, match=r"has (another size|other contents) than at ingest"):
        shard(manifest, tmp_path / "shards", settings=ShardSettings(min_shards=1))


def test_a_broken_image_in_a_shard_is_rejected(photo_folder, tmp_path):
    images = [path.read_bytes() for path in sorted(photo_folder.rglob("*.jpg"))]
    images[7] = images[7][:200]
    records = [example(image=[image], label=[n % 2]) for n, image in enumerate(images)]
    write(tmp_path / "photos.tfrecord", records)
    manifest = ingest(
        settings(tmp_path / "photos.tfrecord", max_reject_fraction=0.1), tmp_path / "manifest"
    )
    assert manifest.rejected["id"].tolist() == ["photos.tfrecord/00000007"]
    assert manifest.rejected["reason"][0].startswith("damaged image")
